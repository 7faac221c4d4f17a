"""Annotations read as candidate sets, on which partial-label learning is defined."""

from __future__ import annotations

from torch import Tensor

from fedaccord.labels.views import View


def candidate_sets(view: View, target: Tensor) -> Tensor | None:
    """Return the labels that each annotation leaves possible, bool (n, C); None if annotations are no sets."""
    return view.candidate_sets(target)


def known_labels(view: View) -> Tensor:
    """Return the labels that the view's softmax runs over: bool (C,)."""
    return view.possible_labels()
