"""One view of several sites, so that they train and are evaluated as one program."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from fedaccord.lazy import torch

if TYPE_CHECKING:
    from fedaccord.labels.views.base import View

_View = TypeVar("_View", bound="View")


def stacked(views: Sequence[_View], attributes: Iterable[str], device: torch.device | None) -> _View:
    """Return a copy of the first view with the offsets and these attributes of all views stacked: (sites, 1, ...)."""
    whole = copy.copy(views[0])
    none = torch.zeros(len(whole.space))
    if any(view.offset is not None for view in views):
        offsets = [none if view.offset is None else view.offset.cpu() for view in views]
        whole.offset = torch.stack(offsets)[:, None].to(device)
    for name in attributes:
        setattr(whole, name, torch.stack([getattr(view, name) for view in views])[:, None].to(device))
    return whole
