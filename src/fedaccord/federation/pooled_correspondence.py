"""The correspondence of coarse names to classes, by EM over the sites that use the same names (docs/methods.md 6.3).

Such sites form a group. A site sends a J x K matrix of expected counts; the server only needs the sum over the group,
so a secure sum would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.robust import FEWEST
from fedaccord.errors import FedAccordError
from fedaccord.labels.correspondence import (
    CORRESPONDENCE,
    columns_of_counts,
    expected_counts,
    frobenius,
    median_columns,
    sent_counts,
    uniform_matrix,
)
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message, SiteId
from fedaccord.models.network import predict_logits
from fedaccord.training.work import FIGURES, LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

COUNT = "count coarse names"  # the task
COUNTS = "counts"  # in the answer
EXCHANGE, EXCHANGES = "exchange", "exchanges"  # in the brief: index and number of exchanges in this round
SCORES = "class probabilities"  # in a site's memory between the exchanges of a round, with the round's number


# At the server


def group_matrix(server: Server, card: SiteCard) -> Tensor:
    """Return the matrix of a site's group; uniform if there is none yet."""
    stored = server.state.method.tensors.get(f"{CORRESPONDENCE}/{card.names}")
    return uniform_matrix(card.answers, len(server.space)) if stored is None else stored


def matrix_brief(server: Server, card: SiteCard) -> Message:
    """Return the matrix of the site's group, if there is one."""
    matrix = server.state.method.tensors.get(f"{CORRESPONDENCE}/{card.names}") if card.names else None
    return Message() if matrix is None else Message({CORRESPONDENCE: matrix})


def sampled_sites(server: Server) -> list[SiteId]:
    """Return the sites that train in the next round."""
    return server.sample_sites()


@dataclass(frozen=True)
class PooledCounts:
    """A server step: EM on counts summed over the round's sites of each group, under the current model."""

    exchanges: int = 5
    smoothing: float = 0.0
    sites: Callable[[Server], list[SiteId]] = sampled_sites  # that are asked in a round

    def __call__(self, server: Server) -> None:
        """Ask each group for counts several times, each time under the matrix of the last counts."""
        for sites in coarse_groups(server, self.sites(server)):
            card = server.cards[sites[0]]
            fallback, matrix = group_matrix(server, card), uniform_matrix(card.answers, len(server.space))
            for exchange in range(self.exchanges):
                answers = ask_counts(server, sites, {CORRESPONDENCE: matrix}, exchange, self.exchanges)
                if not answers:
                    break
                sites = list(answers)  # only these have stored scores
                counts = [sent_counts(answer, server.cards[site].samples) for site, answer in answers.items()]
                if uses_median(server, card, len(counts)):
                    each = [columns_of_counts(part, fallback, self.smoothing) for part in counts]
                    matrix = median_columns(each, [part.sum(0) > 0 for part in counts], fallback)
                else:
                    matrix = columns_of_counts(torch.stack(counts).sum(0), fallback, self.smoothing)
            else:
                server.state.method.tensors[f"{CORRESPONDENCE}/{card.names}"] = matrix


def ask_counts(
    server: Server, sites: Sequence[SiteId], tensors: dict[str, Tensor], exchange: int = 0, exchanges: int = 1
) -> dict[SiteId, Tensor]:
    """Ask the sites of a group for counts; the first exchange of a round also sends the model."""
    model, recipe = server.tensors, server.recipe
    briefs = {}
    for site in sites:
        card = server.cards[site]
        shared = recipe.sharing.outgoing(server.layout, model, card.informs) if exchange == 0 else {}
        words = dict(recipe.exchange.brief_for(server, card).words)
        briefs[site] = Message(shared | tensors, {EXCHANGE: exchange, EXCHANGES: exchanges}, words)
    spec = TensorSpec((server.cards[sites[0]].answers, len(server.space)), torch.float32)
    return {site: answer.tensors[COUNTS] for site, answer in server.ask(COUNT, briefs, {COUNTS: spec}).items()}


def coarse_groups(server: Server, sites: Iterable[SiteId]) -> list[list[SiteId]]:
    """Return the sites with coarse names, grouped by these names."""
    groups: dict[str, list[SiteId]] = {}
    for site in sorted(sites):
        if names := server.cards[site].names:
            groups.setdefault(names, []).append(site)
    return list(groups.values())


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


# At a site


def expected_names(work: LocalWork, matrix: Tensor, target: Tensor, adjusted: bool = False) -> Message:
    """Return the counts of the E-step, (J, K), under a matrix and the model that was sent in this round.

    `adjusted` adds the site's prior to the logits.
    """
    probabilities = class_probabilities(work, adjusted)
    return Message({COUNTS: expected_counts(probabilities, target, matrix.to(probabilities.device)).cpu()})


def class_probabilities(work: LocalWork, adjusted: bool = False) -> Tensor:
    """Return P(class | sample) under the round's model, stored from the first exchange of a round to the last."""
    memory, numbers = work.memory, work.brief.numbers
    if not numbers.get(EXCHANGE, 0):
        logits = predict_logits(work.model, work.site.train.x)
        scores = torch.softmax(work.view.adjusted(logits) if adjusted else logits, -1)
    elif memory.numbers.get(SCORES) == work.round:
        scores = memory.tensors[SCORES].to(work.site.train.x.device)
    else:
        raise FedAccordError(f"site '{work.site.name}' was asked to count without the model of round {work.round}")
    if numbers.get(EXCHANGE, 0) + 1 < numbers.get(EXCHANGES, 1):
        memory.tensors[SCORES], memory.numbers[SCORES] = scores.cpu(), work.round
    else:
        memory.tensors.pop(SCORES, None)
        memory.numbers.pop(SCORES, None)
    return scores


def remember_matrix(work: LocalWork, matrix: Tensor) -> None:
    """Store the matrix in memory; record its change and, if the truth is declared, its error."""
    figures, matrix = work.memory.numbers, matrix.cpu()
    before = work.memory.tensors.get(CORRESPONDENCE)
    if before is not None:
        figures[f"{FIGURES}/matrix_change"] = frobenius(matrix, before)
    declared = work.site.view
    if declared.has_own_names and declared.is_known:
        figures[f"{FIGURES}/matrix_error"] = frobenius(matrix, declared.matrix)
    work.memory.tensors[CORRESPONDENCE] = matrix
