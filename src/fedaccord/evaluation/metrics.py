"""How good predictions are: pure functions of logits, annotations and, where it is known, the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedaccord.evaluation.tags import tag_metrics as tag_metrics
from fedaccord.labels.views import NOT_ANNOTATED, Candidates, Coarse, Tags, Unlabelled, View

Metrics = dict[str, float]


def confusion(truth: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Count pairs: row = truth, column = prediction; samples of unknown truth are left out."""
    seen = truth >= 0
    pairs = truth[seen].long() * classes + predicted[seen].long()
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def class_metrics(logits: Tensor, truth: Tensor) -> tuple[Metrics, Tensor]:
    """Judge a model in the federation's classes: accuracy, negative log-likelihood, and the confusion counts."""
    seen = truth >= 0
    counts = confusion(truth, logits.argmax(-1), logits.shape[-1])
    if not bool(seen.any()):
        return {}, counts
    nll = torch.nn.functional.cross_entropy(logits[seen], truth[seen].long())
    return {"accuracy": float(counts.diagonal().sum() / counts.sum()), "nll": float(nll)}, counts


def site_metrics(view: View, logits: Tensor, target: Tensor, truth: Tensor | None) -> tuple[Metrics, Tensor]:
    """Judge a model on a site's own task, and in the federation's classes where the truth is known.

    `accuracy` is what the site itself can check: in its own groups at a coarse site, among the classes it knows at an
    exact one, against the truth (or, without it, inside the candidate set: `in_set`) at a candidate site. A site whose
    coarse names nobody knows the meaning of cannot be judged in them.
    """
    metrics: Metrics = {}
    names = len(view.answers)
    counts = torch.zeros(names, names, dtype=torch.int64)
    if not len(logits):
        return metrics, counts
    can_answer = not isinstance(view, Coarse) or view.is_known
    if isinstance(view, Tags):
        metrics = tag_metrics(view.answer(logits), target)
    elif can_answer:
        predicted = view.answer(logits).argmax(-1)
        if isinstance(view, Candidates):
            metrics["in_set"] = float(target.gather(1, predicted[:, None]).float().mean())
            judge = truth if truth is not None else torch.full((len(logits),), NOT_ANNOTATED)
        else:
            judge = target
        counts = confusion(judge, predicted, names)
        if int(counts.sum()):
            metrics["accuracy"] = float(counts.diagonal().sum() / counts.sum())
    losses = view.nll(logits, target)
    if target.dim() == 1:  # a sample without annotation has loss zero, which would count as a perfect prediction
        losses = losses[target != NOT_ANNOTATED]
    if len(losses) and can_answer:
        metrics["nll"] = float(losses.mean())
    if truth is not None and bool((truth >= 0).any()) and isinstance(view, Coarse | Candidates | Unlabelled):
        inside, _ = class_metrics(view.adjusted(logits), truth)
        metrics["accuracy_classes"] = inside["accuracy"]
    return metrics, counts


def disambiguation(view: View, logits: Tensor, target: Tensor, truth: Tensor) -> Metrics:
    """Say how often the true label is the most likely one of a sample's candidates; nothing where no truth is known."""
    seen = truth >= 0
    if not bool(seen.any()):
        return {}
    found = view.posterior(logits, target).argmax(-1)
    return {"disambiguation": float((found == truth)[seen].float().mean())}


def finite(metrics: Metrics) -> Metrics:
    """Leave out figures that are no numbers, such as the likelihood of logits that overflowed."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def summarise_sites(each: Mapping[str, Metrics]) -> dict[str, Metrics]:
    """Return mean, standard deviation, min and max over the sites, for every metric that some site has."""
    names = sorted({name for metrics in each.values() for name in metrics} - {"samples"})
    columns = {name: [m[name] for m in each.values() if math.isfinite(m.get(name, math.nan))] for name in names}
    columns = {name: values for name, values in columns.items() if values}
    return {
        "mean": {name: sum(v) / len(v) for name, v in columns.items()},
        "std": {name: _spread(v) for name, v in columns.items()},
        "min": {name: min(v) for name, v in columns.items()},
        "max": {name: max(v) for name, v in columns.items()},
    }


def recall(counts: Tensor, names: Sequence[str]) -> dict[str, float | None]:
    """Return the share of each class that was found; None where the test data has none of it."""
    totals = counts.sum(1).tolist()
    hits = counts.diagonal().tolist()
    return {name: hit / total if total else None for name, hit, total in zip(names, hits, totals, strict=True)}


def _spread(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
