"""How another labelling criterion maps to ours: the matrix `M[j, k] = P(coarse label j | class k)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedaccord.errors import ConfigError
from fedaccord.labels.space import LabelSpace

Groups = Mapping[str, Sequence[str] | Mapping[str, float]]
TOLERANCE = 1e-6


def correspondence_matrix(groups: Groups, space: LabelSpace, where: str = "correspondence") -> Tensor:
    """Build the `J x K` matrix from coarse names that list classes, or give each class a probability.

    A class listed under several coarse names is seen as each of them equally often. With plain lists, a class that is
    listed nowhere has a zero column: the site never sees it. With probabilities every column must sum to one.
    """
    if not groups:
        raise ConfigError(f"{where} names no coarse label")
    matrix = torch.zeros(len(groups), len(space), dtype=torch.float64)
    given = [isinstance(members, Mapping) for members in groups.values()]
    if any(given) and not all(given):
        raise ConfigError(f"{where} mixes lists of classes with tables of probabilities; use one form for all")
    for row, (coarse, members) in enumerate(groups.items()):
        if not members:
            raise ConfigError(f"{where}: the coarse label '{coarse}' maps to no class")
        shares = members if isinstance(members, Mapping) else dict.fromkeys(members, 1.0)
        for name, share in shares.items():
            column = space.column(name, f"{where}, coarse label '{coarse}'")
            if not share >= 0:
                raise ConfigError(f"{where}: the probability of '{coarse}' given '{name}' is {share}, below zero")
            matrix[row, column] = share
        if not matrix[row].any():
            raise ConfigError(f"{where}: the coarse label '{coarse}' has probability zero for every class")
    if all(given):
        check_columns(matrix, space, where)
    else:
        matrix /= matrix.sum(0).clamp(min=1.0)
    return matrix.float()


def check_columns(matrix: Tensor, space: LabelSpace, where: str = "correspondence") -> None:
    """Refuse a matrix whose columns are not distributions over the coarse labels."""
    for name, column in zip(space, matrix.double().T, strict=True):
        if bool((column < 0).any()):
            raise ConfigError(f"{where}: a probability given class '{name}' is below zero")
        total = float(column.sum())
        if not abs(total - 1) <= TOLERANCE:  # so written, it refuses NaN as well
            raise ConfigError(f"{where}: the probabilities given class '{name}' sum to {total:g}, not to 1")
