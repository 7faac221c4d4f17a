"""How good a model is at a site's own task, through the site's view."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedaccord.evaluation.metrics import NOT_ANNOTATED, Metrics, class_metrics
from fedaccord.labels.correlation import discrepancy, phi_of_scores, phi_of_sums, tag_sums
from fedaccord.labels.views.base import View

_MOST_COUNTS = 2**22  # confusion counts in memory at a time, 32 MB


def site_metrics(view: View, logits: Tensor, target: Tensor, truth: Tensor | None) -> tuple[Metrics, Tensor]:
    """Return metrics on a site's own task, and in the federation's classes if the truth is known; and confusion counts.

    `accuracy` is what the site itself can check: in its own groups at a coarse site, among the known classes at an
    exact one, against the truth at a candidate site (and without it `in_set`, the share inside the candidate set). A
    site with names of unknown meaning cannot be judged in them.
    """
    metrics: Metrics = {}
    counts = torch.zeros(len(view.answers), len(view.answers), dtype=torch.int64)
    if not len(logits):
        return metrics, counts
    if view.is_known:
        metrics, counts = view.judge(logits, target, truth)
        losses = view.nll(logits, target)
        if not view.judges_unannotated:  # a loss of zero would count as a perfect prediction
            losses = losses[view.annotated(target)]
        if len(losses):
            metrics["nll"] = float(losses.mean())
    if truth is not None and bool((truth >= 0).any()) and view.one_label and not view.exact:
        metrics["accuracy_classes"] = class_metrics(view.adjusted(logits), truth)[0]["accuracy"]
    return metrics, counts


def metrics_of_sites(
    views: Sequence[View], logits: Sequence[Tensor], targets: Sequence[Tensor], truths: Sequence[Tensor | None]
) -> list[tuple[Metrics, Tensor]]:
    """Return `site_metrics` of several sites, computed together if their views can be stacked and judged so."""
    keys = {view.stacking_key() if view.is_known else None for view in views}
    judged = None
    counted = sum(len(view.answers) ** 2 for view in views)
    if len(views) > 1 and len(keys) == 1 and None not in keys and counted <= _MOST_COUNTS:
        padded = pad_sequence(list(logits), batch_first=True)
        target = pad_sequence(list(targets), batch_first=True, padding_value=NOT_ANNOTATED)
        judged = type(views[0]).stack(views).judge_stack(padded, target)
    if judged is None:
        return [site_metrics(*each) for each in zip(views, logits, targets, truths, strict=True)]
    metrics, counts = judged
    rows = zip(*(values.tolist() for values in metrics.values()), strict=True)
    return [(dict(zip(metrics, row, strict=True)), count) for row, count in zip(rows, counts, strict=True)]


def disambiguation(view: View, logits: Tensor, target: Tensor, truth: Tensor) -> Metrics:
    """Return how often the true label is the most likely one that an annotation allows; empty without truth."""
    seen = truth >= 0
    if not bool(seen.any()):
        return {}
    found = view.posterior(logits, target).argmax(-1)
    return {"disambiguation": float((found == truth)[seen].float().mean())}


def correlation_error(scores: Tensor, target: Tensor) -> Metrics:
    """Return the root mean squared difference of the scores' correlations and the labels', over known pairs."""
    found, _ = phi_of_scores(scores, target != NOT_ANNOTATED)
    true, pairs = phi_of_sums(tag_sums(target))
    return {"correlation_error": discrepancy(found, true, pairs)} if bool(pairs.any()) else {}
