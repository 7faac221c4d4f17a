"""pFedPLL's weights: a site counts the more, the further its features are from those of the model it was sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.seeds import derive

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

CHUNK = 1024


@dataclass(frozen=True)
class KLWeights:
    """Weighs a site by how far its features on the server's inputs are from those of the model it was sent."""

    inputs: int = 640  # drawn anew in each round

    def __call__(self, server: Server, replies: Replies) -> Replies:
        """Return the replies with their scores as weights; without inputs they keep their sample counts."""
        x = self._draw(server)
        if x is None:
            return replies
        features = torch.stack([_features(server, row, x) for row in replies.matrix])
        return replace(replies, weights=kl_scores(features, _features(server, replies.previous, x)).cpu())

    def _draw(self, server: Server) -> Tensor | None:
        x = server.unlabelled
        if x is None or not len(x):
            return None
        generator = torch.Generator().manual_seed(derive(server.seed, "kl score", server.state.round + 1))
        return x[torch.randperm(len(x), generator=generator)[: self.inputs].sort().values]


def warn_without_inputs(server: Server) -> None:
    """Say in the first round that there is nothing to compute scores on."""
    if server.state.round == 0 and (server.unlabelled is None or not len(server.unlabelled)):
        reason = "the server has no unlabelled data, so sites are weighed by their samples; give [server] unlabelled"
        server.drop("", "KL score", "", reason)


def kl_distances(features: Tensor, reference: Tensor) -> Tensor:
    """Return the mean over inputs of `KL(softmax features_k || softmax reference)`, in double.

    `features` is (sites, inputs, width), `reference` (inputs, width). Features are no distributions; the softmax over
    the width is our reading (docs/methods.md 5.11).
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


@torch.no_grad()
def _features(server: Server, model: Tensor, x: Tensor) -> Tensor:
    server.layout.load(server.network, model)
    network = server.network.eval()
    return torch.cat([network.features(part) for part in x.split(CHUNK)])
