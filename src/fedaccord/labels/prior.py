"""The site prior: a site's own label frequencies as a logit offset, estimated at the site and never sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedaccord.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")

PRIOR = "prior"  # where a site's memory keeps its own


def log_prior(confidences: Tensor, known: Tensor, pseudo_count: float = 1.0) -> Tensor:
    """Return `log pi(y)`, smoothed, from P(label | sample) rows (n, C); minus infinity for labels not known.

    `pi(y) = (m + sum_i confidence_i(y)) / (m * number of known labels + n)` with the pseudo-count m.
    """
    counts = confidences.double().sum(0) + pseudo_count
    total = counts[known].sum()
    return (counts / total).log().masked_fill(~known, float("-inf")).to(torch.float32)


def relative_offset(target: Tensor, everybody: Tensor, pseudo_count: float = 20.0) -> Tensor:
    """Return by how much a site's log odds of tags differ from everybody's, from its annotations of 1, 0 and -1.

    The site's frequencies are smoothed by so many samples of everybody's, (C,), so a tag it hardly annotates has no
    offset.
    """
    present, annotated = (target == 1).sum(0).double(), (target >= 0).sum(0).double()
    shared = everybody.double().clamp(1e-6, 1 - 1e-6)
    own = (present + pseudo_count * shared) / (annotated + pseudo_count)
    return (torch.logit(own) - torch.logit(shared)).float()
