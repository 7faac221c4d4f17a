"""Noise on inputs and features, so that a model of few samples does not learn them by heart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.messages.message import Message
from fedaccord.training.objectives import Objective
from fedaccord.training.work import Batch, LocalWork


@dataclass(frozen=True)
class Noisy(Objective):
    """Another objective whose loss sees each sample with fresh noise; what follows a step sees it as it is."""

    inner: Objective
    noise: float = 0.0  # standard deviation on the inputs; features are standardised, so 1 is as large as they are
    dropout: float = 0.0  # share of the encoder's output that is left out

    def start(self, work: LocalWork) -> None:
        """Start the other objective."""
        self.inner.start(work)

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the other objective's loss of the noisy batch."""
        x = batch.x
        if self.noise:
            # Drawn on the CPU, whose stream is the task's own, so that it is the same wherever the site runs.
            x = x + self.noise * torch.randn(x.shape, dtype=x.dtype).to(x.device)
        encoder = work.model.encoder
        assert isinstance(encoder, nn.Module)
        hook = encoder.register_forward_hook(self._leave_out) if self.dropout else None
        try:
            return self.inner.loss(work, batch._replace(x=x))
        finally:
            if hook is not None:
                hook.remove()

    def stepped(self, work: LocalWork, batch: Batch) -> None:
        """Tell the other objective, of the batch as it is."""
        self.inner.stepped(work, batch)

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Let the other objective add to the reply."""
        self.inner.finish(work, reply)

    def _leave_out(self, encoder: nn.Module, given: tuple[Tensor, ...], features: Tensor) -> Tensor:
        return F.dropout(features, self.dropout)
