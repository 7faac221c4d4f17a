"""The logit offset with which a model expects each label as often as a site's annotations say."""

from __future__ import annotations

from fedaccord.labels.views.base import View
from fedaccord.lazy import Tensor, torch

STEPS = 10
PSEUDO_COUNT = 1.0  # keeps the offset of a label with few rows small


def fit_offset(view: View, logits: Tensor, target: Tensor) -> Tensor:
    """Return the offset of a view, (C,), from a model's logits (n, C) and the annotations of the same rows.

    Iterative scaling: each step adds the log ratio of the label counts that the annotations say and those that the
    model expects; for tags, the log ratio of their odds. A label that the site does not know remains unknown.
    """
    start = view.offset
    for _ in range(STEPS):
        wanted = view.posterior(logits, target).double().sum(0)
        expected = _answers(view, logits).double().sum(0)
        shift = _log_counts(view, wanted, len(logits)) - _log_counts(view, expected, len(logits))
        view = view.shifted(shift.float().cpu())
    assert view.offset is not None
    if not bool(view.offset.isnan().any()):
        return view.offset
    return torch.zeros(logits.shape[-1]) if start is None else start  # a model whose logits are not finite


def _answers(view: View, logits: Tensor) -> Tensor:
    """Return the probabilities of the labels, without the annotations: (n, C)."""
    adjusted = view.adjusted(logits)
    return torch.softmax(adjusted, -1) if view.one_label else torch.sigmoid(adjusted)


def _log_counts(view: View, counts: Tensor, rows: int) -> Tensor:
    smoothed = (counts + PSEUDO_COUNT).log()
    return smoothed if view.one_label else smoothed - (rows - counts + PSEUDO_COUNT).log()
