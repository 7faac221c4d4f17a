"""Correspondence matrices that sites with the same coarse names average (docs/methods.md 6.3), and confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.federation.pooled_correspondence import ask_counts, coarse_groups, group_matrix, uses_median
from fedaccord.labels.correspondence import CORRESPONDENCE, average_columns, median_columns, sent_matrix
from fedaccord.messages.checks import TensorSpec, is_finite
from fedaccord.methods.mixed_types.objective import CONFIDENT

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

SILENT_ROUNDS = "rounds without a confident sample"  # in the method's state


def matrix_spec(server: Server, card: SiteCard) -> dict[str, TensorSpec]:
    """Return the tensors of a reply in addition to the model, if sites send their matrices."""
    shape = (card.answers, len(server.space))
    return {CORRESPONDENCE: TensorSpec(shape, torch.float32)} if card.names else {}


def average_estimates(server: Server) -> None:
    """Average the estimates of the round's sites in each group: a server step (FedMT (E) + Average)."""
    for sites in coarse_groups(server, server.sample_sites()):
        _average(server, server.cards[sites[0]], list(ask_counts(server, sites, {}).values()))


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
