"""Metrics of predictions: pure functions of logits and true classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedaccord.lazy import Tensor, torch

Metrics = dict[str, float]


def confusion(truth: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Return the confusion counts: row = truth, column = prediction; samples of unknown truth are left out."""
    seen = truth >= 0
    pairs = truth[seen].long() * classes + predicted[seen].long()
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def class_metrics(logits: Tensor, truth: Tensor) -> tuple[Metrics, Tensor]:
    """Return accuracy and negative log-likelihood in the federation's classes, and the confusion counts."""
    seen = truth >= 0
    counts = confusion(truth, logits.argmax(-1), logits.shape[-1])
    if not bool(seen.any()):
        return {}, counts
    nll = torch.nn.functional.cross_entropy(logits[seen], truth[seen].long())
    return {"accuracy": float(counts.diagonal().sum() / counts.sum()), "nll": float(nll)}, counts


def accuracy(counts: Tensor) -> Metrics:
    """Return the accuracy of confusion counts; empty if nothing was counted."""
    return {"accuracy": float(counts.diagonal().sum() / counts.sum())} if int(counts.sum()) else {}


def finite(metrics: Metrics) -> Metrics:
    """Return the finite metrics, e.g. without the likelihood of logits that overflowed."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def summarise_sites(each: Mapping[str, Metrics]) -> dict[str, Metrics]:
    """Return the mean, standard deviation, minimum and maximum over the sites of every metric."""
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
    """Return the recall of each class; None for a class without test samples."""
    totals = counts.sum(1).tolist()
    hits = counts.diagonal().tolist()
    return {name: hit / total if total else None for name, hit, total in zip(names, hits, totals, strict=True)}


def _spread(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
