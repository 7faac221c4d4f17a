"""pFedPLL's weights: a site counts the more, the further its features are from those of the model it was sent."""

from __future__ import annotations

import torch
from torch import Tensor


def kl_distances(features: Tensor, reference: Tensor) -> Tensor:
    """Return the mean over inputs of `KL(softmax features_k || softmax reference)`, in double.

    `features` is (sites, inputs, width), `reference` (inputs, width). Features are no distributions; the softmax over
    the width is our reading (methods.md 5.4).
    """
    ours, theirs = torch.log_softmax(features.double(), -1), torch.log_softmax(reference.double(), -1)
    return (ours.exp() * (ours - theirs)).sum(-1).mean(-1)


def kl_scores(features: Tensor, reference: Tensor) -> Tensor:
    """Return the sites' weights, which sum to one: their distances, or all alike where nobody moved.

    A site whose features are not finite gets none.
    """
    distances = kl_distances(features, reference)
    # Rounding may bring a distance of zero below it.
    distances = torch.where(torch.isfinite(distances), distances, 0.0).clamp(min=0.0)
    total = distances.sum()
    if not float(total) > 0:
        return torch.full_like(distances, 1 / len(distances))
    return distances / total
