"""Find the positions of keys and values in TOML text, so that a key can be renamed and all else stays as it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r'(?P<space>[ \t\r]+|#[^\n]*)|(?P<string>"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\])*"|\'[^\']*\')'
    r"|(?P<mark>[\[\]{},=.\n])|(?P<bare>[^\s\[\]{},=.#\"']+)",
    re.DOTALL,
)


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
