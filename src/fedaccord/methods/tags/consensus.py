"""Correlations and tag counts that the server has from the sites, and their consensus (docs/methods.md 7.1, 7.2).

Matrices in messages cover the tags that the site knows; matrices in the method's state cover all tags.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedaccord.labels.correlation import PairSums, phi_of_sums
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.tags.site import BLOCKS, CORRELATE, CORRELATION, COUNT, COUNTS, PAIRS

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

MOST_SHOWN = 40  # tags in a report


@dataclass(frozen=True)
class Consensus:
    """Combines the matrices of several sites: `mean` by sample count, `uniform-mean`, `median` or `trimmed-mean`.

    Each entry uses the sites that are informed about it. The trimmed mean drops a fifth of the values at either end, at
    least one of three values.
    """

    operator: str = "mean"

    def __call__(self, matrices: Sequence[Tensor], informed: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """Return the combined matrix; an entry without an informed site is zero."""
        values, known = torch.stack(list(matrices)).double(), torch.stack(list(informed))
        if self.operator in ("mean", "uniform-mean"):
            given = torch.tensor(weights, dtype=torch.float64) if self.operator == "mean" else torch.ones(len(values))
            shares = known * given.double()[:, None, None]
            return (values * shares).sum(0) / shares.sum(0).clamp(min=torch.finfo(torch.float64).tiny)
        number = known.sum(0)
        ranked = torch.where(known, values, math.inf).sort(0).values
        low, high = self._bounds(number)
        place = torch.arange(len(values))[:, None, None]
        used = (place >= low) & (place < high)
        return torch.where(used, ranked, 0.0).sum(0) / used.sum(0).clamp(min=1)

    def _bounds(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """Return the range of ranked values that are used, out of `number`: first, and last plus one."""
        if self.operator == "median":
            cut = (number - 1).clamp(min=0) // 2
        else:
            cut = torch.minimum((number // 5).clamp(min=1), (number - 1).clamp(min=0) // 2)
        return cut, number - cut


def leave_one_out(
    matrices: Mapping[str, Tensor],
    informed: Mapping[str, Tensor],
    weights: Mapping[str, float],
    operator: Consensus,
    site: str | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Return the consensus of all sites except one, and its informed pairs; None if there is no other site."""
    others = [name for name in sorted(matrices) if name != site]
    if not others:
        return None
    known = [informed[name] for name in others]
    found = operator([matrices[name] for name in others], known, [weights[name] for name in others])
    return found, torch.stack(known).any(0)


@dataclass(frozen=True)
class Correlations:
    """The sites' correlations, from scores or from counts of tags, and their leave-one-out consensus."""

    from_counts: bool = False
    consensus: Consensus = field(default_factory=Consensus)
    shrinkage: float = 0.0  # of correlations from counts

    def matrices(self, server: Server, members: Iterable[SiteId]) -> tuple[dict[SiteId, Tensor], dict[SiteId, Tensor]]:
        """Return the correlations of every member that sent any, (C, C), and which pairs are informative."""
        if self.from_counts:
            phis = {site: phi_of_sums(sums, self.shrinkage) for site, sums in tag_sums_of(server, members).items()}
            return {s: m for s, (m, _) in phis.items()}, {s: p for s, (_, p) in phis.items()}
        matrices, pairs = server.state.method.select(CORRELATION), server.state.method.select(PAIRS)
        sites = [site for site in members if site in matrices]
        return {site: matrices[site] for site in sites}, {site: pairs[site] for site in sites}

    def consensus_without(
        self, server: Server, members: Iterable[SiteId], site: SiteId | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Return the consensus of all members but one, and which pairs are informative; None if no site is left."""
        if self.from_counts and self.consensus.operator == "mean":
            others = [sums for name, sums in tag_sums_of(server, members).items() if name != site]
            return phi_of_sums(reduce(add, others), self.shrinkage) if others else None
        matrices, pairs = self.matrices(server, members)
        samples = {name: float(server.cards[name].samples) for name in matrices}
        return leave_one_out(matrices, pairs, samples, self.consensus, site)

    def report(self, server: Server) -> list[dict[str, Any]]:
        """Return the consensus and the matrix of each site as lines of metrics.jsonl, for the most correlated tags."""
        members = server.members(max(1, server.state.round))  # of the round that has just ended
        consensus = self.consensus_without(server, members)
        if consensus is None:
            return []
        matrix, pairs = consensus
        state = server.state.method.tensors
        strength = torch.where(pairs, matrix.abs(), 0.0).sum(1)
        shown = strength.sort(descending=True, stable=True).indices[:MOST_SHOWN].sort().values
        names = [server.space.names[tag] for tag in shown.tolist()]

        def line(site: SiteId | None, matrix: Tensor) -> dict[str, Any]:
            rows = [[round(value, 3) for value in row] for row in submatrix(matrix, shown).tolist()]
            blocks = state.get(BLOCKS if site is None else f"{BLOCKS}/{site}", state.get(BLOCKS))
            extra = {} if blocks is None else {"blocks": blocks[shown].tolist()}
            return {"scope": "correlation", "site": site, "names": names, "matrix": rows, **extra}

        sites = self.matrices(server, members)[0]
        return [line(None, matrix), *(line(site, matrix) for site, matrix in sites.items())]


def ask_for_counts(server: Server) -> None:
    """Ask the sites whose tag counts are not known yet."""
    state = server.state.method.tensors
    missing = [site for site in server.trainers() if f"{COUNTS}/{site}" not in state]
    for known, sites in _by_known_tags(server, missing):
        spec = {COUNTS: TensorSpec((3, known, known), torch.float32)}
        for site, answer in server.ask(COUNT, {site: Message() for site in sites}, spec).items():
            state[f"{COUNTS}/{site}"] = _valid_counts(answer.tensors[COUNTS], server.cards[site])


def ask_for_correlations(server: Server) -> None:
    """Replace all stored correlations by those of the round's sites under the current model."""
    state = server.state.method.tensors
    for name in [n for n in state if n.startswith((f"{CORRELATION}/", f"{PAIRS}/"))]:
        del state[name]
    for known, sites in _by_known_tags(server, server.sample_sites()):
        for site, answer in server.ask(CORRELATE, server.model_briefs(sites), correlation_spec(known)).items():
            store_correlations(server, site, answer)


def _by_known_tags(server: Server, sites: list[SiteId]) -> list[tuple[int, list[SiteId]]]:
    """Return the sites grouped by their number of known tags, since their answers have the same shape."""
    numbers = {site: int(server.cards[site].informs.sum()) for site in sites}
    return [(known, [site for site in sites if numbers[site] == known]) for known in set(numbers.values())]


def correlation_spec(known: int) -> dict[str, TensorSpec]:
    """Return the tensors of a message with correlations of `known` tags."""
    return {CORRELATION: TensorSpec((known, known), torch.float32), PAIRS: TensorSpec((known, known), torch.bool)}


def store_correlations(server: Server, site: SiteId, message: Message) -> None:
    """Store a site's correlations, clamped to -1..1, over all tags."""
    tags, known = len(server.space), server.cards[site].informs.nonzero().flatten()
    correlation, pairs = torch.zeros(tags, tags), torch.zeros(tags, tags, dtype=torch.bool)
    correlation[known[:, None], known] = message.tensors[CORRELATION].clamp(-1, 1)
    pairs[known[:, None], known] = message.tensors[PAIRS]
    server.state.method.tensors |= {f"{CORRELATION}/{site}": correlation, f"{PAIRS}/{site}": pairs}


def _valid_counts(counts: Tensor, card: SiteCard) -> Tensor:
    """Return counts clamped to possible values: rows <= samples, occurrences <= rows, pairs <= occurrences."""
    rows = counts[0].clamp(0, card.samples)
    first = torch.minimum(counts[1].clamp(min=0), rows)
    return torch.stack([rows, first, torch.minimum(counts[2].clamp(min=0), torch.minimum(first, first.T))])


def counts_version(server: Server) -> str:
    """Return a hash of the members whose counts are known."""
    names = [site for site in server.members() if f"{COUNTS}/{site}" in server.state.method.tensors]
    return hashlib.blake2b("\x1f".join(names).encode(), digest_size=8).hexdigest()


def tag_sums_of(server: Server, sites: Iterable[SiteId]) -> dict[SiteId, PairSums]:
    """Return the known counts of sites over all tags; zero for tags that a site does not know."""
    state, sums = server.state.method.tensors, {}
    for site in sorted(sites):
        if (counts := state.get(f"{COUNTS}/{site}")) is not None:
            padded = torch.zeros(3, len(server.space), len(server.space), dtype=torch.float64)
            known = server.cards[site].informs.nonzero().flatten()
            padded[:, known[:, None], known] = counts.double()
            sums[site] = PairSums(*padded)
    return sums


def tag_frequencies(server: Server) -> Tensor | None:
    """Return the frequency of each tag over all members, (C,); None without counts."""
    sums = list(tag_sums_of(server, server.members()).values())
    if not sums:
        return None
    total = reduce(add, sums)
    return (total.first.diagonal() / total.rows.diagonal().clamp(min=1)).float()


def annotated_share(server: Server, site: SiteId) -> Tensor:
    """Return the share of a site's rows that annotate each tag, (C,); without counts, 1 for its known tags."""
    card, counts = server.cards[site], server.state.method.tensors.get(f"{COUNTS}/{site}")
    share = card.informs.double()
    if counts is not None:
        share[card.informs] = counts[0].diagonal().double() / max(1, card.samples)
    return share


def submatrix(matrix: Tensor, tags: Tensor) -> Tensor:
    """Return the rows and columns of some tags."""
    return matrix[tags][:, tags]
