"""The server's side of FedHarmony (docs/methods.md 7.5): each site's teacher, and the weights of the sites.

The teacher of a site is made of all others' correlations of model scores, anew in each round (as published), or of
their counts of tags, asked for once. All matrices that travel are over the tags that the site knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.labels.correlation import (
    Consensus,
    PairSums,
    discrepancy,
    leave_one_out,
    phi_of_sums,
    quality_weights,
    spectral_blocks,
)
from fedaccord.messages.checks import TensorSpec, is_finite
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.harmony.site import (
    ALIGNMENT_SHARE,
    BLOCKS,
    CORRELATION,
    COUNTS,
    FREQUENCIES,
    PAIRS,
    TAUGHT,
    TEACHER,
)
from fedaccord.seeds import derive

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

CORRELATE, COUNT, TEACH = "correlate tags", "count tags", "learn correlations"  # tasks
QUALITY = "quality"  # prefix of the sites' figures
MOST_SHOWN = 40  # tags in a report
MANY_TAGS = 100  # from here on blocks are faster than all pairs of tags
NO_GUARANTEE = (
    "correlation_noise gives no privacy guarantee for the matrices that come with the sites' trained models: one row "
    'changes the model, and so the scores of all rows; it does with teacher = "counts", or with exchanges = 2 and '
    'other weights than "quality"'
)


@dataclass(frozen=True)
class Harmoniser:
    """FedHarmony's parts of a recipe at the server: `prepare`, `brief`, `extras`, `weigh` and `refine`."""

    rounds: int
    teacher: str = "scores"  # or "counts", "none"; without one, sites are judged by the scores of the last round
    exchanges: int = 1  # of scores: 1: those sent with the last round's models; 2: asked for anew before each round
    consensus: Consensus = field(default_factory=Consensus)
    shrinkage: float = 0.0  # of counts
    blocks: str = "off"  # or "common", "per-site", "auto"
    block_count: int | None = None
    permuted: bool = False
    weights: str = "quality"  # or "uniform", "samples"
    gamma: float = 5.0
    volume_rounds: float | None = None
    by_annotations: bool = False  # head rows count by how many of a site's rows annotate their tag
    prior: bool = False
    noise: float = 0.0  # that sites add to what leaves them of their tags
    rule: str = "mean"  # how models are combined; the robust ones look at no weights

    @property
    def by_quality(self) -> bool:
        """Whether sites count by how they agree with the others."""
        return self.weights == "quality" and self.rule == "mean"

    @property
    def by_rows(self) -> bool:
        """Whether head rows count by how often a site annotates their tag."""
        return self.by_annotations and self.rule == "mean"

    @property
    def sends(self) -> bool:
        """Whether sites send the correlations of their trained models."""
        return self.by_quality or (self.teacher == "scores" and not self.asks)

    @property
    def asks(self) -> bool:
        """Whether sites are asked for the correlations of the model as it is, before each round."""
        return self.teacher == "scores" and self.exchanges == 2

    @property
    def keeps(self) -> bool:
        """Whether what sites sent is what the others agree on in the next round: to teach, or to judge sites by."""
        return self.sends and self.teacher != "counts" and not self.asks

    @property
    def counts(self) -> bool:
        """Whether sites are asked to count their tags."""
        return self.teacher == "counts" or self.by_rows or self.prior

    def prepare(self, server: Server) -> None:
        """Learn what is to be learned before the sites train, and put tags into blocks."""
        self._warn(server)
        if self.counts:
            self._count(server)
        if self.asks:
            self._correlate(server)
        if self.teacher != "none" and (kind := self._kind_of_blocks(server)) != "off":
            self._cluster(server, kind)
        if self.teacher == "counts" or self.prior:
            self._teach(server)

    def _warn(self, server: Server) -> None:
        if self.noise and self.sends:
            server.warn(NO_GUARANTEE)
        weights = {'weights = "quality"': self.weights == "quality", 'head_rows = "annotated"': self.by_annotations}
        asked = " and ".join(setting for setting, is_set in weights.items() if is_set)
        if asked and self.rule != "mean":
            server.warn(f"the rule '{self.rule}' looks at no weights, so {asked} had no effect")

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the brief's part for a site: what the others agree on, where that changes with every round."""
        # With the replies of a round at hand, sites are asked how good the model is, and need no teacher.
        if self.teacher != "scores" or server.replies is not None:
            return Message()
        return self._lesson(server, card)

    def extras(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return what a reply holds beside the model."""
        known = int(card.informs.sum())
        return _spec(known) if self.sends else {}

    def weigh(self, server: Server, replies: Replies) -> Replies:
        """Return the replies with the weights asked for, of whole models and of head rows."""
        weights = replies.weights
        if self.weights == "uniform":
            weights = torch.ones_like(weights)
        elif self.by_quality:
            distances = torch.tensor([self._distance(server, *pair) for pair in _pairs(replies)], dtype=torch.float64)
            until = self.rounds / 2 if self.volume_rounds is None else self.volume_rounds
            volume = max(0.0, 1 - server.state.round / until) if until else 0.0
            weights = quality_weights(distances, weights, self.gamma, volume)
            for site, distance in zip(replies.sites, distances.tolist(), strict=True):
                server.figures[f"{QUALITY}/{site}"] = float(torch.exp(torch.tensor(-self.gamma * distance)))
        if not self.by_rows:
            return replace(replies, weights=weights)
        shares = torch.stack([self._annotated_share(server, site) for site in replies.sites])
        return replace(replies, weights=weights, row_weights=weights[:, None] * shares)

    def refine(self, server: Server) -> None:
        """Keep the correlations that came with the models, and note what the alignment cost."""
        if server.replies is None:
            return
        shares = [m.numbers.get(ALIGNMENT_SHARE) for m in server.replies.messages]
        told = [float(share) for share in shares if isinstance(share, int | float) and is_finite(share)]
        if told:
            server.figures[ALIGNMENT_SHARE] = sum(told) / len(told)
        if self.keeps:
            for site, message in _pairs(server.replies):
                _keep(server, site, message)

    def matrices(self, server: Server, members: Iterable[SiteId]) -> tuple[dict[SiteId, Tensor], dict[SiteId, Tensor]]:
        """Return the correlations of every member that told any, (C, C), and the pairs each says something of."""
        if self.teacher == "counts":
            found = {site: phi_of_sums(sums, self.shrinkage) for site, sums in self._sums(server, members).items()}
            return {s: m for s, (m, _) in found.items()}, {s: p for s, (_, p) in found.items()}
        kept = server.state.method
        there, pairs = kept.select(CORRELATION), kept.select(PAIRS)
        told = [site for site in members if site in there]
        return {site: there[site] for site in told}, {site: pairs[site] for site in told}

    def agreed(
        self, server: Server, members: Iterable[SiteId], site: SiteId | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Return what all members, or all but one, agree on, and the pairs they say something of."""
        if self.teacher == "counts" and self.consensus.operator == "mean":
            sums = self._sums(server, members)
            others = [part for name, part in sums.items() if name != site]
            return phi_of_sums(_total(others), self.shrinkage) if others else None
        matrices, pairs = self.matrices(server, members)
        samples = {name: float(server.cards[name].samples) for name in matrices}
        return leave_one_out(matrices, pairs, samples, self.consensus, site)

    def report(self, server: Server) -> list[dict[str, Any]]:
        """Return, for the report, what all sites agree on and what each has told, over the tags that matter most."""
        members = server.members(max(1, server.state.round))  # of the round that has just ended
        found = self.agreed(server, members)
        if found is None:
            return []
        agreed, kept = found[0], server.state.method.tensors
        strength = torch.where(found[1], agreed.abs(), 0.0).sum(1)
        shown = strength.sort(descending=True, stable=True).indices[:MOST_SHOWN].sort().values
        names = [server.space.names[tag] for tag in shown.tolist()]

        def line(site: SiteId | None, matrix: Tensor) -> dict[str, Any]:
            rows = [[round(value, 3) for value in row] for row in _cut(matrix, shown).tolist()]
            blocks = kept.get(BLOCKS if site is None else f"{BLOCKS}/{site}", kept.get(BLOCKS))
            told = {} if blocks is None else {"blocks": blocks[shown].tolist()}
            return {"scope": "correlation", "site": site, "names": names, "matrix": rows, **told}

        return [line(None, agreed), *(line(site, matrix) for site, matrix in self.matrices(server, members)[0].items())]

    def _lesson(self, server: Server, card: SiteCard) -> Message:
        """Return what a site is taught, over the tags it knows; nothing where no other site tells anything."""
        found = self.agreed(server, server.members(), card.name)
        if found is None:
            return Message()
        teacher, pairs = found
        if self.permuted:
            order = _one_cycle(len(teacher), derive(server.seed, "permuted tags"))
            teacher, pairs = teacher[order][:, order], pairs[order][:, order]
        known = card.informs.nonzero().flatten()
        told = {TEACHER: _cut(teacher, known).float(), TAUGHT: _cut(pairs, known)}
        kept = server.state.method.tensors
        blocks = kept.get(f"{BLOCKS}/{card.name}", kept.get(BLOCKS))
        return Message(told if blocks is None else told | {BLOCKS: blocks[known]})

    def _distance(self, server: Server, site: SiteId, message: Message) -> float:
        """Return how far a site's trained model is from what the others agreed on; 0 where they told nothing."""
        found = self.agreed(server, server.members(), site)
        if found is None:
            return 0.0
        known = server.cards[site].informs.nonzero().flatten()
        teacher, pairs = (_cut(part, known) for part in found)
        return discrepancy(message.tensors[CORRELATION].clamp(-1, 1), teacher, pairs & message.tensors[PAIRS])

    def _count(self, server: Server) -> None:
        """Ask those who have not counted their tags yet."""
        kept = server.state.method.tensors
        asked = [site for site in server.trainers() if f"{COUNTS}/{site}" not in kept]
        for known in {int(server.cards[site].informs.sum()) for site in asked}:
            briefs = {site: Message() for site in asked if int(server.cards[site].informs.sum()) == known}
            spec = {COUNTS: TensorSpec((3, known, known), torch.float32)}
            for site, answer in server.ask(COUNT, briefs, spec).items():
                kept[f"{COUNTS}/{site}"] = _valid_counts(answer.tensors[COUNTS], server.cards[site])

    def _correlate(self, server: Server) -> None:
        """Ask the round's sites how their tags go together by the model as it is, and forget what was told before."""
        kept = server.state.method.tensors
        for name in [n for n in kept if n.startswith((f"{CORRELATION}/", f"{PAIRS}/"))]:
            del kept[name]
        tensors, drawn = server.tensors, server.sample_sites()
        for known in {int(server.cards[site].informs.sum()) for site in drawn}:
            briefs = {
                site: Message(server.recipe.sharing.outgoing(server.layout, tensors, server.cards[site].informs))
                for site in drawn
                if int(server.cards[site].informs.sum()) == known
            }
            for site, answer in server.ask(CORRELATE, briefs, _spec(known)).items():
                _keep(server, site, answer)

    def _kind_of_blocks(self, server: Server) -> str:
        if self.blocks != "auto":
            return self.blocks
        return "common" if len(server.space) >= MANY_TAGS else "off"

    def _cluster(self, server: Server, kind: str) -> None:
        kept, seed = server.state.method.tensors, derive(server.seed, "tag blocks")
        everybody = self._version(server)
        if self.teacher == "counts" and server.state.method.words.get(BLOCKS) == everybody:
            return
        server.state.method.words[BLOCKS] = everybody
        for site in [None] if kind == "common" else server.trainers():
            found = self.agreed(server, server.members(), site)
            if found is not None:
                name = BLOCKS if site is None else f"{BLOCKS}/{site}"
                kept[name] = spectral_blocks(*found, self.block_count, seed)

    def _teach(self, server: Server) -> None:
        """Tell every site once what the others' counts say, and again when others have come or gone."""
        words, version = server.state.method.words, self._version(server)
        pupils = [site for site in server.trainers() if words.get(f"{TAUGHT}/{site}") != version]
        frequencies = self._frequencies(server) if pupils else None
        briefs = {}
        for site in pupils:
            card = server.cards[site]
            told = self._lesson(server, card) if self.teacher == "counts" else Message()
            if self.prior and frequencies is not None:
                told.tensors[FREQUENCIES] = frequencies[card.informs]
            briefs[site] = told
        for site in server.ask(TEACH, briefs, {}) if briefs else {}:
            words[f"{TAUGHT}/{site}"] = version

    def _version(self, server: Server) -> str:
        """Return a short name of those whose counts are known and who are still there."""
        names = [site for site in server.members() if f"{COUNTS}/{site}" in server.state.method.tensors]
        return hashlib.blake2b("\x1f".join(names).encode(), digest_size=8).hexdigest()

    def _sums(self, server: Server, sites: Iterable[SiteId]) -> dict[SiteId, PairSums]:
        """Return the counts of sites that told them, over all tags; zero for those a site does not know."""
        kept, found = server.state.method.tensors, {}
        for site in sorted(sites):
            if (counts := kept.get(f"{COUNTS}/{site}")) is not None:
                whole = torch.zeros(3, len(server.space), len(server.space), dtype=torch.float64)
                known = server.cards[site].informs.nonzero().flatten()
                whole[:, known[:, None], known] = counts.double()
                found[site] = PairSums(*whole)
        return found

    def _frequencies(self, server: Server) -> Tensor | None:
        sums = list(self._sums(server, server.members()).values())
        if not sums:
            return None
        total = _total(sums)
        return (total.first.diagonal() / total.rows.diagonal().clamp(min=1)).float()

    def _annotated_share(self, server: Server, site: SiteId) -> Tensor:
        """Return the share of a site's rows that annotate each tag, (C,); without its counts, all of those it knows."""
        card, counts = server.cards[site], server.state.method.tensors.get(f"{COUNTS}/{site}")
        share = card.informs.double()
        if counts is not None:
            share[card.informs] = counts[0].diagonal().double() / max(1, card.samples)
        return share


def _total(parts: list[PairSums]) -> PairSums:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _spec(known: int) -> dict[str, TensorSpec]:
    return {CORRELATION: TensorSpec((known, known), torch.float32), PAIRS: TensorSpec((known, known), torch.bool)}


def _keep(server: Server, site: SiteId, message: Message) -> None:
    """Keep a site's correlations over all tags; whatever it sends, they are correlations."""
    tags, known = len(server.space), server.cards[site].informs.nonzero().flatten()
    correlation, pairs = torch.zeros(tags, tags), torch.zeros(tags, tags, dtype=torch.bool)
    correlation[known[:, None], known] = message.tensors[CORRELATION].clamp(-1, 1)
    pairs[known[:, None], known] = message.tensors[PAIRS]
    server.state.method.tensors |= {f"{CORRELATION}/{site}": correlation, f"{PAIRS}/{site}": pairs}


def _valid_counts(counts: Tensor, card: SiteCard) -> Tensor:
    """Return counts that can be: of no more rows than the site joined with, no tag more often than it was annotated."""
    rows = counts[0].clamp(0, card.samples)
    first = torch.minimum(counts[1].clamp(min=0), rows)
    return torch.stack([rows, first, torch.minimum(counts[2].clamp(min=0), torch.minimum(first, first.T))])


def _cut(matrix: Tensor, known: Tensor) -> Tensor:
    return matrix[known][:, known]


def _pairs(replies: Replies) -> list[tuple[SiteId, Message]]:
    return list(zip(replies.sites, replies.messages, strict=True))


def _one_cycle(count: int, seed: int) -> Tensor:
    """Return a random permutation that is a single cycle: it leaves no tag, and of three or more no pair, in place."""
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    order = torch.empty_like(shuffled)
    order[shuffled] = shuffled.roll(1)
    return order
