"""What `fedaccord check` finds, and how much it matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing to know before training: a note, a warning, or an error that makes training pointless."""

    level: Literal["note", "warning", "error"]
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.text}"


def note(text: str) -> Finding:
    """Return a finding that is good to know."""
    return Finding("note", text)


def warning(text: str) -> Finding:
    """Return a finding that does not prevent training."""
    return Finding("warning", text)
