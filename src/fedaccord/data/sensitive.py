"""A sensitive attribute: its groups, how a study makes them uncertain, and their place among the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedaccord.data.dataset import Dataset, Rows
from fedaccord.data.declarations import Sensitive
from fedaccord.data.tables import natural
from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.labels import corruption
from fedaccord.seeds import derive


@dataclass(frozen=True)
class Target:
    """The group and label whose fairness is measured, attacked or defended, and the place of groups among inputs."""

    groups: tuple[str, ...]
    group: int  # column of the group
    label: int  # column of the unfavourable label
    block: int | None = None  # index of the first group among the inputs; None: groups are not inputs
    normalised: bool = False  # as an input, each candidate of a row counts as its share of 1

    @property
    def inputs(self) -> slice | None:
        """The inputs that are groups."""
        return None if self.block is None else slice(self.block, self.block + len(self.groups))

    def describe(self) -> dict[str, Any]:
        """Return the target for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, described: dict[str, Any] | None) -> Target | None:
        """Return the target from the result of `describe`."""
        return None if described is None else cls(**{**described, "groups": tuple(described["groups"])})


def find_target(
    groups: Sequence[str], labels: Sequence[str], group: str, label: str, block: int | None, normalised: bool = False
) -> Target:
    """Return the target by names; raise ConfigError with the closest name for an unknown one."""
    if not groups:
        raise ConfigError("[fairness] needs a sensitive attribute: data.sensitive, or `sensitive` in [[sites]]")
    for key, name, names in (("group", group, groups), ("label", label, labels)):
        if name not in names:
            raise ConfigError(f"fairness.{key}: there is no {key} '{name}'; {did_you_mean(name, names)}")
    return Target(tuple(groups), list(groups).index(group), list(labels).index(label), block, normalised)


def with_groups(dataset: Dataset, asked: Sensitive, seed: int, as_input: bool, normalise: bool = False) -> Dataset:
    """Return the data set with the groups of a column, as uncertain as a study asks.

    As inputs, candidate groups are the last features of a row, each 1 or, with `normalise`, its share of 1. Features
    made from the column itself are left out.
    """
    columns = dataset.train.columns
    if asked.column not in columns:
        hint = did_you_mean(asked.column, columns) if columns else "it has none"
        raise ConfigError(f"data.sensitive.column: '{dataset.name}' has no column '{asked.column}'; {hint}")
    if as_input and len(dataset.shape) != 1:
        raise ConfigError("fairness.input: groups can join features by row only, not images; set input = false")
    names = sorted({str(value) for value in columns[asked.column]}, key=natural)
    other = [n for n, source in enumerate(dataset.sources) if source != asked.column] if dataset.sources else None

    def part(rows: Rows, which: str, where: str = "") -> Rows:
        place = {name: number for number, name in enumerate(names)}
        values = rows.columns.get(asked.column)
        if values is None:
            where = where or f"the {which} part of '{dataset.name}'"
            raise ConfigError(f"data.sensitive.column: {where} has no '{asked.column}'")
        truth = np.array([place.get(str(value), -1) for value in values], dtype=np.int64)
        rng = np.random.default_rng(derive(seed, "groups", which))
        sets = _candidates(truth, len(names), asked, rng)
        x = rows.x if other is None or rows.x.shape[1:] != dataset.shape else rows.x[:, other]
        if as_input and x.ndim == 2:
            bits = sets.astype(np.float32)
            x = np.concatenate([x, bits / bits.sum(1, keepdims=True) if normalise else bits], axis=1)
        return replace(rows, x=x, groups=sets, group=truth)

    def elsewhere(rows: Rows, where: str) -> Rows:
        # Without the column, rows cannot be inputs; if groups are not inputs, they are judged without groups.
        return part(rows, where, where) if as_input or asked.column in rows.columns else rows

    train = part(dataset.train, "train")
    test = None if dataset.test is None else part(dataset.test, "test")
    first = train.x.shape[1] - len(names) if as_input else None
    return replace(
        dataset, train=train, test=test, groups=tuple(names), group_features=first, sources=(), grouped=elsewhere
    )


def _candidates(truth: Any, groups: int, asked: Sensitive, rng: np.random.Generator) -> Any:
    """Draw candidate groups; a group that is not in the training part becomes the set of all groups."""
    known = np.maximum(truth, 0)
    if asked.flips == "cyclic":
        flips = corruption.cyclic_flips(groups, asked.following, asked.other)
        sets = corruption.class_dependent_candidates(known, flips, rng, drop_full=False)
    else:
        sets = corruption.uniform_candidates(known, groups, asked.q, rng, drop_full=False)
    sets[truth < 0] = True
    return sets
