"""The views of several sites as one: its tensors have a first axis of sites, so that one call sees them all."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedaccord.labels.views import Coarse, Tags, View


def stack_views(views: Sequence[View], device: torch.device | None = None) -> View:
    """Return a view whose `nll` takes logits (sites, batch, labels) and the sites' targets (sites, batch, ...).

    All views are of one kind, as `alike` says.
    """
    stacked = StackedCoarse(views, device) if isinstance(views[0], Coarse) else copy.copy(views[0])
    stacked.offset = _offsets(views, device)
    if isinstance(stacked, Tags):
        stacked._knows = torch.stack([view.informs() for view in views])[:, None].to(device)
    return stacked


def alike(view: View) -> str:
    """Name what views must have in common to be stacked."""
    return type(view).__name__


class StackedCoarse(Coarse):
    """Coarse views of several sites; rows of their matrices that a site does not have are never looked up."""

    def __init__(self, views: Sequence[View], device: torch.device | None) -> None:
        self.__dict__.update(vars(views[0]))
        matrices = [view._log_matrix for view in views if isinstance(view, Coarse)]
        self._log_matrix = pad_sequence(matrices, batch_first=True).to(device)  # (sites, coarse names, labels)

    def _rows(self, target: Tensor, device: torch.device) -> Tensor:
        sites = torch.arange(len(target), device=device)[:, None]
        return self._log_matrix[sites, target.clamp(min=0)]


def _offsets(views: Sequence[View], device: torch.device | None) -> Tensor | None:
    if all(view.offset is None for view in views):
        return None
    none = torch.zeros(len(views[0].space))
    return torch.stack([none if view.offset is None else view.offset.cpu() for view in views])[:, None].to(device)
