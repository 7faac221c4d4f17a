"""Noise on inputs and features, so that a model of few samples does not learn them by heart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.models.network import Network
from fedaccord.training.objectives import Objective, RowObjective, UpdateFrom, WrappedObjective
from fedaccord.training.work import FEATURES, Batch, LocalWork


@dataclass(frozen=True)
class Noisy(RowObjective, WrappedObjective):
    """Another objective whose loss sees each sample with fresh noise; what follows a step sees it as it is."""

    augments: ClassVar[bool] = True

    inner: Objective
    noise: float = 0.0  # standard deviation on the inputs; features are standardised, so 1 is as large as they are
    dropout: float = 0.0  # share of the encoder's output that is left out

    @property
    def wrapped(self) -> Objective:
        """The inner objective."""
        return self.inner

    def start(self, work: LocalWork) -> None:
        """Start the other objective."""
        self.inner.start(work)

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the other objective's loss of the noisy batch."""
        x = self._noisy(work, batch.x)
        encoder = work.model.encoder
        assert isinstance(encoder, nn.Module)

        def leave_out(encoder: nn.Module, given: tuple[Tensor, ...], features: Tensor) -> Tensor:
            return features * left_in(features, self.dropout, work.random)

        hook = encoder.register_forward_hook(leave_out) if self.dropout else None
        try:
            return self.inner.loss(work, batch._replace(x=x))
        finally:
            if hook is not None:
                hook.remove()

    def after_step(self, work: LocalWork, batch: Batch) -> None:
        """Tell the other objective, of the batch as it is."""
        self.inner.after_step(work, batch)

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Let the other objective add to the reply."""
        self.inner.finish(work, reply)

    # The form in which many sites train as one program

    def is_batchable(self) -> bool:
        """Say that they may where the other objective draws nothing of its own."""
        return isinstance(self.inner, RowObjective) and self.inner.is_batchable() and not self.inner.augments

    def augment(self, work: LocalWork, batch: Batch) -> Batch:
        """Return the batch with noise, and with what is left of the encoder's output."""
        x, kept = self._noisy(work, batch.x), dict(batch.row_state)
        if self.dropout:
            features = x.new_empty(len(x), cast(Network, work.model).features_width)
            kept[FEATURES] = left_in(features, self.dropout, work.random)
        return batch._replace(x=x, row_state=kept)

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return the other objective's."""
        return self._rows.row_losses(view, logits, batch)

    def row_state(self, work: LocalWork) -> dict[str, Tensor]:
        """Return what the other objective keeps."""
        return self._rows.row_state(work)

    def updates_from(self) -> UpdateFrom:
        """Renew as the other objective does."""
        return self._rows.updates_from()

    def updated_rows(self, view: View, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the other objective's."""
        return self._rows.updated_rows(view, logits, batch)

    @property
    def _rows(self) -> RowObjective:
        return cast(RowObjective, self.inner)

    def _noisy(self, work: LocalWork, x: Tensor) -> Tensor:
        if not self.noise:
            return x
        # Drawn on the CPU, whose stream is the task's own, so that it is the same wherever the site runs.
        return x + self.noise * torch.randn(x.shape, dtype=x.dtype, generator=work.random).to(x.device)


def left_in(features: Tensor, share_out: float, random: torch.Generator) -> Tensor:
    """Draw what features are multiplied by so that a share of them is left out and their mean stays."""
    kept = torch.empty(features.shape, dtype=features.dtype).bernoulli_(1 - share_out, generator=random)
    return kept.div_(1 - share_out).to(features.device)
