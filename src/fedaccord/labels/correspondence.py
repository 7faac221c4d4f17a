"""How another labelling criterion maps to ours: the matrix `M[j, k] = P(coarse label j | class k)`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from fedaccord.errors import ConfigError, CorrespondenceError, did_you_mean
from fedaccord.labels.space import LabelSpace
from fedaccord.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")

Groups = Mapping[str, Sequence[str] | Mapping[str, float]]
TOLERANCE = 1e-6


def correspondence_matrix(groups: Groups, space: LabelSpace, where: str = "correspondence") -> Tensor:
    """Build the `J x K` matrix from coarse names that list classes, or give each class a probability.

    A class listed under several coarse names is seen as each of them equally often. With plain lists, a class that is
    listed nowhere has a zero column: the site never sees it. With probabilities every column must sum to one. A
    CorrespondenceError tells every mistake.
    """
    _check_form(groups, where)
    problems: dict[str, str] = {}  # each mistake, and how it is told to a site that may not read all classes
    given = [isinstance(members, Mapping) for members in groups.values()]
    if any(given) and not all(given):
        mixed = f"{where} mixes lists of classes with tables of probabilities; use one form for all"
        raise CorrespondenceError([mixed], [mixed])
    matrix = torch.zeros(len(groups), len(space), dtype=torch.float64)
    for row, (coarse, members) in enumerate(groups.items()):
        for name, share in _shares(members).items():
            if name not in space:
                unknown = f"{where}, coarse label '{coarse}': '{name}' is not a label of this federation"
                problems[f"{unknown}; {did_you_mean(name, space.names)}"] = unknown
            elif not share >= 0:
                said = f"{where}: the probability of '{coarse}' given '{name}' is {share}, below zero"
                problems[said] = said
            else:
                matrix[row, space.column(name)] = share
        if not len(members):
            said = f"{where}: the coarse label '{coarse}' maps to no class"
            problems[said] = said
        elif all(share == 0 for share in _shares(members).values()):
            said = f"{where}: the coarse label '{coarse}' has probability zero for every class"
            problems[said] = said
    if not all(given):
        matrix /= matrix.sum(0).clamp(min=1.0)
    elif not problems:  # a mistake above is the reason of a wrong sum
        named = {name for members in groups.values() for name in members}
        for name, said in column_problems(matrix, space, where).items():
            problems[said] = said if name in named else f"{where}: a class that it does not name has no probability"
    if problems:
        raise CorrespondenceError(list(problems), list(dict.fromkeys(problems.values())))
    return matrix.float()


def column_problems(matrix: Tensor, space: LabelSpace, where: str = "correspondence") -> dict[str, str]:
    """Say of each class whose column is not a distribution over the coarse labels what is wrong with it."""
    problems = {}
    for name, column in zip(space, matrix.double().T, strict=True):
        total = float(column.sum())
        if bool((column < 0).any()):
            problems[name] = f"{where}: a probability given class '{name}' is below zero"
        elif not abs(total - 1) <= TOLERANCE:  # so written, it refuses NaN as well
            problems[name] = f"{where}: the probabilities given class '{name}' sum to {total:g}, not to 1"
    return problems


def check_columns(matrix: Tensor, space: LabelSpace, where: str = "correspondence") -> None:
    """Refuse a matrix whose columns are not distributions over the coarse labels."""
    problems = list(column_problems(matrix, space, where).values())
    if problems:
        raise CorrespondenceError(problems, problems)


def readable_groups(groups: Groups, space: LabelSpace) -> dict[str, list[str]]:
    """Return lists of classes close to a wrong correspondence, so that its site can be looked at all the same.

    A coarse name with no class stands for all that the others cover: then it tells nothing apart and covers no more.
    """
    lists = {
        coarse: [name for name, share in _shares(members).items() if name in space and share > 0]
        for coarse, members in groups.items()
    }
    covered = list(dict.fromkeys(name for members in lists.values() for name in members)) or list(space.names)
    return {coarse: members or covered for coarse, members in lists.items()}


def _shares(members: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    pairs = members.items() if isinstance(members, Mapping) else ((name, 1.0) for name in members)
    return {str(name): share for name, share in pairs}


def _check_form(groups: Any, where: str) -> None:
    """Refuse what is no table of coarse names at all; a program can give anything."""
    form = 'a table of coarse names and the classes behind each, as in {"ill": ["cold", "flu"]}'
    if not isinstance(groups, Mapping):
        raise ConfigError(f"{where} should be {form}, not a {type(groups).__name__}")
    if not groups:
        raise ConfigError(f"{where} names no coarse label")
    for coarse, members in groups.items():
        if isinstance(members, str) or not isinstance(members, Collection):
            raise ConfigError(f"{where} should be {form}; '{coarse}' has {members!r} instead of a list")
        for name, share in members.items() if isinstance(members, Mapping) else ():
            if not isinstance(share, Real):
                raise ConfigError(f"{where}: the probability of '{coarse}' given '{name}' is {share!r}, not a number")
