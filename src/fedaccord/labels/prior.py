"""The site prior: a site's label frequencies as a logit offset, estimated at the site and never sent."""

from __future__ import annotations

from fedaccord.lazy import Tensor, torch

PRIOR = "prior"  # name of the prior in a site's memory


def log_prior(confidences: Tensor, known: Tensor, pseudo_count: float = 1.0) -> Tensor:
    """Return smoothed `log pi(y)` from P(label | sample) rows (n, C); minus infinity for unknown labels.

    `pi(y) = (m + sum_i confidence_i(y)) / (m * number of known labels + n)` with the pseudo-count m.
    """
    counts = confidences.double().sum(0) + pseudo_count
    total = counts[known].sum()
    return (counts / total).log().masked_fill(~known, float("-inf")).to(torch.float32)


def relative_offset(target: Tensor, everybody: Tensor, pseudo_count: float = 20.0) -> Tensor:
    """Return the difference of a site's log odds of tags, from annotations of 1, 0 and -1, from those of all sites.

    The site's frequencies are smoothed by `pseudo_count` samples with the frequencies of all sites, (C,), so that a tag
    with few annotations has no offset.
    """
    present, annotated = (target == 1).sum(0).double(), (target >= 0).sum(0).double()
    shared = everybody.double().clamp(1e-6, 1 - 1e-6)
    own = (present + pseudo_count * shared) / (annotated + pseudo_count)
    return (torch.logit(own) - torch.logit(shared)).float()
