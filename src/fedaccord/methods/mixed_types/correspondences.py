"""What the server learns of coarse names from sites that share them: pooled counts, or the mean of their matrices.

Sites that use the same coarse names form a group (docs/methods.md 6.3). A site's answer is a J x K matrix of counts or
shares; of a sum over sites the server needs no single one, so counts can be added up securely.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.robust import FEWEST, median
from fedaccord.labels.estimation import (
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
from fedaccord.methods.mixed_types.site import CONFIDENT, COUNTS, EXCHANGE, EXCHANGES
from fedaccord.methods.mixed_types.supervised import BEFORE_TUNING
from fedaccord.models.own_head import OWN_ENCODER, OWN_HEAD

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

COUNT = "count coarse names"  # the task
SILENT_ROUNDS = "rounds without a confident sample"  # in the method's state


def group_matrix(server: Server, card: SiteCard) -> Tensor | None:
    """Return what is known of the names of a site's group; None for a group that was never asked."""
    return server.state.method.tensors.get(f"{CORRESPONDENCE}/{card.names}")


def tell_matrix(server: Server, card: SiteCard) -> Message:
    """Return the brief's part for a site: its group's matrix, where there is one."""
    matrix = group_matrix(server, card) if card.names else None
    return Message() if matrix is None else Message({CORRESPONDENCE: matrix})


def matrix_spec(server: Server, card: SiteCard) -> dict[str, TensorSpec]:
    """Return what a reply holds beside the model where sites send their matrices."""
    shape = (card.answers, len(server.space))
    return {CORRESPONDENCE: TensorSpec(shape, torch.float32)} if card.names else {}


@dataclass(frozen=True)
class PooledCounts:
    """A server step: EM on counts summed over the round's sites of each group, with the model as it is."""

    exchanges: int = 5
    smoothing: float = 0.0

    def __call__(self, server: Server) -> None:
        """Ask for counts so many times, each time under the matrix that the last counts gave."""
        for sites in coarse_groups(server, server.sample_sites()):
            card = server.cards[sites[0]]
            last = group_matrix(server, card)
            start = uniform_matrix(card.answers, len(server.space))
            matrix = start
            for at in range(self.exchanges):
                answers = _ask(server, sites, {CORRESPONDENCE: matrix}, at, self.exchanges)
                if not answers:
                    break
                sites = list(answers)  # only these have scored their samples
                counts = [sent_counts(answer, server.cards[site].samples) for site, answer in answers.items()]
                fallback = start if last is None else last
                if _withstands(server, card, len(counts)):
                    each = [columns_of_counts(part, fallback, self.smoothing) for part in counts]
                    matrix = median_columns(each, [part.sum(0) > 0 for part in counts], fallback)
                else:
                    matrix = columns_of_counts(torch.stack(counts).sum(0), fallback, self.smoothing)
            else:
                server.state.method.tensors[f"{CORRESPONDENCE}/{card.names}"] = matrix


def average_estimates(server: Server) -> None:
    """Make, as a server step, the mean of the estimates of the round's sites in each group (FedMT (E) + Average)."""
    for sites in coarse_groups(server, server.sample_sites()):
        _average(server, server.cards[sites[0]], list(_ask(server, sites, {}).values()))


def average_learned(server: Server) -> None:
    """Make, as a server step, the mean of the matrices that the round's sites of each group have sent."""
    if server.replies is None:
        return
    sent = dict(zip(server.replies.sites, server.replies.messages, strict=True))
    for sites in coarse_groups(server, sent):
        _average(server, server.cards[sites[0]], [sent[site].tensors[CORRESPONDENCE] for site in sites])


def _average(server: Server, card: SiteCard, matrices: Sequence[Tensor]) -> None:
    if not matrices:
        return
    last = group_matrix(server, card)
    fallback = uniform_matrix(card.answers, len(server.space)) if last is None else last
    shares, valid = zip(*map(sent_matrix, matrices), strict=True)
    if not any(bool(columns.any()) for columns in valid):  # nobody has found out anything yet
        return
    combine = median_columns if _withstands(server, card, len(matrices)) else average_columns
    server.state.method.tensors[f"{CORRESPONDENCE}/{card.names}"] = combine(shares, valid, fallback)


def _withstands(server: Server, card: SiteCard, sites: int) -> bool:
    """Say whether a group's matrix is the middle one; warns where a robust rule is wanted and the sites are too few."""
    if getattr(server.recipe.settings, "aggregation", "mean") == "mean":
        return False
    if sites < FEWEST:
        server.warn(
            f"only {sites} sites of a round use the coarse names of site '{card.name}', and {FEWEST} are needed to "
            "withstand a hostile one: what the names stand for is their mean"
        )
    return sites >= FEWEST


def _ask(
    server: Server, sites: Sequence[SiteId], told: dict[str, Tensor], at: int = 0, exchanges: int = 1
) -> dict[SiteId, Tensor]:
    """Ask a group's sites for a matrix each; the model goes with the first of a round's exchanges only."""
    tensors, card = server.tensors, server.cards[sites[0]]
    briefs = {}
    for site in sites:
        model = server.recipe.sharing.outgoing(server.layout, tensors, server.cards[site].informs) if at == 0 else {}
        briefs[site] = Message(model | told, {EXCHANGE: at, EXCHANGES: exchanges})
    spec = TensorSpec((card.answers, len(server.space)), torch.float32)
    return {site: answer.tensors[COUNTS] for site, answer in server.ask(COUNT, briefs, {COUNTS: spec}).items()}


def coarse_groups(server: Server, sites: Iterable[SiteId]) -> list[list[SiteId]]:
    """Return the coarse ones among sites, those of the same names together."""
    groups: dict[str, list[SiteId]] = {}
    for site in sorted(sites):
        if names := server.cards[site].names:
            groups.setdefault(names, []).append(site)
    return list(groups.values())


@dataclass(frozen=True)
class ConfidenceWatch:
    """A server step that notes the share of confident samples, and warns when there are none.

    `unused` is what nothing was learned from in such a round; empty where pseudo-labels are not wanted at all.
    """

    threshold: float
    rounds: int
    unused: str = "the sites' labels"

    def __call__(self, server: Server) -> None:
        """Count what this round's sites told; a silent one had no confident sample, of one dropped nothing is known."""
        replies = server.replies
        numbers = [m.numbers.get(CONFIDENT, 0) for m in replies.messages] if replies is not None else []
        told = [number for number in numbers if is_finite(number)]
        answered = [*(replies.sites if replies is not None else ()), *server.silent]
        if not answered:
            return
        samples = sum(server.cards[site].samples for site in answered)
        share = min(1.0, sum(max(0.0, float(n)) for n in told) / max(1, samples))
        server.figures[CONFIDENT] = share
        kept = server.state.method.numbers
        if share > 0 or not self.unused:
            kept[SILENT_ROUNDS] = 0
            return
        at = server.state.round + 1
        kept[SILENT_ROUNDS] = int(kept.get(SILENT_ROUNDS, 0)) + 1
        whose = "any site" if len(answered) == len(server.sample_sites()) else "any site that answered"
        none = f"no sample of {whose} was above the threshold {self.threshold:g}"
        hint = "lower method.threshold or give the server's model a method.warmup"
        if kept[SILENT_ROUNDS] == self.rounds:
            said = f"in every one of the {self.rounds} rounds {none}, so {self.unused} were never used"
            server.warn(f"{said}; {hint}")
        elif kept[SILENT_ROUNDS] == 1:
            server.warn(f"in round {at} {none}; {hint}")


def head_spec(server: Server, card: SiteCard) -> dict[str, TensorSpec]:
    """Return what a reply holds beside the model where sites share heads for their own names."""
    names, width = card.answers or len(server.space), server.network.head.in_features
    return {
        f"{OWN_HEAD}/weight": TensorSpec((names, width), torch.float32),
        f"{OWN_HEAD}/bias": TensorSpec((names,), torch.float32),
    }


def average_heads(server: Server) -> None:
    """Average, as a server step, the heads of sites that use the same names, by the weights of their replies.

    Where the models are combined by a robust rule, a group's head is the middle one.
    """
    if server.replies is None:
        return
    for names in sorted({server.cards[site].names for site in server.replies.sites}):
        rows = [i for i, site in enumerate(server.replies.sites) if server.cards[site].names == names]
        robust = _withstands(server, server.cards[server.replies.sites[rows[0]]], len(rows))
        shares = (server.replies.weights[rows] / server.replies.weights[rows].sum()).float()
        for part in ("weight", "bias"):
            sent = torch.stack([server.replies.messages[i].tensors[f"{OWN_HEAD}/{part}"] for i in rows])
            combined = median(sent) if robust else torch.einsum("s,s...->...", shares, sent)
            server.state.method.tensors[f"{OWN_HEAD}/{names}/{part}"] = combined


def tell_head(server: Server, card: SiteCard) -> Message:
    """Return the brief's part for a site: the head of its names, and its encoder where that is not the model's."""
    told, method = Message(), server.state.method
    told.put(OWN_HEAD, method.select(f"{OWN_HEAD}/{card.names}"))
    if BEFORE_TUNING in method.tensors:
        before, cut = server.layout.named(method.tensors[BEFORE_TUNING]), len("encoder.")
        told.put(OWN_ENCODER, {s.name[cut:]: before[s.name] for s in server.layout.slots_of("encoder")})
    return told
