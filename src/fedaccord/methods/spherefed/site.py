"""The site's side of SphereFed (Dong et al. 2022) for tags: unit features fitted to a head that nobody trains.

The head is linear in features of length one; a tag's target is 1 or 0. As the model's outputs are logits, the fit `f`
stands there as `SCALE * (f - 0.5)`, so that a fit of one half is a probability of one half.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaccord.labels.views import NOT_ANNOTATED
from fedaccord.messages.message import Message
from fedaccord.models.network import Network
from fedaccord.models.predicting import CHUNK
from fedaccord.training.objectives import Objective
from fedaccord.training.work import Batch, LocalWork

SCALE = 4.0
MOMENTS, PRODUCTS = "feature moments", "feature tag products"


class SphereFit(Objective):
    """The squared distance of annotated tags from the fit of unit features by the frozen head."""

    def start(self, work: LocalWork) -> None:
        """Leave the head out of what trains."""
        head = {id(p) for p in cast(Network, work.model).head.parameters()}
        kept = [i for i, p in enumerate(work.parameters) if id(p) not in head]
        work.received = [work.received[i] for i in kept]
        work.parameters = [work.parameters[i] for i in kept]

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the sum over a sample's annotated tags, mean over the batch."""
        network = cast(Network, work.model)
        head = [p.detach() for p in network.head.parameters()]
        fit = F.linear(network.features(batch.x), *head) / SCALE + 0.5
        seen = batch.target != NOT_ANNOTATED
        return torch.where(seen, (fit - batch.target.to(fit.dtype)).square(), 0.0).sum(-1).mean()


@torch.no_grad()
def feature_moments(work: LocalWork) -> Message:
    """Answer, as a task, with `Phi^T Phi` and `Phi^T Y`; what is not annotated is taken as the model fits it."""
    network, data = cast(Network, work.model).eval(), work.site.train
    width, tags = network.head.in_features, data.target.shape[1]
    moments, products = torch.zeros(width, width), torch.zeros(width, tags)
    for x, target in zip(data.x.split(CHUNK), data.target.split(CHUNK), strict=True):
        features = network.features(x)
        fit = network.head(features) / SCALE + 0.5
        y = torch.where(target == NOT_ANNOTATED, fit, target.to(fit.dtype))
        moments += (features.T @ features).cpu()
        products += (features.T @ y).cpu()
    return Message({MOMENTS: moments, PRODUCTS: products})
