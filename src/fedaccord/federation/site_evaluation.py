"""A site's evaluation of the model that it received, on its own test samples.

Sites that received the same model are evaluated as one program: a model of small sites costs more in Python than in
arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaccord.data.sensitive import Target
from fedaccord.data.site_data import SiteData
from fedaccord.evaluation.confusion import to_send
from fedaccord.evaluation.groups import fairness_figures
from fedaccord.evaluation.metrics import Metrics, finite
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.site_views import evaluation_view
from fedaccord.labels.judging import disambiguation, metrics_of_sites, site_metrics
from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.messages.names import CONFUSION
from fedaccord.models.network import predict_logits
from fedaccord.training.work import FIGURES, LocalWork


@dataclass(frozen=True)
class Trial:
    """The model and the view that a site is evaluated with."""

    work: LocalWork
    site: SiteData  # as declared: without attacks
    view: View
    model: nn.Module
    is_other_task: bool  # true classes and groups do not apply to its predictions

    @property
    def truth(self) -> Tensor | None:
        """The true classes of the test samples, if they are known and apply."""
        truth = self.site.test.truth
        return None if truth is None or self.is_other_task else truth.cpu()

    @property
    def target(self) -> Tensor:
        """The annotations of the test samples."""
        return self.site.test.target.cpu()


def start_trial(work: LocalWork, declared: SiteData, recipe: Recipe) -> Trial | None:
    """Return the trial of a site whose model is loaded; None if there is nothing to evaluate."""
    if not len(declared.test):
        return None
    same_kind = type(work.view) is type(declared.view)
    trained = work.view if same_kind else declared.view.with_offset(work.view.offset)
    view = evaluation_view(declared, trained)
    evaluated = recipe.objective.evaluation_model(work, view)
    if evaluated is None:
        return None
    model, task = evaluated
    return Trial(work, declared, task, model, task is not view)


def reply_of(trial: Trial | None, target: Target | None) -> Message:
    """Return the metrics of one site, without any if there is nothing to evaluate."""
    if trial is None:
        return Message(numbers={"samples": 0})
    logits = predict_logits(trial.model, trial.site.test.x).cpu()
    return _reply(trial, logits, site_metrics(trial.view, logits, trial.target, trial.truth), target)


def replies_of(trials: Sequence[Trial], target: Target | None) -> list[Message]:
    """Return the metrics of several sites with the same model."""
    x = torch.cat([trial.site.test.x for trial in trials])
    logits = predict_logits(trials[0].model, x).cpu().split([len(trial.site.test) for trial in trials])
    views, targets = [trial.view for trial in trials], [trial.target for trial in trials]
    judged = metrics_of_sites(views, logits, targets, [trial.truth for trial in trials])
    return [_reply(*each, target) for each in zip(trials, logits, judged, strict=True)]


def _reply(trial: Trial, logits: Tensor, judged: tuple[Metrics, Tensor], target: Target | None) -> Message:
    metrics, counts = judged
    work, view, train = trial.work, trial.view, trial.work.site.train
    if target is not None and not trial.is_other_task:
        metrics |= _fairness(trial.site, view, logits, target)
    if view.ambiguous and train.truth is not None:
        metrics |= disambiguation(view, predict_logits(work.model, train.x), train.target, train.truth)
    prefix = f"{FIGURES}/"
    stored = {k.removeprefix(prefix): v for k, v in work.memory.numbers.items() if k.startswith(prefix)}
    return Message({CONFUSION: to_send(counts)}, {**finite(metrics), **finite(stored), "samples": len(trial.site.test)})


def _fairness(site: SiteData, view: View, logits: Tensor, target: Target) -> Metrics:
    """Return the fairness metrics of a site's model, if classes and groups of its test part are known."""
    test = site.test
    truth = view.true_classes(test.target, test.truth)
    if test.group is None or truth is None:
        return {}
    predicted, group = view.adjusted(logits).argmax(-1), test.group.cpu()
    group_truth = None if test.group_truth is None else test.group_truth.cpu()
    return fairness_figures(predicted, truth.cpu(), group, group_truth, target.group, target.label, target.groups)
