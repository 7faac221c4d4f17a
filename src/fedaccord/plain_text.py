"""Text from sites and files, made safe to show in a terminal or a log."""

from __future__ import annotations

import re

_LONGEST_LINE = 500  # characters
# Control characters except tab and line feed (ESC starts commands of a terminal), marks that reverse the direction of
# the text after them, and half surrogates, which cannot be written as UTF-8.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return text with every control character written as an escape such as `\\x1b`, so that it controls nothing."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def one_line(text: str) -> str:
    """Return text from a site as one printable line of limited length, so that it cannot forge lines of a log."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 8 * _LONGEST_LINE])
    line = " ".join(shown.split())
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"
