"""The host of sites: runs their tasks on one model, which all sites of a process share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fedaccord.data.sensitive import Target
from fedaccord.data.site_data import SiteData
from fedaccord.engines.engine import Answer, Job
from fedaccord.errors import FedAccordError
from fedaccord.federation.attack import Attack
from fedaccord.federation.branch import ROUNDS, STAYS, memory_after, memory_in
from fedaccord.federation.examination import RESAMPLED, examine_site
from fedaccord.federation.final_model import KEEP, with_final_model
from fedaccord.federation.recipe import Recipe, SiteTask
from fedaccord.federation.site_evaluation import Trial, replies_of, reply_of, start_trial
from fedaccord.federation.site_views import (
    annotated_rows,
    answering_offset,
    estimate_prior,
    faded,
    owned_labels,
    prior_fades,
    site_view,
    usable_samples,
)
from fedaccord.federation.state import MEANING, UNKNOWN
from fedaccord.federation.streaming import COHORT_SAMPLES, REPRESENTATIVE, CohortMeans, stacked_mean
from fedaccord.labels.views.likelihoods import PRIOR
from fedaccord.messages.message import Message, SiteId
from fedaccord.messages.names import SILENT
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network, use_channels_last
from fedaccord.models.stacked import StackedForward, stacked_forward
from fedaccord.seeds import derive
from fedaccord.training.cohort import (
    MOST_VALUES,
    CohortResult,
    Terms,
    cohort_key,
    is_batchable,
    split_by_size,
    terms_of,
    train_together,
)
from fedaccord.training.local import seeded, start, train_locally
from fedaccord.training.usual_work import rate_if_auto
from fedaccord.training.work import LocalWork

PERSONAL = "personal"  # prefix in a site's memory: the parts of the model that are not shared


class SiteHost:
    """Runs tasks from a site's data, brief and memory; sites cannot see each other's data."""

    def __init__(
        self,
        sites: Mapping[SiteId, SiteData],
        network: Network,
        recipe: Recipe,
        seed: int,
        target: Target | None = None,
        attack: Attack | None = None,
        hostile: Collection[SiteId] = (),
        cohort_means: CohortMeans = "never",
    ) -> None:
        self.network, self.recipe, self.seed, self.target, self.attack = network, recipe, seed, target, attack
        self.cohort_means = cohort_means  # only if the server is on this machine, see `streaming`
        self._declared = dict(sites)  # without attacks, for the evaluation
        self.sites = {n: attack.poison(s, target) if attack and n in hostile else s for n, s in sites.items()}
        self.informs = {name: owned_labels(site, recipe) for name, site in self.sites.items()}  # bool (labels,) each
        self.layout = Layout.of(network)
        self.device = next(iter(network.parameters())).device
        use_channels_last(self.network)
        self._tensors = dict(network.named_parameters()) | dict(network.named_buffers())
        self._initial = {name: t.detach().clone() for name, t in self._tensors.items()}
        self._parameters: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
        self._trainable = [name for name, p in network.named_parameters() if p.requires_grad]
        self._shared = recipe.sharing.names(self.layout)
        self._personal = tuple(name for name in self._tensors if name not in set(self._shared))
        self._tasks: dict[str, SiteTask] = {"train": self._train, "evaluate": self._evaluate, "examine": self._examine}
        self._tasks |= recipe.tasks
        self._forward = stacked_forward(network)
        self._rows: dict[SiteId, Tensor | None] = {}
        self._rates: dict[SiteId, float | None] = {}  # learning rates for the kind of the sites' inputs

    def handle(self, task: str, site: SiteId, brief: Message, memory: Message) -> tuple[Message, Message]:
        """Run one task and return the reply and the site's new memory."""
        if task == "join":
            return self._addressed(self._join(self.sites[site]), brief), memory
        if task == KEEP:
            return self._addressed(Message(), brief), with_final_model(memory, brief)
        if task not in self._tasks:
            raise FedAccordError(f"site '{site}' has no task '{task}'")
        work = self._work(site, brief, memory_in(brief, memory))
        with seeded(derive(self.seed, "task", task, site, work.round)):
            reply = self._tasks[task](work)
        return self._addressed(reply, brief), memory_after(brief, memory, work.memory)

    def handle_together(self, task: str, jobs: Sequence[Job]) -> list[Answer]:
        """Return the results of `handle` for several sites, which run as one program if the recipe allows it."""
        if task == "evaluate":
            site, brief, _ = jobs[0]
            with seeded(derive(self.seed, "task", task, site, int(brief.numbers["round"]))):
                return self._evaluate_together(jobs)
        terms, forward = terms_of(self.recipe.objective), self._forward
        views_stack = all(self.sites[site].view.stacking_key() is not None for site, _, _ in jobs)
        batchable = task == "train" and views_stack and is_batchable(self.recipe.site_solver)
        if batchable and terms is not None and forward is not None:
            return self._train_together(jobs, terms, forward)
        return [_copied(self.handle(task, *job)) for job in jobs]

    def _train_together(self, jobs: Sequence[Job], terms: Terms, forward: StackedForward) -> list[Answer]:
        works: list[LocalWork] = []
        replies: dict[SiteId, Message] = {}
        cohorts: dict[tuple[object, ...], list[LocalWork]] = {}
        for site, brief, memory in jobs:
            work = self._work(site, brief, memory_in(brief, memory), works[-1] if works else None)
            works.append(work)
            work.random = torch.Generator().manual_seed(derive(self.seed, "task", "train", site, work.round))
            self._use_prior(work)
            silent = start(work, self.recipe.objective)
            if silent is not None:
                replies[site] = silent
            else:
                cohorts.setdefault(cohort_key(work, terms), []).append(work)
        recipe = self.recipe
        for cohort in (part for works in cohorts.values() for part in split_by_size(works, terms, MOST_VALUES)):
            trained = train_together(cohort, recipe.objective, recipe.site_solver, recipe.settings, forward)
            means = self._cohort_mean(cohort, trained)
            for work, reply in zip(cohort, trained.replies, strict=True):
                model = dict(zip(self._trainable, work.parameters, strict=True))
                replies[work.site.name] = self._complete(work, reply, model, shared=means is None)
            if means is not None:
                self._represent(trained.replies, [work.site for work in cohort], means)
        return [
            (self._addressed(replies[work.site.name], work.brief), memory_after(work.brief, memory, work.memory))
            for work, (_, _, memory) in zip(works, jobs, strict=True)
        ]

    def _work(self, site: SiteId, brief: Message, memory: Message, last: LocalWork | None = None) -> LocalWork:
        """Return a site's work with its model loaded; `last` is the work whose model is loaded now."""
        data = self.sites[site]
        if last is not None and self._same_model(brief, last):
            received = last.received
        else:
            self._load(data, brief, memory)
            received = [p.detach().clone() for p in self._parameters]
        if site not in self._rows:
            self._rows[site] = annotated_rows(data) if self.recipe.objective.uses_labels else None
        settings = self.recipe.settings
        if site not in self._rates:
            self._rates[site] = rate_if_auto(settings, data.train.x)
        round_ = int(brief.numbers["round"])
        view = site_view(data, self.recipe, memory, brief)
        if PRIOR in memory.tensors:
            view = view.with_offset(memory.tensors[PRIOR])
        return LocalWork(
            site=data,
            view=view,
            model=self.network,
            brief=brief,
            memory=Message(dict(memory.tensors), dict(memory.numbers), dict(memory.words)),
            round=round_,
            lr=settings.lr_at(round_, self._rates[site], int(brief.numbers.get(ROUNDS, 0)) or None),
            parameters=self._parameters,
            received=received,
            seed=self.seed,
            initial=self._initial,
            rows=self._rows[site],
        )

    def _same_model(self, brief: Message, last: LocalWork) -> bool:
        """Return whether a site receives the same model as the last one, compared by identity of the tensors."""
        if self.recipe.sharing.own_rows or self._personal or STAYS in brief.words:
            return False
        return all(last.brief.tensors.get(name) is tensor for name, tensor in brief.tensors.items())

    @torch.no_grad()
    def _load(self, data: SiteData, brief: Message, memory: Message) -> None:
        """Load a site's model: the initial one, overwritten by the site's personal and received tensors."""
        values = dict(self._initial)
        values.update(memory.select(PERSONAL))
        known = self.informs[data.name]
        values.update(self.recipe.sharing.incoming(self.layout, brief.tensors, self._initial, known))
        names = list(values)
        torch._foreach_copy_([self._tensors[n] for n in names], [values[n].to(self.device) for n in names])

    def _join(self, data: SiteData) -> Message:
        samples = usable_samples(data, self.recipe)
        names = data.view.names_digest()
        words = {"view": self._declared[data.name].view.kind} | ({} if names is None else {"names": names})
        if not data.view.is_known:
            words[MEANING] = UNKNOWN
        return Message({"informs": self.informs[data.name]}, {"samples": samples}, words)

    def _train(self, work: LocalWork) -> Message:
        self._use_prior(work)
        recipe = self.recipe
        reply = train_locally(work, recipe.objective, recipe.site_solver, recipe.settings)
        return reply if SILENT in reply.words else self._complete(work, reply, self._tensors)

    def _complete(self, work: LocalWork, reply: Message, model: Mapping[str, Tensor], shared: bool = True) -> Message:
        """Add the shared parts of the trained model to a reply, if `shared`, and store the personal parts."""
        reply.numbers["samples"] = _samples(work)
        stays = STAYS in work.brief.words
        if stays:
            reply.numbers.clear()  # its loss would tell how well the site does without the others
        if shared and not stays:
            trained = {name: model[name].detach() for name in self._shared}
            reply.tensors |= self.recipe.sharing.outgoing(self.layout, trained, self.informs[work.site.name])
        personal = tuple(model) if stays else self._personal
        work.memory.put(PERSONAL, {name: model[name].detach().clone() for name in personal})
        return reply

    def _cohort_mean(self, works: Sequence[LocalWork], trained: CohortResult) -> list[Tensor] | None:
        """Return the mean of a cohort's shared tensors; None if each site has to reply with its own."""
        if STAYS in works[0].brief.words:
            return None
        first = self.informs[works[0].site.name]
        same_labels = all(torch.equal(self.informs[work.site.name], first) for work in works)
        if len(works) < 2 or self.cohort_means == "never" or not (self.cohort_means == "always" or same_labels):
            return None
        stack = dict(zip(self._trainable, trained.stack, strict=True))
        weights = [_samples(works[index]) for index in trained.order]
        return stacked_mean([stack[name] for name in self._shared], weights)

    def _represent(self, replies: Sequence[Message], sites: Sequence[SiteData], means: Sequence[Tensor]) -> None:
        """Add the mean of a cohort to the reply of its first site, and that site's name to the others."""
        first = min(range(len(sites)), key=lambda index: sites[index].name)
        for reply in replies:
            reply.words[REPRESENTATIVE] = sites[first].name
        representative = replies[first]
        del representative.words[REPRESENTATIVE]
        representative.numbers[COHORT_SAMPLES] = sum(reply.numbers["samples"] for reply in replies)
        model = dict(zip(self._shared, means, strict=True))
        representative.tensors |= self.recipe.sharing.outgoing(self.layout, model, self.informs[sites[first].name])

    def _evaluate(self, work: LocalWork) -> Message:
        return reply_of(self._trial(work), self.target)

    def _examine(self, work: LocalWork) -> Message:
        reply, resampled = examine_site(self._trial(work), work.brief, self.seed)
        if resampled is not None:
            work.memory.tensors[RESAMPLED] = resampled
        return reply

    def _trial(self, work: LocalWork) -> Trial | None:
        """Return how a site is evaluated with the loaded model; None if there is nothing to evaluate."""
        name = work.site.name
        if self.recipe.sharing.own_rows and not bool(self.informs[name].any()):  # it has no head
            return None
        if PRIOR not in work.memory.tensors:  # not stored: it is found for every model anew
            offset = answering_offset(work.site, work.view, work.model, self.recipe.settings)
            work.view = work.view if offset is None else work.view.with_offset(offset)
        return start_trial(work, self._declared[name], self.recipe)

    def _evaluate_together(self, jobs: Sequence[Job]) -> list[Answer]:
        """Return the results of `_evaluate` for several sites; those with the same model share a forward pass."""
        works: list[LocalWork] = []
        replies: dict[SiteId, Message] = {}
        waiting: list[Trial] = []  # trials of the loaded model

        def evaluate() -> None:
            for trial, reply in zip(waiting, replies_of(waiting, self.target), strict=True):
                replies[trial.site.name] = reply
            waiting.clear()

        for site, brief, memory in jobs:
            last = works[-1] if works else None
            if last is not None and waiting and not self._same_model(brief, last):
                evaluate()  # before the next model is loaded
            work = self._work(site, brief, memory, last)
            works.append(work)
            trial = self._trial(work)
            if trial is not None and trial.model is self.network:
                waiting.append(trial)
            else:
                replies[site] = reply_of(trial, self.target)
        if waiting:
            evaluate()
        return [(self._addressed(replies[work.site.name], work.brief), work.memory) for work in works]

    def _use_prior(self, work: LocalWork) -> None:
        """Estimate the site's prior with the loaded model for training, if the site has one.

        A prior that remains is stored for the evaluation.

        A model that stays at the site has no frequencies of other sites to be freed from, and a prior that is estimated
        by such a model alone would confirm its errors.
        """
        if STAYS in work.brief.words:
            return
        confidences = self.recipe.objective.confidences(work.memory)
        rows = self.recipe.objective.prior_rows(work)
        settings = self.recipe.settings
        offset = estimate_prior(work.site, work.view, work.model, settings, confidences, rows)
        if offset is None:
            return
        if prior_fades(settings.prior, work.site.view):
            rounds = int(work.brief.numbers.get(ROUNDS, 0)) or settings.rounds
            offset = faded(offset, (work.round - 1) / rounds)
        else:
            work.memory.tensors[PRIOR] = offset
        work.view = work.view.with_offset(offset)

    def _addressed(self, reply: Message, brief: Message) -> Message:
        reply.words["run"] = brief.words["run"]
        reply.numbers["round"] = brief.numbers["round"]
        return reply


def _samples(work: LocalWork) -> int:
    return len(work.site.train) if work.rows is None else len(work.rows)


def _copied(answer: Answer) -> Answer:
    """Return a result with copies of the reply's tensors, because the next site overwrites the model's."""
    reply, memory = answer
    return Message({name: t.clone() for name, t in reply.tensors.items()}, reply.numbers, reply.words), memory
