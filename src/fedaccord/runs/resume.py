"""Where a cut run goes on: the last good checkpoint, and the figures up to its round."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaccord.errors import FedAccordError, RunFolderError
from fedaccord.messages.message import Message, SiteId
from fedaccord.runs.checkpoint import read_checkpoint


@dataclass
class Past:
    """What a run did before it was cut."""

    state: Message | None = None  # None: nothing was kept, the run starts again from its first round
    memories: dict[SiteId, Message] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)  # of metrics.jsonl, up to the checkpoint's round
    refused: list[str] = field(default_factory=list)  # checkpoints that could not be used, and why

    @property
    def round(self) -> int:
        """The last finished round."""
        return 0 if self.state is None else int(self.state.numbers["round"])


def read_past(folder: Path, run: str) -> Past:
    """Find the newest whole checkpoint of this run; damaged, foreign and newer ones are refused with a reason."""
    past = Past()
    for path in sorted((folder / "checkpoints").glob("round-*.checkpoint"), reverse=True):
        try:
            state, memories = read_checkpoint(path)
            if state.words.get("run") != run:
                raise RunFolderError("it belongs to another run")
        except FedAccordError as error:
            past.refused.append(f"checkpoint '{path.name}' is not used: {error}")
            continue
        past.state, past.memories = state, memories
        break
    past.lines = [line for line in read_lines(folder / "metrics.jsonl") if line["round"] <= past.round]
    return past


def read_run(folder: Path) -> dict[str, Any]:
    """Read run.json, which tells one run from another."""
    try:
        run: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise RunFolderError(f"'{folder}' cannot be resumed: its run.json cannot be read") from None
    return run


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl; a last line that was cut off is left out."""
    if not path.exists():
        return []
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    lines = []
    for number, text in enumerate(texts, start=1):
        if not text:
            continue
        try:
            lines.append(json.loads(text))
        except ValueError:
            if number == len(texts):
                break
            raise RunFolderError(f"line {number} of '{path}' is not JSON") from None
    return lines
