"""The correspondence of another labelling criterion to the classes: `M[j, k] = P(coarse label j | class k)`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any

from fedaccord.errors import ConfigError, CorrespondenceError, did_you_mean
from fedaccord.labels.space import LabelSpace
from fedaccord.lazy import Tensor, torch

Groups = Mapping[str, Sequence[str] | Mapping[str, float]]
TOLERANCE = 1e-6


def correspondence_matrix(groups: Groups, space: LabelSpace, where: str = "correspondence") -> Tensor:
    """Return the `J x K` matrix of coarse names with lists of classes, or with a probability for each class.

    A class in several lists is equally likely to be seen as each of them; a class in none has a zero column, since the
    site never sees it. With probabilities every column must sum to one. CorrespondenceError lists every mistake.
    """
    _check_form(groups, where)
    problems: dict[str, str] = {}  # each mistake, and the same for a site that may not read all classes
    given = [isinstance(members, Mapping) for members in groups.values()]
    if any(given) and not all(given):
        mixed = f"{where} mixes lists of classes with tables of probabilities; use one form for all"
        raise CorrespondenceError([mixed], [mixed])
    matrix = torch.zeros(len(groups), len(space), dtype=torch.float64)
    for row, (coarse, members) in enumerate(groups.items()):
        shares, found = _shares(members), []
        for name, share in shares.items():
            if name not in space:
                unknown = f"{where}, coarse label '{coarse}': '{name}' is not a label of this federation"
                problems[f"{unknown}; {did_you_mean(name, space.names)}"] = unknown
            elif not share >= 0:
                found.append(f"{where}: the probability of '{coarse}' given '{name}' is {share}, below zero")
            else:
                matrix[row, space.column(name)] = share
        if not shares:
            found.append(f"{where}: the coarse label '{coarse}' maps to no class")
        elif not any(shares.values()):
            found.append(f"{where}: the coarse label '{coarse}' has probability zero for every class")
        problems |= dict(zip(found, found, strict=True))
    if not all(given):
        matrix /= matrix.sum(0).clamp(min=1.0)
    elif not problems:  # a mistake above would cause a wrong sum
        named = {name for members in groups.values() for name in members}
        for name, problem in column_problems(matrix, space, where).items():
            problems[problem] = (
                problem if name in named else f"{where}: a class that it does not name has no probability"
            )
    if problems:
        raise CorrespondenceError(list(problems), list(dict.fromkeys(problems.values())))
    return matrix.float()


def column_problems(matrix: Tensor, space: LabelSpace, where: str = "correspondence") -> dict[str, str]:
    """Return a sentence for each class whose column is not a distribution over the coarse labels."""
    problems = {}
    for name, column in zip(space, matrix.double().T, strict=True):
        total = float(column.sum())
        if bool((column < 0).any()):
            problems[name] = f"{where}: a probability given class '{name}' is below zero"
        elif not abs(total - 1) <= TOLERANCE:  # in this form it refuses NaN as well
            problems[name] = f"{where}: the probabilities given class '{name}' sum to {total:g}, not to 1"
    return problems


def readable_groups(groups: Groups, space: LabelSpace) -> dict[str, list[str]]:
    """Return lists of classes close to a wrong correspondence, so that its site can still be checked.

    A coarse name without classes stands for all classes of the others, so that it adds no information.
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
    """Raise ConfigError for a value that is not a table of coarse names; a program can pass anything."""
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
