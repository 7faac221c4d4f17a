"""The site's side of SphereFed for tags: features of unit length are fitted to a frozen head.

The targets are 1 and 0. The model outputs logits, so a fit `f` is stored as `SCALE * (f - 0.5)`: a fit of one half is a
probability of one half.
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
MOMENTS, PRODUCTS = "feature moments", "feature tag products"  # H^T H and H^T Y


class SphereFit(Objective):
    """Squared error of the frozen head's fit on annotated tags."""

    def start(self, work: LocalWork) -> None:
        """Exclude the head from the trained parameters."""
        head = {id(p) for p in cast(Network, work.model).head.parameters()}
        trained = [i for i, p in enumerate(work.parameters) if id(p) not in head]
        work.received = [work.received[i] for i in trained]
        work.parameters = [work.parameters[i] for i in trained]

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the sum over annotated tags, averaged over the batch."""
        network = cast(Network, work.model)
        head = [p.detach() for p in network.head.parameters()]
        fit = F.linear(network.features(batch.x), *head) / SCALE + 0.5
        annotated = batch.target != NOT_ANNOTATED
        return torch.where(annotated, (fit - batch.target.to(fit.dtype)).square(), 0.0).sum(-1).mean()


@torch.no_grad()
def feature_moments(work: LocalWork) -> Message:
    """Return `H^T H` and `H^T Y` of the features; missing annotations are replaced by the model's fit."""
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
