"""Keys of the experiment file that have a new name: old files are refused with it, and rewritten by `upgrade`.

To rename a key, change it everywhere and add a line to `RENAMES`:

    Rename("method.mu", "method.proximal", since="0.2")
    Rename("method.loss", "method.loss", since="0.2", values={"ce": "cross-entropy"})    the values only
    Rename("data.views.*.q", "data.views.*.flip", since="0.2")                           of every site

A key stays in its table: both names differ in the last part only. `*` is any key, and [[sites]] is `sites`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedaccord.errors import ConfigError
from fedaccord.toml_text import toml_value

_TOKEN = re.compile(
    r'(?P<space>[ \t\r]+|#[^\n]*)|(?P<string>"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\])*"|\'[^\']*\')'
    r"|(?P<mark>[\[\]{},=.\n])|(?P<bare>[^\s\[\]{},=.#\"']+)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Rename:
    """A key's old and new name, the version that renamed it, and the new words for old values."""

    old: str
    new: str
    since: str
    values: Mapping[str, str] = field(default_factory=dict)


RENAMES: list[Rename] = [
    # "auto" was "site" for numbers, and pixels are never standardised.
    Rename("data.standardise", "data.standardise", since="0.2", values={"auto": "site"}),
    Rename("features.scale", "features.standardise", since="0.2"),
]


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
                    edits.append((*key.value, toml_value(rename.values[old])))
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


@dataclass(frozen=True)
class Key:
    """One part of a key in the text: its full path, its position, and the value's position if the value follows it."""

    path: tuple[str, ...]
    start: int
    end: int
    value: tuple[int, int] | None


def find_keys(text: str) -> list[Key]:
    """Return every part of every key and table header of valid TOML, in the order of the text."""
    return list(_Reader(text).document())


class _Reader:
    """Reads tokens; the text is known to be valid, so nothing is checked."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [match for match in _TOKEN.finditer(text) if match.lastgroup != "space"]
        self.at = 0

    def document(self) -> Iterator[Key]:
        table: tuple[str, ...] = ()
        while self.at < len(self.tokens):
            if self._skip("\n"):
                continue
            if self._skip("["):
                self._skip("[")
                parts = list(self._key(()))
                yield from parts
                table = parts[-1].path
                while self._skip("]"):
                    pass
            else:
                yield from self._pair(table)

    def _peek(self) -> str:
        return self.tokens[self.at].group() if self.at < len(self.tokens) else ""

    def _skip(self, mark: str) -> bool:
        found = self._peek() == mark
        self.at += found
        return found

    def _key(self, path: tuple[str, ...]) -> Iterator[Key]:
        while True:
            token = self.tokens[self.at]
            self.at += 1
            path = (*path, next(iter(tomllib.loads(f"{token.group()} = 0"))))
            yield Key(path, token.start(), token.end(), None)
            if not self._skip("."):
                return

    def _pair(self, table: tuple[str, ...]) -> Iterator[Key]:
        *outer, last = self._key(table)
        self._skip("=")
        start = self.tokens[self.at].start()
        inner = list(self._value(last.path))
        yield from outer
        yield Key(last.path, last.start, last.end, (start, self.tokens[self.at - 1].end()))
        yield from inner

    def _value(self, path: tuple[str, ...]) -> Iterator[Key]:
        """Yield the keys of the inline tables in a value; items of an array have the array's path."""
        if self._skip("["):
            while not self._skip("]"):
                if not (self._skip(",") or self._skip("\n")):
                    yield from self._value(path)
        elif self._skip("{"):
            while not self._skip("}"):
                if not (self._skip(",") or self._skip("\n")):
                    yield from self._pair(path)
        else:
            while self._peek() not in ("", ",", "]", "}", "\n"):  # a time or a float is several tokens
                self.at += 1
