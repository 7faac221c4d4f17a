"""Correspondence matrices that sites with the same coarse names estimate together (docs/methods.md 6.3).

Such sites form a group. A site sends a J x K matrix of counts or shares; the server only needs the sum over the group,
so a secure sum would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.robust import FEWEST
from fedaccord.labels.correspondence import (
    CORRESPONDENCE,
    average_columns,
    columns_of_counts,
    median_columns,
    sent_counts,
    sent_matrix,
    uniform_matrix,
)
from fedaccord.messages.checks import TensorSpec, is_finite
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.mixed_types.objective import CONFIDENT, COUNT, COUNTS, EXCHANGE, EXCHANGES
from fedaccord.methods.mixed_types.settings import FedMTSettings

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

SILENT_ROUNDS = "rounds without a confident sample"  # in the method's state


def group_matrix(server: Server, card: SiteCard) -> Tensor:
    """Return the matrix of a site's group; uniform if there is none yet."""
    stored = server.state.method.tensors.get(f"{CORRESPONDENCE}/{card.names}")
    return uniform_matrix(card.answers, len(server.space)) if stored is None else stored


def matrix_brief(server: Server, card: SiteCard) -> Message:
    """Return the matrix of the site's group, if there is one."""
    matrix = server.state.method.tensors.get(f"{CORRESPONDENCE}/{card.names}") if card.names else None
    return Message() if matrix is None else Message({CORRESPONDENCE: matrix})


def matrix_spec(server: Server, card: SiteCard) -> dict[str, TensorSpec]:
    """Return the tensors of a reply in addition to the model, if sites send their matrices."""
    shape = (card.answers, len(server.space))
    return {CORRESPONDENCE: TensorSpec(shape, torch.float32)} if card.names else {}


@dataclass(frozen=True)
class PooledCounts:
    """A server step: EM on counts summed over the round's sites of each group, under the current model."""

    settings: FedMTSettings

    def __call__(self, server: Server) -> None:
        """Ask each group for counts several times, each time under the matrix of the last counts."""
        exchanges, smoothing = self.settings.exchanges, self.settings.smoothing
        for sites in coarse_groups(server, server.sample_sites()):
            card = server.cards[sites[0]]
            fallback, matrix = group_matrix(server, card), uniform_matrix(card.answers, len(server.space))
            for exchange in range(exchanges):
                answers = _ask(server, sites, {CORRESPONDENCE: matrix}, exchange, exchanges)
                if not answers:
                    break
                sites = list(answers)  # only these have stored scores
                counts = [sent_counts(answer, server.cards[site].samples) for site, answer in answers.items()]
                if uses_median(server, card, len(counts)):
                    each = [columns_of_counts(part, fallback, smoothing) for part in counts]
                    matrix = median_columns(each, [part.sum(0) > 0 for part in counts], fallback)
                else:
                    matrix = columns_of_counts(torch.stack(counts).sum(0), fallback, smoothing)
            else:
                server.state.method.tensors[f"{CORRESPONDENCE}/{card.names}"] = matrix


def average_estimates(server: Server) -> None:
    """Average the estimates of the round's sites in each group: a server step (FedMT (E) + Average)."""
    for sites in coarse_groups(server, server.sample_sites()):
        _average(server, server.cards[sites[0]], list(_ask(server, sites, {}).values()))


def average_learned(server: Server) -> None:
    """Average the learned matrices in the replies of each group: a server step."""
    if server.replies is None:
        return
    sent = dict(zip(server.replies.sites, server.replies.messages, strict=True))
    for sites in coarse_groups(server, sent):
        _average(server, server.cards[sites[0]], [sent[site].tensors[CORRESPONDENCE] for site in sites])


def _average(server: Server, card: SiteCard, matrices: Sequence[Tensor]) -> None:
    if not matrices:
        return
    shares, valid = zip(*map(sent_matrix, matrices), strict=True)
    if not any(bool(columns.any()) for columns in valid):  # no site has an estimate yet
        return
    combine = median_columns if uses_median(server, card, len(matrices)) else average_columns
    server.state.method.tensors[f"{CORRESPONDENCE}/{card.names}"] = combine(shares, valid, group_matrix(server, card))


def uses_median(server: Server, card: SiteCard, sites: int) -> bool:
    """Return whether a group's tensors are combined by the median; warn if a robust rule has too few sites for it."""
    if getattr(server.recipe.settings, "aggregation", "mean") == "mean":
        return False
    if sites < FEWEST:
        server.warn(
            f"only {sites} sites of a round use the coarse names of site '{card.name}', and {FEWEST} are needed to "
            "withstand a hostile one: the mean is used"
        )
    return sites >= FEWEST


def _ask(
    server: Server, sites: Sequence[SiteId], tensors: dict[str, Tensor], exchange: int = 0, exchanges: int = 1
) -> dict[SiteId, Tensor]:
    """Ask the sites of a group for counts; the first exchange of a round also sends the model."""
    model, card = server.tensors, server.cards[sites[0]]
    briefs = {}
    for site in sites:
        informs = server.cards[site].informs
        shared = server.recipe.sharing.outgoing(server.layout, model, informs) if exchange == 0 else {}
        briefs[site] = Message(shared | tensors, {EXCHANGE: exchange, EXCHANGES: exchanges})
    spec = TensorSpec((card.answers, len(server.space)), torch.float32)
    return {site: answer.tensors[COUNTS] for site, answer in server.ask(COUNT, briefs, {COUNTS: spec}).items()}


def coarse_groups(server: Server, sites: Iterable[SiteId]) -> list[list[SiteId]]:
    """Return the sites with coarse names, grouped by these names."""
    groups: dict[str, list[SiteId]] = {}
    for site in sorted(sites):
        if names := server.cards[site].names:
            groups.setdefault(names, []).append(site)
    return list(groups.values())


@dataclass(frozen=True)
class ConfidenceWatch:
    """A server step that records the share of confident samples, and warns if there are none.

    `unused` names the data that such a round does not learn from; empty if pseudo-labels are switched off.
    """

    threshold: float
    rounds: int
    unused: str = "the sites' labels"

    def __call__(self, server: Server) -> None:
        """Record the share; a silent site had no confident sample, and dropped sites have no estimate."""
        replies = server.replies
        numbers = [m.numbers.get(CONFIDENT, 0) for m in replies.messages] if replies is not None else []
        answered = [*(replies.sites if replies is not None else ()), *server.silent]
        if not answered:
            return
        samples = sum(server.cards[site].samples for site in answered)
        share = min(1.0, sum(max(0.0, float(n)) for n in numbers if is_finite(n)) / max(1, samples))
        server.figures[CONFIDENT] = share
        state = server.state.method.numbers
        if share > 0 or not self.unused:
            state[SILENT_ROUNDS] = 0
            return
        state[SILENT_ROUNDS] = int(state.get(SILENT_ROUNDS, 0)) + 1
        whose = "any site" if len(answered) == len(server.sample_sites()) else "any site that answered"
        none = f"no sample of {whose} was above the threshold {self.threshold:g}"
        hint = "lower method.threshold or give the server's model a method.warmup"
        if state[SILENT_ROUNDS] == self.rounds:
            server.warn(f"in all {self.rounds} rounds {none}, so {self.unused} were never used; {hint}")
        elif state[SILENT_ROUNDS] == 1:
            server.warn(f"in round {server.state.round + 1} {none}; {hint}")
