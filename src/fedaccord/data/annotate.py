"""Samples as a site sees them: with annotations made from true classes in a study, or read from its own arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.dataset import Array, Rows
from fedaccord.data.scaling import Moments, apply_moments
from fedaccord.data.site_data import Samples
from fedaccord.errors import ConfigError, DataError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import LabelArrays, View, ViewContext, ViewDeclaration, build_view


@dataclass(frozen=True)
class Annotated:
    """Samples as a site sees them."""

    view: View
    rows: Rows
    target: Tensor
    truth: Tensor | None  # the true class if it is known; for evaluation only
    left_out: int = 0  # samples of classes the site does not know

    def part(self, index: Array, moments: Moments | None) -> Samples:
        """Return some of the samples, scaled."""
        rows, at = self.rows.take(index), torch.from_numpy(index)
        truth = None if self.truth is None else self.truth[at]
        groups = (None if values is None else torch.from_numpy(values) for values in (rows.groups, rows.group))
        return Samples(torch.from_numpy(apply_moments(rows.x, moments)), self.target[at], truth, *groups)


def label_arrays(rows: Rows, names: tuple[str, ...], chances: Array | None = None) -> LabelArrays:
    """Return the labels of some rows in the form in which views take them."""
    return LabelArrays(len(rows), names, rows.y, rows.tags, rows.candidates, chances)


def observe(
    rows: Rows,
    declared: ViewDeclaration,
    space: LabelSpace,
    context: ViewContext,
    chances: Array | None,
    rng: np.random.Generator,
) -> Annotated:
    """Return what a site sees of samples whose true classes a study knows.

    `chances` are the predictions of a model trained on true classes. Samples that the view cannot annotate are left
    out.
    """
    view = build_view(declared, space, context)
    try:
        keep = np.flatnonzero(view.observable(label_arrays(rows, space.names), declared))
        seen = rows.take(keep)
        arrays = label_arrays(seen, space.names, None if chances is None else chances[keep])
        target = view.generate(arrays, declared, rng)
    except (ConfigError, DataError) as error:
        kind = ConfigError if isinstance(error, ConfigError) else DataError
        raise kind(f"{context.where}: {error}") from None
    truth = None if seen.y is None or not view.one_label else torch.from_numpy(seen.y)
    return Annotated(view, seen, target, truth, len(rows) - len(seen))


def read_annotations(
    rows: Rows, names: tuple[str, ...], declared: ViewDeclaration, space: LabelSpace, context: ViewContext
) -> Annotated:
    """Return what a site sees of its own arrays; `names` are the label names of its file."""
    view, arrays = build_view(declared, space, context), label_arrays(rows, names)
    target = view.read_arrays(arrays, context.where)
    return Annotated(view, rows, target, view.truth_in(arrays, target, context.where))
