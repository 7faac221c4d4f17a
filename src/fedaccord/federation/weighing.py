"""How much each reply counts, where that is not by its number of samples: the `weigh` slot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.kl_score import kl_scores
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
        return replace(replies, weights=kl_scores(features, _features(server, replies.previous, x)))

    def _draw(self, server: Server) -> Tensor | None:
        x = server.unlabelled
        if x is None or not len(x):
            return None
        generator = torch.Generator().manual_seed(derive(server.seed, "kl score", server.state.round + 1))
        return x[torch.randperm(len(x), generator=generator)[: self.inputs].sort().values]


def tell_missing_inputs(server: Server) -> None:
    """Say in the first round that there is nothing to compute scores on."""
    if server.state.round == 0 and (server.unlabelled is None or not len(server.unlabelled)):
        reason = "the server has no unlabelled data, so sites are weighed by their samples; give [server] unlabelled"
        server.drop("", "KL score", "", reason)


@torch.no_grad()
def _features(server: Server, model: Tensor, x: Tensor) -> Tensor:
    server.layout.load(server.network, model)
    network = server.network.eval()
    return torch.cat([network.features(part) for part in x.split(CHUNK)])
