"""The server's side of FedHarmony (docs/methods.md 7.2, 7.4): the teacher of each site, and the weights of the sites.

The teacher of a site is the consensus of the others' correlations: of model scores, new in each round (as published),
or of tag counts, which sites send once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.labels.correlation import discrepancy, k_means, off_diagonal
from fedaccord.messages.checks import TensorSpec, is_finite
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.tags.consensus import (
    Consensus,
    Correlations,
    annotated_share,
    ask_for_correlations,
    ask_for_counts,
    correlation_spec,
    counts_version,
    store_correlations,
    submatrix,
    tag_frequencies,
)
from fedaccord.methods.tags.settings import FedHarmonySettings
from fedaccord.methods.tags.site import (
    ALIGNMENT_SHARE,
    BLOCKS,
    CORRELATION,
    FREQUENCIES,
    PAIRS,
    TAUGHT,
    TEACH,
    TEACHER,
)
from fedaccord.seeds import derive

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

QUALITY = "quality"  # prefix of the sites' figures
MANY_TAGS = 100  # from this number on, blocks are faster than all pairs of tags
NO_GUARANTEE = (
    "correlation_noise gives no privacy guarantee for matrices that are sent with the trained models: one row changes "
    'the model, and so the scores of all rows; use teacher = "counts", or exchanges = 2 with weights other than '
    '"quality"'
)


@dataclass(frozen=True)
class HarmonyServer:
    """The server's parts of the recipe: `prepare`, `brief`, `extras`, `weigh` and `refine`."""

    settings: FedHarmonySettings

    @property
    def teacher(self) -> str:
        """Source of the teacher; without one, sites are judged by the last round's scores."""
        return self.settings.teacher if self.settings.strength else "none"

    @property
    def correlations(self) -> Correlations:
        """The sites' correlations and their consensus."""
        consensus = Consensus(self.settings.consensus)
        return Correlations(self.teacher == "counts", consensus, self.settings.shrinkage)

    @property
    def by_quality(self) -> bool:
        """Whether sites are weighted by their agreement with the others."""
        return self.settings.weights == "quality" and self.settings.aggregation == "mean"

    @property
    def by_rows(self) -> bool:
        """Whether head rows are weighted by how often a site annotates their tag."""
        return self.settings.head_rows == "annotated" and self.settings.aggregation == "mean"

    @property
    def sends(self) -> bool:
        """Whether sites send the correlations of their trained models."""
        return self.by_quality or (self.teacher == "scores" and not self.asks)

    @property
    def asks(self) -> bool:
        """Whether sites are asked for the correlations of the current model before each round."""
        return self.teacher == "scores" and self.settings.exchanges == 2

    @property
    def stores(self) -> bool:
        """Whether the correlations of trained models are stored for the next round, to teach or to judge sites."""
        return self.sends and self.teacher != "counts" and not self.asks

    @property
    def counts(self) -> bool:
        """Whether sites are asked to count their tags."""
        return self.teacher == "counts" or self.by_rows or self.settings.site_prior

    def prepare(self, server: Server) -> None:
        """Ask for counts or correlations, cluster the tags and send teachers, before the sites train."""
        self._warn(server)
        if self.counts:
            ask_for_counts(server)
        if self.asks:
            ask_for_correlations(server)
        if self.teacher != "none":
            self._cluster(server)
        if self.teacher == "counts" or self.settings.site_prior:
            self._teach(server)

    def _warn(self, server: Server) -> None:
        if self.settings.correlation_noise and self.sends:
            server.warn(NO_GUARANTEE)
        weights = (("weights", "quality"), ("head_rows", "annotated"))
        ignored = [f'{name} = "{value}"' for name, value in weights if getattr(self.settings, name) == value]
        if ignored and self.settings.aggregation != "mean":
            names = " and ".join(ignored)
            server.warn(f"the rule '{self.settings.aggregation}' ignores weights, so {names} had no effect")

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return a site's teacher, if it changes in every round."""
        # With replies present, sites are asked to evaluate the model and need no teacher.
        if self.teacher != "scores" or server.replies is not None:
            return Message()
        return self._teacher(server, card)

    def extras(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return the tensors of a reply in addition to the model."""
        return correlation_spec(int(card.informs.sum())) if self.sends else {}

    def weigh(self, server: Server, replies: Replies) -> Replies:
        """Return the replies with the weights of models and of head rows."""
        weights = replies.weights
        if self.settings.weights == "uniform":
            weights = torch.ones_like(weights)
        elif self.by_quality:
            distances = torch.tensor([self._distance(server, *pair) for pair in _pairs(replies)], dtype=torch.float64)
            until = self.settings.rounds / 2 if self.settings.volume_rounds is None else self.settings.volume_rounds
            volume = max(0.0, 1 - server.state.round / until) if until else 0.0
            weights = quality_weights(distances, weights, self.settings.gamma, volume)
            for site, distance in zip(replies.sites, distances.tolist(), strict=True):
                server.figures[f"{QUALITY}/{site}"] = float(torch.exp(torch.tensor(-self.settings.gamma * distance)))
        if not self.by_rows:
            return replace(replies, weights=weights)
        shares = torch.stack([annotated_share(server, site) for site in replies.sites])
        return replace(replies, weights=weights, row_weights=weights[:, None] * shares)

    def refine(self, server: Server) -> None:
        """Store the correlations that came with the models, and record the alignment's share of the time."""
        if server.replies is None:
            return
        sent = [m.numbers.get(ALIGNMENT_SHARE) for m in server.replies.messages]
        shares = [float(share) for share in sent if isinstance(share, int | float) and is_finite(share)]
        if shares:
            server.figures[ALIGNMENT_SHARE] = sum(shares) / len(shares)
        if self.stores:
            for site, message in _pairs(server.replies):
                store_correlations(server, site, message)

    def _teacher(self, server: Server, card: SiteCard) -> Message:
        """Return a site's teacher over the tags that it knows; empty if no other site sent anything."""
        consensus = self.correlations.consensus_without(server, server.members(), card.name)
        if consensus is None:
            return Message()
        teacher, pairs = consensus
        if self.settings.permuted:
            order = _one_cycle(len(teacher), derive(server.seed, "permuted tags"))
            teacher, pairs = teacher[order][:, order], pairs[order][:, order]
        known = card.informs.nonzero().flatten()
        tensors = {TEACHER: submatrix(teacher, known).float(), TAUGHT: submatrix(pairs, known)}
        state = server.state.method.tensors
        blocks = state.get(f"{BLOCKS}/{card.name}", state.get(BLOCKS))
        return Message(tensors if blocks is None else tensors | {BLOCKS: blocks[known]})

    def _distance(self, server: Server, site: SiteId, message: Message) -> float:
        """Return the distance of a site's correlations from the others' consensus; 0 without a consensus."""
        consensus = self.correlations.consensus_without(server, server.members(), site)
        if consensus is None:
            return 0.0
        known = server.cards[site].informs.nonzero().flatten()
        teacher, pairs = (submatrix(part, known) for part in consensus)
        return discrepancy(message.tensors[CORRELATION].clamp(-1, 1), teacher, pairs & message.tensors[PAIRS])

    def _cluster(self, server: Server) -> None:
        """Cluster the tags by the consensus, if there are blocks; with counts, only if the members have changed."""
        blocks, state, version = self.settings.blocks, server.state.method, counts_version(server)
        if blocks == "off" or (blocks == "auto" and len(server.space) < MANY_TAGS):
            return
        if self.teacher == "counts" and state.words.get(BLOCKS) == version:
            return
        state.words[BLOCKS] = version
        seed = derive(server.seed, "tag blocks")
        for site in server.trainers() if blocks == "per-site" else [None]:
            consensus = self.correlations.consensus_without(server, server.members(), site)
            if consensus is not None:
                name = BLOCKS if site is None else f"{BLOCKS}/{site}"
                state.tensors[name] = spectral_blocks(*consensus, self.settings.block_count, seed)

    def _teach(self, server: Server) -> None:
        """Send every site its teacher from counts once, and again when the other members have changed."""
        words, version = server.state.method.words, counts_version(server)
        sites = [site for site in server.trainers() if words.get(f"{TAUGHT}/{site}") != version]
        frequencies = tag_frequencies(server) if sites else None
        briefs = {}
        for site in sites:
            card = server.cards[site]
            briefs[site] = self._teacher(server, card) if self.teacher == "counts" else Message()
            if self.settings.site_prior and frequencies is not None:
                briefs[site].tensors[FREQUENCIES] = frequencies[card.informs]
        for site in server.ask(TEACH, briefs, {}) if briefs else {}:
            words[f"{TAUGHT}/{site}"] = version


def _pairs(replies: Replies) -> list[tuple[SiteId, Message]]:
    return list(zip(replies.sites, replies.messages, strict=True))


def _one_cycle(count: int, seed: int) -> Tensor:
    """Return a random permutation with a single cycle, which moves every tag and, from three tags on, every pair."""
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    order = torch.empty_like(shuffled)
    order[shuffled] = shuffled.roll(1)
    return order


def quality_weights(distances: Tensor, sizes: Tensor, gamma: float, volume: float) -> Tensor:
    """Return `volume * sizes + (1 - volume) * quality`, both summing to one; quality is `exp(-gamma * distance)`."""
    quality = torch.exp(-gamma * (distances - distances.min()))  # subtract to avoid underflow
    return volume * sizes / sizes.sum() + (1 - volume) * quality / quality.sum()


def spectral_blocks(correlation: Tensor, pairs: Tensor, blocks: int | None, seed: int) -> Tensor:
    """Return the block of each tag, int64 (C,), by spectral clustering of absolute correlations.

    A tag without correlations is a block by itself. By default the number of other blocks is the square root of the
    number of correlated tags, at least two.
    """
    affinity = torch.where(off_diagonal(pairs), correlation.double().abs(), 0.0)
    affinity = (affinity + affinity.T) / 2
    degree = affinity.sum(1)
    active = (degree > 0).nonzero().flatten()
    result = torch.arange(len(correlation))
    if len(active) < 2:
        return result
    wanted = min(len(active), max(2, round(math.sqrt(len(active)))) if blocks is None else blocks)
    root = degree[active].rsqrt()
    laplacian = torch.eye(len(active), dtype=torch.float64) - root[:, None] * affinity[active][:, active] * root
    coordinates = torch.linalg.eigh(laplacian).eigenvectors[:, :wanted]
    # Normalised rows (Ng, Jordan and Weiss 2001); otherwise rare tags, all near zero, form one large block.
    coordinates = torch.nn.functional.normalize(coordinates, dim=1)
    result[active] = len(correlation) + k_means(coordinates, wanted, seed)
    return torch.unique(result, return_inverse=True)[1]
