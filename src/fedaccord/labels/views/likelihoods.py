"""Numerically safe parts of log-likelihoods, and the site prior.

The site prior is a site's label frequencies as a logit offset, estimated at the site and never sent.
"""

from __future__ import annotations

from fedaccord.lazy import Tensor, torch

HUGE = 1e38  # logits beyond this count as infinite
PRIOR = "prior"  # name of the prior in a site's memory


def below_top(z: Tensor) -> Tensor:
    """Shift each row so that its largest logit is zero: a log-likelihood ratio of large logits keeps its digits.

    Differences too large for a float are clamped: an infinity that excludes no label would become NaN.
    """
    z = z.clamp(min=-HUGE, max=HUGE).where(z.isfinite(), z)
    return z - z.detach().amax(-1, keepdim=True)


def log_mask(mask: Tensor) -> Tensor:
    """Return zero where the mask is true, minus infinity elsewhere."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, float("-inf"))


def log_prior(confidences: Tensor, known: Tensor, pseudo_count: float = 1.0) -> Tensor:
    """Return smoothed `log pi(y)` from P(label | sample) rows (n, C); minus infinity for unknown labels.

    `pi(y) = (m + sum_i confidence_i(y)) / (m * number of known labels + n)` with the pseudo-count m.
    """
    counts = confidences.double().sum(0) + pseudo_count
    total = counts[known].sum()
    return (counts / total).log().masked_fill(~known, float("-inf")).to(torch.float32)


def relative_offset(target: Tensor, everybody: Tensor, pseudo_count: float = 20.0) -> Tensor:
    """Return a site's log odds of tags, estimated from annotations 1, 0 and -1, minus those of all sites.

    The site's frequencies are smoothed by `pseudo_count` samples with the frequencies of all sites, (C,), so that a tag
    with few annotations has no offset.
    """
    present, annotated = (target == 1).sum(0).double(), (target >= 0).sum(0).double()
    shared = everybody.double().clamp(1e-6, 1 - 1e-6)
    own = (present + pseudo_count * shared) / (annotated + pseudo_count)
    return (torch.logit(own) - torch.logit(shared)).float()
