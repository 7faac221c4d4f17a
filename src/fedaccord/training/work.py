"""What one task of one site works with."""

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
"""Numbers of this prefix in a site's memory join its figures whenever it is evaluated."""


FEATURES = "features"
"""What a batch keeps under this name is multiplied with the encoder's output."""


class Batch(NamedTuple):
    """Some samples of a site and where they stand in its training part."""

    rows: Tensor
    x: Tensor
    target: Tensor
    row_state: Mapping[str, Tensor] = MappingProxyType({})  # what an objective keeps of these rows


@dataclass
class LocalWork:
    """A site at work: its data and view, the model with everything loaded, what it was told and what it keeps."""

    site: SiteData
    view: View  # with this site's prior, if it has one
    model: nn.Module
    brief: Message
    memory: Message
    round: int
    lr: float
    parameters: list[Tensor]  # those that train, in the model's order
    received: list[Tensor]  # their values as they came in
    seed: int
    extra_parameters: list[Tensor] = field(
        default_factory=list
    )  # an objective's own parameters, trained beside the model's
    rows: Tensor | None = None  # the rows of the training part that train; None: all
    random: torch.Generator = field(default_factory=lambda: torch.default_generator)  # what an objective draws from
    scratch: dict[str, Any] = field(default_factory=dict)  # an objective's own, for this round only
