"""Keys of the experiment file that have a new name: old files are refused with it, and rewritten by `upgrade`.

To rename a key, change it everywhere and add a line to `RENAMES`:

    Rename("method.mu", "method.proximal", since="0.2")
    Rename("method.loss", "method.loss", since="0.2", values={"ce": "cross-entropy"})    the values only
    Rename("data.views.*.q", "data.views.*.flip", since="0.2")                           of every site

A key stays in its table: both names differ in the last part only. `*` is any key, and [[sites]] is `sites`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedaccord.errors import ConfigError
from fedaccord.toml_keys import find_keys


@dataclass(frozen=True)
class Rename:
    """A key's old and new name, the version that renamed it, and the new words for old values."""

    old: str
    new: str
    since: str
    values: Mapping[str, str] = field(default_factory=dict)


RENAMES: list[Rename] = []


@dataclass(frozen=True)
class Change:
    """One line of an experiment file before and after, counted from 1."""

    line: int
    old: str
    new: str


def refuse_renamed(table: Mapping[str, Any], where: str, remedy: str = "") -> None:
    """Raise ConfigError if a table has a key or a value by its old name; `remedy` ends the sentence."""
    for path, value in _entries(table):
        for rename in _renames_of(path):
            place, new = ".".join(path), ".".join((*path[:-1], rename.new.split(".")[-1]))
            if place != new:
                raise ConfigError(f"{where}: '{place}' is now '{new}'{remedy}")
            if isinstance(value, str) and value in rename.values:
                raise ConfigError(f"{where}: {place} = '{value}' is now '{rename.values[value]}'{remedy}")


def upgrade_text(text: str, where: str) -> tuple[str, list[Change]]:
    """Return the text of an experiment file with today's names, and the lines that changed."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    keys = find_keys(text)
    taken = {key.path for key in keys}
    edits: list[tuple[int, int, str]] = []
    for key in keys:
        for rename in _renames_of(key.path):
            name = rename.new.split(".")[-1]
            renamed = (*key.path[:-1], name)
            if renamed != key.path:
                if renamed in taken:
                    both = f"both '{'.'.join(key.path)}' and its new name '{'.'.join(renamed)}' are given"
                    raise ConfigError(f"{where}: {both}; remove one of them")
                edits.append((key.start, key.end, name))
            if key.value is not None:
                old = tomllib.loads(f"value = {text[slice(*key.value)]}")["value"]
                if isinstance(old, str) and old in rename.values:
                    edits.append((*key.value, json.dumps(rename.values[old], ensure_ascii=False)))
    new = text
    for start, end, word in sorted(edits, reverse=True):
        new = new[:start] + word + new[end:]
    # Neither a name nor a renamed value has a line break, so lines correspond.
    pairs = zip(text.split("\n"), new.split("\n"), strict=True)
    return new, [Change(n, old, now) for n, (old, now) in enumerate(pairs, start=1) if old != now]


def _renames_of(path: tuple[str, ...]) -> Iterator[Rename]:
    for rename in RENAMES:
        parts = rename.old.split(".")
        if len(parts) == len(path) and all(part in ("*", word) for part, word in zip(parts, path, strict=True)):
            yield rename


def _entries(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield (*path, str(key)), inner
            yield from _entries(inner, (*path, str(key)))
    elif isinstance(value, list):
        for item in value:
            yield from _entries(item, path)
