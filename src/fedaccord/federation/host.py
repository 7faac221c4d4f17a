"""The sites' side of the house: runs one task of one site, on one model that all sites of a process share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedaccord.data.sensitive import Target
from fedaccord.data.site_data import SiteData
from fedaccord.engines.engine import Answer, Job
from fedaccord.errors import FedAccordError
from fedaccord.evaluation.groups import fairness_figures
from fedaccord.evaluation.metrics import finite
from fedaccord.federation.attack import Attack
from fedaccord.federation.cohort_mean import COHORT_SAMPLES, REPRESENTATIVE, can_average, stacked_mean
from fedaccord.federation.recipe import Recipe, SiteTask
from fedaccord.labels.judging import disambiguation, site_metrics
from fedaccord.labels.views import View
from fedaccord.labels.views.likelihoods import PRIOR as PRIOR
from fedaccord.messages.message import Message, SiteId
from fedaccord.messages.names import SILENT
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network, use_channels_last
from fedaccord.models.predicting import predict_logits
from fedaccord.models.stacked import stacked_forward
from fedaccord.seeds import derive
from fedaccord.training.cohort import (
    MOST_VALUES,
    CohortResult,
    cohort_key,
    is_batchable,
    split_by_size,
    terms_of,
    train_together,
)
from fedaccord.training.local import seeded, start, train_locally
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.work import FIGURES, LocalWork

PERSONAL = "personal"  # prefix of the tensors a site keeps of the model


class SiteHost:
    """Serves sites from their data and their memory; nothing of one site is visible to another."""

    def __init__(
        self,
        sites: Mapping[SiteId, SiteData],
        network: Network,
        recipe: Recipe,
        seed: int,
        target: Target | None = None,
        attack: Attack | None = None,
        hostile: Collection[SiteId] = (),
        averages_cohorts: bool = False,
    ) -> None:
        self.network, self.recipe, self.seed, self.target, self.attack = network, recipe, seed, target, attack
        self.averages_cohorts = averages_cohorts  # only if the server is on this machine
        self._declared = dict(sites)  # before an attack changes them: sites are evaluated on these
        self.sites = {n: attack.poison(s, target) if attack and n in hostile else s for n, s in sites.items()}
        self.layout = Layout.of(network)
        self.device = next(iter(network.parameters())).device
        use_channels_last(self.network)
        self._tensors = dict(network.named_parameters()) | dict(network.named_buffers())
        self._initial = {name: t.detach().clone() for name, t in self._tensors.items()}
        self._parameters: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
        self._trained = [name for name, p in network.named_parameters() if p.requires_grad]
        self._shared = recipe.sharing.names(self.layout)
        self._kept = tuple(name for name in self._tensors if name not in set(self._shared))
        self._tasks: dict[str, SiteTask] = {"train": self._train, "evaluate": self._evaluate, **recipe.tasks}
        self._forward = stacked_forward(network)
        self._owns: dict[SiteId, Tensor] = {}
        self._rows: dict[SiteId, Tensor | None] = {}

    def handle(self, task: str, site: SiteId, brief: Message, memory: Message) -> tuple[Message, Message]:
        """Run one task; returns the reply and what the site keeps."""
        if task == "join":
            return self._addressed(self._join(self.sites[site]), brief), memory
        if task not in self._tasks:
            raise FedAccordError(f"site '{site}' knows no task '{task}'")
        work = self._work(site, brief, memory)
        with seeded(derive(self.seed, "task", task, site, work.round)):
            reply = self._tasks[task](work)
        return self._addressed(reply, brief), work.memory

    def handle_together(self, task: str, jobs: Sequence[Job]) -> list[Answer]:
        """Do what `handle` does for several sites; training, where the recipe allows it, as one program."""
        terms, forward = terms_of(self.recipe.objective), self._forward
        stackable = all(self.sites[job[0]].view.stacking_key() is not None for job in jobs)
        if (
            task != "train"
            or not stackable
            or terms is None
            or forward is None
            or not is_batchable(self.recipe.site_solver)
        ):
            return [_apart(self.handle(task, *job)) for job in jobs]
        works: list[LocalWork] = []
        replies: dict[SiteId, Message] = {}
        cohorts: dict[tuple[object, ...], list[LocalWork]] = {}
        for site, brief, memory in jobs:
            work = self._work(site, brief, memory, works[-1] if works else None)
            works.append(work)
            work.random = torch.Generator().manual_seed(derive(self.seed, "task", task, site, work.round))
            self._keep_prior(work)
            silent = start(work, self.recipe.objective)
            if silent is not None:
                replies[site] = silent
            else:
                cohorts.setdefault(cohort_key(work, terms), []).append(work)
        recipe = self.recipe
        for alike in (part for works in cohorts.values() for part in split_by_size(works, terms, MOST_VALUES)):
            trained = train_together(alike, recipe.objective, recipe.site_solver, recipe.settings, forward)
            means = self._folded(alike, trained)
            for work, reply in zip(alike, trained.replies, strict=True):
                own = dict(zip(self._trained, work.parameters, strict=True))
                replies[work.site.name] = self._complete(work, reply, own, shared=means is None)
            if means is not None:
                self._speak(trained.replies, [work.site for work in alike], means)
        return [(self._addressed(replies[work.site.name], work.brief), work.memory) for work in works]

    def _work(self, site: SiteId, brief: Message, memory: Message, before: LocalWork | None = None) -> LocalWork:
        """Put together a site's work; `before` is the last one, if the model is still as it was loaded for that."""
        data = self.sites[site]
        if before is not None and self._starts_alike(brief, memory, before):
            received = before.received
        else:
            self._load(data, brief, memory)
            received = [p.detach().clone() for p in self._parameters]
        if site not in self._rows:
            self._rows[site] = annotated_rows(data) if self.recipe.objective.uses_labels else None
        settings = self.recipe.settings
        round_ = int(brief.numbers["round"])
        kept = Message(dict(memory.tensors), dict(memory.numbers), dict(memory.words))
        view = site_view(data, self.recipe, memory, brief)
        if PRIOR in memory.tensors:
            view = view.with_offset(memory.tensors[PRIOR])
        return LocalWork(
            site=data,
            view=view,
            model=self.network,
            brief=brief,
            memory=kept,
            round=round_,
            lr=settings.lr_at(round_),
            parameters=self._parameters,
            received=received,
            seed=self.seed,
            rows=self._rows[site],
        )

    def _starts_alike(self, brief: Message, memory: Message, before: LocalWork) -> bool:
        """Say whether a site's model begins with the very tensors that the last site's did."""
        own = self.recipe.sharing.own_rows or self._kept
        told = before.brief.tensors
        return not own and all(told.get(name) is tensor for name, tensor in brief.tensors.items())

    @torch.no_grad()
    def _load(self, data: SiteData, brief: Message, memory: Message) -> None:
        """Put together the site's model: what it was sent, what it keeps, and at first what everyone starts from."""
        values = dict(self._initial)
        values.update(memory.select(PERSONAL))
        known = self._owned(data)
        values.update(self.recipe.sharing.incoming(self.layout, brief.tensors, self._initial, known))
        names = list(values)
        torch._foreach_copy_([self._tensors[n] for n in names], [values[n].to(self.device) for n in names])

    def _join(self, data: SiteData) -> Message:
        samples = usable_samples(data, self.recipe)
        names = data.view.names_digest()
        words = {"view": self._declared[data.name].view.kind} | ({} if names is None else {"names": names})
        return Message({"informs": self._owned(data)}, {"samples": samples}, words)

    def _owned(self, data: SiteData) -> Tensor:
        """Return the labels whose head rows this site sends and is sent, and is averaged into: bool (labels,)."""
        if data.name not in self._owns:
            self._owns[data.name] = owned_labels(data, self.recipe)
        return self._owns[data.name]

    def _train(self, work: LocalWork) -> Message:
        self._keep_prior(work)
        recipe = self.recipe
        reply = train_locally(work, recipe.objective, recipe.site_solver, recipe.settings)
        return reply if SILENT in reply.words else self._complete(work, reply, self._tensors)

    def _complete(self, work: LocalWork, reply: Message, model: Mapping[str, Tensor], shared: bool = True) -> Message:
        """Add to a reply what the site shares of the trained model, unless another speaks for it; keep the rest."""
        reply.numbers["samples"] = _samples(work)
        if shared:
            trained = {name: model[name].detach() for name in self._shared}
            reply.tensors |= self.recipe.sharing.outgoing(self.layout, trained, self._owned(work.site))
        work.memory.put(PERSONAL, {name: model[name].detach().clone() for name in self._kept})
        return reply

    def _folded(self, works: Sequence[LocalWork], trained: CohortResult) -> list[Tensor] | None:
        """Return the mean of what a cohort shares, where its first site may speak for all of it."""
        if (
            not self.averages_cohorts
            or len(works) < 2
            or self.attack is not None
            or not can_average(self.recipe, [self._owned(work.site) for work in works])
        ):
            return None
        stack = dict(zip(self._trained, trained.stack, strict=True))
        return stacked_mean([stack[name] for name in self._shared], [_samples(works[at]) for at in trained.order])

    def _speak(self, replies: Sequence[Message], sites: Sequence[SiteData], means: Sequence[Tensor]) -> None:
        """Let the first site's reply hold the mean of all; the others name it."""
        first = min(range(len(sites)), key=lambda at: sites[at].name)
        for reply in replies:
            reply.words[REPRESENTATIVE] = sites[first].name
        speaker = replies[first]
        del speaker.words[REPRESENTATIVE]
        speaker.numbers[COHORT_SAMPLES] = sum(reply.numbers["samples"] for reply in replies)
        model = dict(zip(self._shared, means, strict=True))
        speaker.tensors |= self.recipe.sharing.outgoing(self.layout, model, self._owned(sites[first]))

    def _keep_prior(self, work: LocalWork) -> None:
        offset = self._use_prior(work)
        if offset is not None:
            work.memory.tensors[PRIOR] = offset

    def _evaluate(self, work: LocalWork) -> Message:
        own = self._declared[work.site.name]
        if PRIOR not in work.memory.tensors:
            self._use_prior(work)  # not stored: a site that never trains estimates it with every model
        headless = self.recipe.sharing.own_rows and not bool(self._owned(work.site).any())
        if headless or not len(own.test):  # a site without any head row has no model to evaluate
            return Message(numbers={"samples": 0})
        trained = work.view if type(work.view) is type(own.view) else own.view.with_offset(work.view.offset)
        view, train = evaluation_view(own, trained), work.site.train
        truth = None if own.test.truth is None else own.test.truth.cpu()
        judged = self.recipe.objective.evaluation_model(work, view)
        if judged is None:
            return Message(numbers={"samples": 0})
        model, task = judged
        names_of_its_own = task is not view  # then true classes and groups do not apply to its answers
        view, truth = task, None if names_of_its_own else truth
        logits = predict_logits(model, own.test.x).cpu()
        metrics, counts = site_metrics(view, logits, own.test.target.cpu(), truth)
        if not names_of_its_own:
            metrics |= self._treatment(own, view, logits)
        if view.ambiguous and train.truth is not None:
            metrics |= disambiguation(view, predict_logits(work.model, train.x), train.target, train.truth)
        prefix, numbers = f"{FIGURES}/", work.memory.numbers
        stored = {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}
        return Message({"confusion": counts}, {**finite(metrics), **finite(stored), "samples": len(own.test)})

    def _treatment(self, site: SiteData, view: View, logits: Tensor) -> dict[str, float]:
        """Return the fairness metrics of the site's model, if its test rows have classes and groups."""
        of, test = self.target, site.test
        truth = view.true_classes(test.target, test.truth)
        if of is None or test.group is None or truth is None:
            return {}
        true = None if test.group_truth is None else test.group_truth.cpu()
        predicted = view.adjusted(logits).argmax(-1)
        return fairness_figures(predicted, truth.cpu(), test.group.cpu(), true, of.group, of.label, of.groups)

    def _use_prior(self, work: LocalWork) -> Tensor | None:
        """Estimate the site prior with the current model and put it into the view; return None if the site has none."""
        kept = self.recipe.objective.confidences(work.memory)
        offset = estimate_prior(work.site, work.view, work.model, self.recipe.settings, kept)
        if offset is not None:
            work.view = work.view.with_offset(offset)
        return offset

    def _addressed(self, reply: Message, brief: Message) -> Message:
        reply.words["run"] = brief.words["run"]
        reply.numbers["round"] = brief.numbers["round"]
        return reply


def _samples(work: LocalWork) -> int:
    return len(work.site.train) if work.rows is None else len(work.rows)


def _apart(answer: Answer) -> Answer:
    """Return an answer with memory of its own: a reply holds the model's tensors, which the next site changes."""
    reply, kept = answer
    return Message({name: t.clone() for name, t in reply.tensors.items()}, reply.numbers, reply.words), kept


def training_view(site: SiteData, settings: TrainingSettings) -> View:
    """Return the view a site trains through: its own, or with the softmax over all labels."""
    return site.view.widened() if settings.softmax == "full" else site.view


def usable_samples(site: SiteData, recipe: Recipe) -> int:
    """Return how many samples a site can train on by a recipe: those with annotations, or all."""
    return int(site.view.annotated(site.train.target).sum()) if recipe.objective.uses_labels else len(site.train)


def owned_labels(site: SiteData, recipe: Recipe) -> Tensor:
    """Return the labels that a site informs by a recipe: bool (labels,)."""
    if recipe.sharing.owners == "all":
        return torch.ones(len(site.view.space), dtype=torch.bool)
    view = site.view if recipe.sharing.owners == "declared" else training_view(site, recipe.settings)
    return view.informs()


def site_view(site: SiteData, recipe: Recipe, memory: Message, brief: Message) -> View:
    """Return the view a site trains through, with the correspondence it was told or has found out, if that is its own.

    A declared correspondence is not looked at then: it may be there to tell how good the found one is.
    """
    return recipe.objective.site_view(training_view(site, recipe.settings), brief, memory)


def evaluation_view(site: SiteData, trained: View) -> View:
    """Return the view a site is judged through: its own task, whatever the softmax in training, with its prior."""
    if trained.estimated:
        return trained
    if site.view.offset is None or trained.offset is None:
        return site.view if trained.offset is None else trained
    return trained.with_offset(trained.offset.masked_fill(~torch.isfinite(site.view.offset), float("-inf")))


def annotated_rows(site: SiteData) -> Tensor | None:
    """Return the training rows whose annotations say anything; None when all do."""
    says = site.view.annotated(site.train.target)
    return None if bool(says.all()) else says.nonzero().flatten()


def estimate_prior(
    site: SiteData, view: View, model: nn.Module, settings: TrainingSettings, kept: Tensor | None = None
) -> Tensor | None:
    """Estimate a site's prior with a model and the view it has so far; None for a site without one.

    A site that keeps confidences of its samples' labels counts by these instead of by the model.
    """
    if not uses_prior(settings.prior, site.view):
        return None
    data = site.train
    sets = None if kept is None else view.candidate_sets(data.target)
    truth = view.true_classes(data.target)
    if truth is not None:
        confidences = torch.nn.functional.one_hot(truth[truth >= 0], len(view.space)).float()
    elif kept is not None and sets is not None:
        confidences = kept.to(sets.device) * sets  # some losses weigh the labels outside a set as well
    else:
        confidences = view.posterior(predict_logits(model, data.x), data.target)
    # Unknown labels stay unknown whatever is counted, so the view's own support is used, not the last prior's.
    return training_view(site, settings).prior_offset(confidences.cpu(), settings.prior_count)


def uses_prior(setting: str, view: View) -> bool:
    """Say whether a site of this view adds its own label frequencies to the logits."""
    return setting == "all" or (setting == "exact-sites" and view.exact)
