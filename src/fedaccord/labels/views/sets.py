"""How a model is judged by annotations that allow several labels: inside the set, or against the truth if it is known.

The default of every view; views that can say more override `judge` and `examine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedaccord.evaluation.intervals import Resampling
from fedaccord.evaluation.metrics import NOT_ANNOTATED, accuracy, confusion
from fedaccord.evaluation.quality import Quality, class_quality, share_quality
from fedaccord.lazy import Tensor, np, torch

if TYPE_CHECKING:
    from fedaccord.labels.views.base import View


def judge(view: View, logits: Tensor, target: Tensor, truth: Tensor | None) -> tuple[dict[str, float], Tensor]:
    """Return the share of predictions that the annotations allow and, with the truth, accuracy and confusion counts."""
    predicted = view.answer(logits).argmax(-1)
    judged = torch.full_like(predicted, NOT_ANNOTATED) if truth is None else truth
    counts = confusion(judged, predicted, len(view.answers))
    return {"in_set": float(allowed(view, target, predicted).float().mean())} | accuracy(counts), counts


def examine(
    view: View, logits: Tensor, target: Tensor, truth: Tensor | None, trained: Tensor, resampling: Resampling
) -> Quality:
    """Return the figures against the truth if it is known, else the share of predictions inside the sets."""
    probabilities, guess = view.answer(logits), most_named(view, trained)
    if truth is not None and bool((truth >= 0).any()):
        return class_quality(probabilities.numpy(), truth.numpy(), guess, resampling)
    guessed = np.zeros(len(target), dtype=bool)
    if guess is not None:
        guessed = allowed(view, target, torch.full((len(target),), guess)).numpy()
    return share_quality("in_set", allowed(view, target, probabilities.argmax(-1)).numpy(), guessed, resampling)


def allowed(view: View, target: Tensor, labels: Tensor) -> Tensor:
    """Return whether each annotation allows the label in that row: bool (B,)."""
    return torch.isfinite(view.evidence(target).gather(-1, labels[:, None])).squeeze(-1)


def most_named(view: View, target: Tensor) -> int | None:
    """Return the most frequent answer of annotations; each of several names in one counts in part. None without any."""
    named = view.names_in(target.cpu()).double()
    shares = (named / named.sum(1, keepdim=True).clamp(min=1)).sum(0)
    return int(shares.argmax()) if len(named) and float(shares.max()) > 0 else None
