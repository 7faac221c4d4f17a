"""The view of samples that come from different views: each carries its own offset and its own evidence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fedaccord.errors import ConfigError
from fedaccord.labels.views import View, below_top


class Pooled(View):
    """Samples of several single-label views in one place. Target: float (B, 2, C), offset and evidence."""

    kind = "pooled"

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Refuse: pooled targets are made from targets of other views."""
        raise ConfigError("a pooled view reads no annotations of its own")

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return what each sample's own view would."""
        z = below_top(logits + target[:, 0])
        return torch.logsumexp(z, -1) - torch.logsumexp(z + target[:, 1], -1)

    def annotated(self, target: Tensor) -> Tensor:
        """Say for each sample whether its evidence tells labels apart."""
        return (target[:, 1] != 0).any(-1)

    def evidence(self, target: Tensor) -> Tensor:
        """Return the evidence carried along."""
        return target[:, 1]


def pooled_target(view: View, target: Tensor) -> Tensor:
    """Turn a view's targets into pooled ones."""
    evidence = view.evidence(target)
    offset = torch.zeros(len(view.space)) if view.offset is None else view.offset
    return torch.stack([offset.expand_as(evidence), evidence], dim=1)
