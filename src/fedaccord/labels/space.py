"""The federation's label space: the only place that turns label names into columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedaccord.errors import ConfigError, did_you_mean


class LabelSpace:
    """An ordered set of label names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names: tuple[str, ...] = tuple(str(name) for name in _several(names))
        if not self.names:
            raise ConfigError("a label space needs at least one label name")
        self._columns = {name: column for column, name in enumerate(self.names)}
        if len(self._columns) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ConfigError(f"the label '{twice}' is named twice in the label space")

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSpace) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"LabelSpace({list(self.names)!r})"

    def column(self, name: str, where: str = "") -> int:
        """Return the column of a label; raise ConfigError with the closest name for an unknown one."""
        try:
            return self._columns[str(name)]
        except KeyError:
            place = f"{where}: " if where else ""
            hint = did_you_mean(str(name), self.names)
            raise ConfigError(f"{place}'{name}' is not a label of this federation; {hint}") from None

    def columns(self, names: Iterable[str], where: str = "") -> list[int]:
        """Return the columns of several labels, in the given order."""
        return [self.column(name, where) for name in _several(names)]

    def subspace(self, names: Iterable[str]) -> LabelSpace:
        """Return the space of these labels, in the order of this space."""
        wanted = set(self.columns(names))
        return LabelSpace(name for column, name in enumerate(self.names) if column in wanted)


def _several(names: Iterable[str]) -> Iterable[str]:
    """Return the names; raise ConfigError for a single text, whose letters are not meant as labels."""
    if isinstance(names, str):
        raise ConfigError(f"label names are given as a list, as in ['cold', 'flu'], not as the one text '{names}'")
    return names
