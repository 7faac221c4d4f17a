"""How much each reply counts, where that is not by its number of samples: the `weigh` slot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.kl_score import kl_scores
from fedaccord.aggregation.replies import Replies
from fedaccord.messages.checks import TensorSpec
from fedaccord.seeds import derive
from fedaccord.training.objectives import LABEL_COUNTS

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

CHUNK = 1024


def equal_weights(server: Server, replies: Replies) -> Replies:
    """Let every site that replied count the same."""
    return replace(replies, weights=torch.ones_like(replies.weights))


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


@dataclass(frozen=True)
class LabelCountWeights:
    """Weighs a site, for each head row, by how many of its samples are of that label, which the site has to tell."""

    own_rows: bool  # a site tells the counts of the labels it knows alone

    def extras(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return what a reply must hold."""
        labels = int(card.informs.sum()) if self.own_rows else len(card.informs)
        return {LABEL_COUNTS: TensorSpec((labels,), torch.float32)}

    def __call__(self, server: Server, replies: Replies) -> Replies:
        """Return the replies with the counts as weights of the rows; together they are no more than its samples."""
        counts = torch.zeros(replies.informs.shape, dtype=torch.float64)
        for row, message, known in zip(counts, replies.messages, replies.informs, strict=True):
            told = message.tensors[LABEL_COUNTS].double().clamp(min=0)
            row[known] = told if self.own_rows else told[known]
        claimed = counts.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        return replace(replies, row_weights=counts * (replies.weights / claimed).clamp(max=1)[:, None])


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
