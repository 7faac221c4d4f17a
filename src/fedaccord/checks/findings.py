"""What a check finds, and how it is worded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing to know before training: a warning, or an error that makes training pointless."""

    level: Literal["warning", "error"]
    text: str


def warning(text: str) -> Finding:
    """Return a finding that is no reason not to train."""
    return Finding("warning", text)
