"""Balance (docs/methods.md 4.3): shift the head's biases so that the mean prediction has given label frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.errors import ConfigError
from fedaccord.methods.private_labels.tuning import NO_INPUTS, TINY, adopt_tuned
from fedaccord.models.predicting import predict_logits

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


@dataclass(frozen=True)
class Balancing:
    """A server step after the last round: balance the mean prediction on the unlabelled inputs."""

    rounds: int
    frequencies: Sequence[float] | None = None  # None: uniform
    from_sites: bool = False  # instead: each site's samples spread evenly over its known labels
    steps: int = 30
    damping: float = 0.5

    def refuse_unfit(self, server: Server) -> None:
        """Raise ConfigError for a wrong number of frequencies, or a head without biases."""
        given, labels = self.frequencies, len(server.space)
        if given is not None and len(given) != labels:
            raise ConfigError(f"method.frequencies: there are {labels} labels, so {labels} numbers, not {len(given)}")
        if server.network.head.bias is None:
            raise ConfigError("method.tuning: 'balance' shifts the head's biases, and the head of this model has none")

    def __call__(self, server: Server) -> None:
        """Balance the model after the last round."""
        x = server.unlabelled
        if server.state.round + 1 < self.rounds:
            return
        if x is None or not len(x):
            server.drop("", "tuning", "", NO_INPUTS)
            return
        trained = self._trained_labels(server)
        logits = predict_logits(server.load_network(), x).cpu()[:, trained]
        shift = balancing_shift(logits, self._target(server)[trained], self.steps, self.damping)
        model = server.state.model.clone()
        server.layout.named(model)["head.bias"][trained] += shift
        adopt_tuned(server, model)

    def _trained_labels(self, server: Server) -> Tensor:
        """Return which labels some site has trained, including sites that have left: bool (C,)."""
        trained = [card.informs for card in server.cards.values() if card.samples > 0]
        return torch.stack(trained).any(0) if trained else torch.zeros(len(server.space), dtype=torch.bool)

    def _target(self, server: Server) -> Tensor:
        """Return the wanted frequencies of all labels, not normalised."""
        if self.frequencies is not None:
            return torch.tensor(self.frequencies, dtype=torch.float32)
        if not self.from_sites:
            return torch.ones(len(server.space))
        cards = [server.cards[site] for site in sorted(server.cards)]  # including sites that have left
        return torch.stack([c.samples * c.informs.float() / max(1, int(c.informs.sum())) for c in cards]).sum(0)


def balancing_shift(logits: Tensor, frequencies: Tensor, steps: int = 30, damping: float = 0.5) -> Tensor:
    """Return the bias under which the mean prediction has these frequencies, by damped fixed-point steps.

    Frequencies need not sum to one.
    """
    frequencies = frequencies.clamp(min=TINY) / frequencies.clamp(min=TINY).sum()
    shift = torch.zeros_like(frequencies)
    for _ in range(steps):
        mean = torch.softmax(logits + shift, -1).mean(0)
        shift = shift + damping * (frequencies.log() - mean.clamp(min=TINY).log())
    return shift - shift.mean()
