"""The correspondence of another labelling criterion to the classes: `M[j, k] = P(coarse label j | class k)`.

A config file declares it, or it is estimated (docs/methods.md 6.3). In the estimates `coarse` holds the coarse column
of each sample, (n,), `classes` its predicted class, and `probabilities` P(class | sample), (n, K). Samples without
annotation, whose coarse column is -1, are not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any

from fedaccord.errors import ConfigError, CorrespondenceError, did_you_mean
from fedaccord.labels.space import LabelSpace
from fedaccord.lazy import Tensor, torch

Groups = Mapping[str, Sequence[str] | Mapping[str, float]]
TOLERANCE = 1e-6
CORRESPONDENCE = "correspondence"  # name of an estimate in messages, in a site's memory and in a model folder
SMALLEST = 1e-8  # lower bound of a matrix entry before its logarithm


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
        unnamed = f"{where}: a class that it does not name has no probability"
        for name, problem in column_problems(matrix, space, where).items():
            problems[problem] = problem if name in named else unnamed
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


def uniform_matrix(names: int, classes: int) -> Tensor:
    """Return the uninformative matrix: every coarse name is equally likely given every class."""
    return torch.full((names, classes), 1.0 / names)


def confident(probabilities: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Return the most likely class of each sample, and whether its probability exceeds the threshold."""
    best = probabilities.max(-1)
    return best.indices, best.values > threshold


def pair_counts(coarse: Tensor, classes: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the number of samples by coarse name and class: float (J, K)."""
    seen = coarse >= 0
    pairs = coarse[seen] * shape[1] + classes[seen]
    return torch.bincount(pairs, minlength=shape[0] * shape[1]).reshape(shape).float()


def columns_of_counts(counts: Tensor, fallback: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return `(count + s) / (total + J s)` for each column; an empty column is taken from the fallback.

    A column of zeros would lose the mass of its class, and the loss would suppress that class.
    """
    total = counts.sum(0, keepdim=True)
    shares = (counts + smoothing) / (total + len(counts) * smoothing).clamp(min=torch.finfo(counts.dtype).tiny)
    return torch.where(total > 0, shares, fallback)


def estimate_by_counts(
    probabilities: Tensor, coarse: Tensor, threshold: float, fallback: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return variant E's matrix from confident samples, and the columns that these samples fill: bool (K,)."""
    classes, sure = confident(probabilities, threshold)
    shape = (fallback.shape[0], fallback.shape[1])
    counts = pair_counts(coarse[sure], classes[sure], shape)
    return columns_of_counts(counts, fallback, smoothing), counts.sum(0) > 0


def average_columns(matrices: Sequence[Tensor], valid: Sequence[Tensor], fallback: Tensor) -> Tensor:
    """Return the mean of matrices, each column over those in which it is valid; otherwise from the fallback."""
    stacked, counted = torch.stack(list(matrices)), torch.stack(list(valid)).to(fallback.dtype)
    number = counted.sum(0)
    mean = (stacked * counted[:, None, :]).sum(0) / number.clamp(min=1)
    return torch.where(number > 0, mean, fallback)


def median_columns(matrices: Sequence[Tensor], valid: Sequence[Tensor], fallback: Tensor) -> Tensor:
    """Return the median of matrices, each entry over those in which its column is valid, with normalised columns.

    A column that is never valid, or whose medians are all zero, is taken from the fallback.
    """
    stacked, counted = torch.stack(list(matrices)), torch.stack(list(valid))
    middle = stacked.masked_fill(~counted[:, None, :], torch.nan).nanquantile(0.5, dim=0).nan_to_num(0.0)
    return columns_of_counts(middle, fallback)


def sent_matrix(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a received matrix with entries clamped to 0..1 and columns normalised, and its non-empty columns."""
    shares = matrix.clamp(0, 1)
    return columns_of_counts(shares, torch.zeros_like(shares)), shares.sum(0) > 0


def sent_counts(counts: Tensor, samples: int) -> Tensor:
    """Return received counts, clamped so that none is negative and their sum is at most the number of samples."""
    counts = counts.clamp(0, samples)
    return counts * min(1.0, samples / max(float(counts.sum()), 1e-12))


def expected_counts(probabilities: Tensor, coarse: Tensor, matrix: Tensor) -> Tensor:
    """Return the counts of the E-step (J, K): each sample counts for the classes by its posterior `p_k M[j, k]`.

    Counts of several sites add up. `columns_of_counts` is the M-step.
    """
    seen = coarse >= 0
    joint = probabilities[seen] * matrix[coarse[seen]]
    joint = joint / joint.sum(-1, keepdim=True).clamp(min=torch.finfo(joint.dtype).tiny)
    return torch.zeros_like(matrix).index_add_(0, coarse[seen], joint.to(matrix.dtype))


def matrix_of_logits(logits: Tensor) -> Tensor:
    """Return the learnable matrix: a softmax over the coarse names in each column."""
    return torch.softmax(logits, 0)


def logits_of_matrix(matrix: Tensor) -> Tensor:
    """Return the free parameters of a matrix."""
    return (matrix + SMALLEST).log()


def frobenius(first: Tensor, second: Tensor) -> float:
    """Return the Frobenius norm of the difference of two matrices."""
    return float(torch.linalg.matrix_norm(first.float() - second.float()))
