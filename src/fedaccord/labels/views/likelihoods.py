"""Numerically safe parts of log-likelihoods."""

from __future__ import annotations

from fedaccord.lazy import Tensor, torch

HUGE = 1e38  # logits beyond this count as infinite


def below_top(z: Tensor) -> Tensor:
    """Shift each row so that its largest logit is zero: a log-likelihood ratio of large logits keeps its digits.

    Differences too large for a float are clamped: an infinity that excludes no label would become NaN.
    """
    z = z.clamp(min=-HUGE, max=HUGE).where(z.isfinite(), z)
    return z - z.detach().amax(-1, keepdim=True)


def log_mask(mask: Tensor) -> Tensor:
    """Return zero where the mask is true, minus infinity elsewhere."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, float("-inf"))
