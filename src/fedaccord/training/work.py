"""The inputs and the state of one task at one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedaccord.data.site_data import SiteData
from fedaccord.labels.views import View
from fedaccord.messages.message import Message

FIGURES = "figures"
"""Prefix of numbers in a site's memory that are added to its metrics at every evaluation."""


FEATURES = "features"
"""Name in `Batch.row_state` of the factors that multiply the encoder's output, (B, features)."""


class Batch(NamedTuple):
    """Samples of a site, with their row numbers in its training part."""

    rows: Tensor  # int64 (B,)
    x: Tensor
    target: Tensor
    row_state: Mapping[str, Tensor] = MappingProxyType({})  # an objective's tensors of these rows, (B, ...) each

    def with_state(self, state: Mapping[str, Tensor]) -> Batch:
        """Return the batch with its rows of tensors of the whole training part, (n, ...) each."""
        return self._replace(row_state={name: tensor.index_select(0, self.rows) for name, tensor in state.items()})


@dataclass
class LocalWork:
    """One task at one site, as an objective, a solver or a site's task of a recipe sees it.

    `site.train.x` (n, ...) and `site.train.target` are its samples and encoded annotations, `brief` is the server's
    message and `memory` the site's own, which lasts from round to round and never leaves the site. An objective may
    replace `view` and `rows` in `start`; both hold for this task only.
    """

    site: SiteData
    view: View  # with the site's prior, if it has one
    model: nn.Module
    brief: Message
    memory: Message
    round: int
    lr: float
    parameters: list[Tensor]  # the trainable ones, in the model's order
    received: list[Tensor]  # their values at the start of the round
    seed: int
    initial: Mapping[str, Tensor] = field(default_factory=dict)  # all tensors of the network before any training
    extra_parameters: list[Tensor] = field(default_factory=list)  # trained with the model; owned by the objective
    rows: Tensor | None = None  # rows of the training part to train on; None: all
    random: torch.Generator = field(default_factory=lambda: torch.default_generator)  # randomness of the objective
    scratch: dict[str, Any] = field(default_factory=dict)  # the objective's state within the round

    def label_counts(self) -> Tensor:
        """Return how often each label occurs in the annotated training rows, float (C,), on the CPU.

        An annotation that leaves several labels possible counts for each in part. Raise ConfigError for tags.
        """
        target = self.site.train.target
        annotated = self.site.view.annotated(target)
        return torch.softmax(self.site.view.evidence(target[annotated]), -1).sum(0).cpu()
