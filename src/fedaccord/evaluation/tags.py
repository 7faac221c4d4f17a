"""Metrics of predicted tags (docs/methods.md 7.8): only annotated decisions count.

Scores are probabilities (n, C), targets 1, 0 and -1 = not annotated. Classes without a positive sample are left out of
`map`, `cp` and `cr`.
"""

from __future__ import annotations

from fedaccord.lazy import Tensor, torch

NOT_ANNOTATED = -1
THRESHOLD = 0.5  # a tag of at least this probability is predicted


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
