"""Which labels a site knows that is said to know its "own": those it was dealt, or those that occur there."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from fedaccord.data.dataset import Array, Rows
from fedaccord.labels.declarations import AnyView, CandidatesView, ExactView


def knows_its_own(view: AnyView) -> TypeGuard[ExactView | CandidatesView]:
    """Say whether a declaration leaves it to the site's samples which labels it knows."""
    return isinstance(view, ExactView | CandidatesView) and view.known == "own"


def dealt_view(view: AnyView, partition: str) -> AnyView:
    """Return the view of a site; where each is dealt a set of labels, it knows that set unless it says otherwise."""
    if partition == "label-sets" and isinstance(view, ExactView | CandidatesView) and view.known is None:
        return view.model_copy(update={"known": "own"})
    return view


def occurring(rows: Rows, view: ExactView | CandidatesView) -> Array:
    """Return the columns of the labels that occur: in the samples' candidate sets, else as their true classes."""
    if isinstance(view, CandidatesView) and view.generate is None and rows.candidates is not None:
        return np.flatnonzero(rows.candidates.any(0))
    return np.empty(0, dtype=np.int64) if rows.y is None else np.unique(rows.y)
