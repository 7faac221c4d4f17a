"""Annotations read as candidate sets: what learning from partial labels is defined on."""

from __future__ import annotations

import torch
from torch import Tensor

from fedaccord.labels.views import Candidates, Coarse, Exact, View


def candidate_sets(view: View, target: Tensor) -> Tensor | None:
    """Return the labels that each annotation leaves possible, bool (n, C); None where it says more or less than that.

    An exact label is a set of one, a coarse label the set of its classes. Coarse labels with probabilities weigh the
    classes of a set, and tags are no choice between labels: such sites have no sets.
    """
    if not isinstance(view, Exact | Candidates | Coarse):
        return None
    evidence = view.evidence(target)
    sets = torch.isfinite(evidence)
    if bool((evidence[sets] != 0).any()):
        return None
    return sets & known_labels(view).to(sets.device)


def known_labels(view: View) -> Tensor:
    """Say for each label whether the view's softmax runs over it: bool (C,)."""
    return torch.isfinite(view.adjusted(torch.zeros(len(view.space))))
