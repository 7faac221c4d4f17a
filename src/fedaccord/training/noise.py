"""Gaussian noise on inputs and dropout on features, against overfitting on small sites."""

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
    """An inner objective whose loss is computed on noisy samples; `after_step` gets the original batch."""

    augments: ClassVar[bool] = True
    varies: ClassVar[bool] = False  # sites have different amounts, so that each site of a stack needs factors

    inner: Objective
    noise: float = 0.0  # standard deviation on the inputs, which are standardised
    dropout: float = 0.0  # share of the encoder's output set to zero

    @property
    def wrapped(self) -> Objective:
        """The inner objective."""
        return self.inner

    def start(self, work: LocalWork) -> None:
        """Delegates to the inner objective."""
        self.inner.start(work)

    def amounts(self, work: LocalWork) -> tuple[float, float]:
        """Return the noise and the dropout at a site."""
        return self.noise, self.dropout

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the inner objective's loss of the noisy batch."""
        noise, dropout = self.amounts(work)
        x = _noisy(work, batch.x, noise)
        encoder = work.model.encoder
        assert isinstance(encoder, nn.Module)

        def drop_features(encoder: nn.Module, inputs: tuple[Tensor, ...], features: Tensor) -> Tensor:
            return features * dropout_factors(features, dropout, work.random)

        hook = encoder.register_forward_hook(drop_features) if dropout else None
        try:
            return self.inner.loss(work, batch._replace(x=x))
        finally:
            if hook is not None:
                hook.remove()

    def after_step(self, work: LocalWork, batch: Batch) -> None:
        """Delegates to the inner objective."""
        self.inner.after_step(work, batch)

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Delegates to the inner objective."""
        self.inner.finish(work, reply)

    # Several sites as one program

    def is_batchable(self) -> bool:
        """Batchable if the inner objective is and augments nothing itself."""
        return isinstance(self.inner, RowObjective) and self.inner.is_batchable() and not self.inner.augments

    def augment(self, work: LocalWork, batch: Batch) -> Batch:
        """Return the noisy batch, with the dropout factors in its row state."""
        noise, dropout = self.amounts(work)
        x, state = _noisy(work, batch.x, noise), dict(batch.row_state)
        if dropout or self.varies:
            features = x.new_ones(len(x), cast(Network, work.model).features_width)
            state[FEATURES] = dropout_factors(features, dropout, work.random) if dropout else features
        return batch._replace(x=x, row_state=state)

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Delegates to the inner objective."""
        return self._rows.row_losses(view, logits, batch)

    def row_state(self, work: LocalWork) -> dict[str, Tensor]:
        """Delegates to the inner objective."""
        return self._rows.row_state(work)

    def updates_from(self) -> UpdateFrom:
        """Delegates to the inner objective."""
        return self._rows.updates_from()

    def updated_rows(self, view: View, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Delegates to the inner objective."""
        return self._rows.updated_rows(view, logits, batch)

    @property
    def _rows(self) -> RowObjective:
        return cast(RowObjective, self.inner)


def _noisy(work: LocalWork, x: Tensor, noise: float) -> Tensor:
    if not noise:
        return x
    # Drawn on the CPU, so that the noise is the same on every device.
    return x + noise * torch.randn(x.shape, dtype=x.dtype, generator=work.random).to(x.device)


def dropout_factors(features: Tensor, rate: float, random: torch.Generator) -> Tensor:
    """Return factors of the features' shape: zero with probability `rate`, else `1 / (1 - rate)`."""
    mask = torch.empty(features.shape, dtype=features.dtype).bernoulli_(1 - rate, generator=random)
    return mask.div_(1 - rate).to(features.device)
