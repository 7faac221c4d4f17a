"""What a check finds, and how it is worded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MOST_LISTED = 10


@dataclass(frozen=True)
class Finding:
    """One thing to know before training: a warning, or an error that makes training pointless."""

    level: Literal["warning", "error"]
    text: str


def warning(text: str) -> Finding:
    """Return a finding that is no reason not to train."""
    return Finding("warning", text)


def listed(names: Sequence[str], quotes: bool = True) -> str:
    """Write names as a list; of many, the first ten and how many more."""
    shown = [f"'{name}'" if quotes else name for name in names[:MOST_LISTED]]
    return ", ".join(shown) + (f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else "")
