"""The kind of a site's inputs, by their shape and spread: it decides regularisation and learning rate."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

InputKind = Literal["table", "text", "signal", "image"]
STANDARDISED = 0.1  # mean variance of the features; 1 for standardised numbers, about 1 / width for hashed texts
SHORT_ROWS = 2.0  # mean squared length of a row; 1 for hashed texts, about 100 for the pixels of a flat image


def kind_of_input(x: Tensor) -> InputKind:
    """Return the kind of a site's training inputs, (n, ...)."""
    if x.ndim != 2:
        return "signal" if x.ndim == 3 else "image"
    if float(x.var(0, correction=0).mean()) >= STANDARDISED:
        return "table"
    return "text" if float(x.square().sum(1).mean()) <= SHORT_ROWS else "image"
