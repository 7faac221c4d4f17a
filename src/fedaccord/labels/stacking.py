"""The views of several sites as one, so that one call computes the losses of all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedaccord.labels.views import View


def stack_views(views: Sequence[View], device: torch.device | None = None) -> View:
    """Return a view whose `nll` takes logits (sites, batch, labels) and the sites' targets (sites, batch, ...)."""
    return type(views[0]).stack(views, device)


def alike(view: View) -> str:
    """Return a key that views must share to be stacked; empty if the view cannot be."""
    return view.stacking_key() or ""
