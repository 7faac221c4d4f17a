"""Metrics of predicted classes and tags: pure functions.

Scores of tags are probabilities (n, C), targets 1, 0 and -1 = not annotated; only annotated decisions count. Tags
without a positive sample are left out of `map`, `macro_f1`, `cp` and `cr` (docs/methods.md 7.8).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedaccord.evaluation.confusion import class_sums
from fedaccord.lazy import Tensor, torch

Metrics = dict[str, float]
NOT_ANNOTATED = -1
THRESHOLD = 0.5  # a tag of at least this probability is predicted


def confusion(truth: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Return the confusion counts: row = truth, column = prediction; samples of unknown truth are left out."""
    seen = truth >= 0
    pairs = truth[seen].long() * classes + predicted[seen].long()
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def confusions(truth: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Return the confusion counts of several sites, (sites, B) each: int64 (sites, classes, classes)."""
    sites = len(truth)
    first = torch.arange(sites)[:, None] * classes
    seen = truth >= 0
    cells = ((first + truth) * classes + predicted)[seen]
    return torch.bincount(cells, minlength=sites * classes * classes).reshape(sites, classes, classes)


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
    hits, totals = class_sums(counts)
    return {name: hit / total if total else None for name, hit, total in zip(names, hits, totals, strict=True)}


def _spread(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def tag_metrics(scores: Tensor, target: Tensor) -> dict[str, float]:
    """Return average precision, precision, recall and F1, by class and over all decisions, at threshold 0.5."""
    seen, present, said = target != NOT_ANNOTATED, target == 1, scores >= THRESHOLD
    if not bool(seen.any()):
        return {}
    accuracy = float((said == present)[seen].float().mean())
    right = (said & present).sum(0).double()  # present tags are annotated
    claimed, positive = (said & seen).sum(0).double(), present.sum(0).double()
    judged = positive > 0
    op, orec = _share(right.sum(), claimed.sum()), _share(right.sum(), positive.sum())
    overall = {"op": float(op), "or": float(orec), "of1": float(_f1(op, orec))}
    figures = {"accuracy": accuracy, "hamming": 1 - accuracy, **overall, "tags_judged": float(judged.sum())}
    if not bool(judged.any()):
        return figures
    cp = _share(right, claimed)[judged].mean()
    cr = _share(right, positive)[judged].mean()
    return figures | {
        "map": float(average_precision(scores, target)[judged].mean()),
        "o_map": float(average_precision(scores.reshape(-1, 1), target.reshape(-1, 1))[0]),
        "cp": float(cp),
        "cr": float(cr),
        "cf1": float(_f1(cp, cr)),
        "macro_f1": float(_f1(_share(right, claimed), _share(right, positive))[judged].mean()),
    }


def average_precision(scores: Tensor, target: Tensor) -> Tensor:
    """Return the average precision of each column, float64 (C,); NaN where no sample has the tag.

    `sum_n (recall_n - recall_{n-1}) precision_n` over decreasing thresholds; equal scores share a threshold.
    """
    seen = target != NOT_ANNOTATED
    ranked = scores.double().masked_fill(~seen, -1.0).sort(0, descending=True)  # tags without annotation rank last
    positive = (target == 1).gather(0, ranked.indices).double()
    judged = seen.gather(0, ranked.indices)
    is_last = torch.ones_like(judged)
    is_last[:-1] = ranked.values[1:] != ranked.values[:-1]
    place = torch.arange(1, len(scores) + 1, device=scores.device)[:, None].expand_as(judged)
    # Rank of the last sample with the same score.
    last = torch.where(is_last, place, len(scores)).flip(0).cummin(0).values.flip(0)
    precision = positive.cumsum(0).gather(0, last - 1) / last
    return (precision * positive).sum(0) / positive.sum(0)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.clamp(min=1), 0.0)


def _f1(precision: Tensor, recall: Tensor) -> Tensor:
    both = precision + recall
    return torch.where(both > 0, 2 * precision * recall / both.clamp(min=1e-300), 0.0)
