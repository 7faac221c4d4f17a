"""Watch the share of confident samples, without which pseudo-labels have no effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedaccord.messages.checks import is_finite
from fedaccord.methods.mixed_types.objective import CONFIDENT

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

SILENT_ROUNDS = "rounds without a confident sample"  # in the method's state


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
