"""Where a cut run goes on: the last good checkpoint, and the figures up to its round."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaccord.errors import ConfigError, DataError, FedAccordError, RunFolderError
from fedaccord.messages.message import Message, SiteId
from fedaccord.runs.checkpoint import read_checkpoint


@dataclass
class Past:
    """What a run did before it was cut."""

    state: Message | None = None  # None: nothing was kept, the run starts again from its first round
    memories: dict[SiteId, Message] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)  # of metrics.jsonl, up to the checkpoint's round
    refused: dict[str, str] = field(default_factory=dict)  # checkpoints that could not be used, and why

    @property
    def round(self) -> int:
        """The last finished round."""
        return 0 if self.state is None else int(self.state.numbers["round"])

    @property
    def seconds(self) -> float:
        """How long the run had gone on by then."""
        return 0.0 if self.state is None else float(self.state.numbers["seconds"])

    @property
    def stopped(self) -> str:
        """Why the run ended after that round, if it did so before its last one."""
        return "" if self.state is None else self.state.words.get("stopped", "")


def read_past(folder: Path, run: str) -> Past:
    """Find the newest whole checkpoint of this run; damaged, foreign and newer ones are refused with a reason."""
    past = Past()
    lines = read_lines(folder / "metrics.jsonl")
    told = {line["round"] for line in lines if line["scope"] == "round"}
    for path in sorted((folder / "checkpoints").glob("round-*.checkpoint"), reverse=True):
        try:
            state, memories = read_checkpoint(path)
            if state.words.get("run") != run:
                raise RunFolderError("it belongs to another run")
            missing = set(range(1, int(state.numbers["round"]) + 1)) - told
            if missing:
                raise RunFolderError(f"metrics.jsonl has no line of its round {min(missing)}")
        except FedAccordError as error:
            past.refused[path.name] = f"checkpoint '{path.name}' is not used: {error}"
            continue
        past.state, past.memories = state, memories
        break
    past.lines = [line for line in lines if line["round"] <= past.round]
    return past


def read_run(folder: Path) -> dict[str, Any]:
    """Read run.json, which tells one run from another; what cannot be gone on with is refused."""
    try:
        run: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if not isinstance(run["run"], str):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFolderError(f"'{folder}' cannot be resumed: its run.json cannot be read") from None
    if run.get("in_memory"):
        raise RunFolderError(f"'{folder}' cannot be resumed: its samples were in memory and are in no file")
    if "config" in run and run["config"] != config_digest((folder / "config.toml").read_text(encoding="utf-8")):
        raise ConfigError(
            f"'{folder / 'config.toml'}' was changed since the run began, and only its [run] and [stop] may be; "
            "run it as a new experiment"
        )
    return run


def check_same_data(folder: Path, account: dict[str, Any]) -> None:
    """Refuse to go on when the sites and their samples are not those that federation.json tells of."""
    try:
        before = json.loads((folder / "federation.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    now = json.loads(json.dumps(account))
    for name in sorted(before.get("sites", {}).keys() | now["sites"].keys()):
        if before.get("sites", {}).get(name) != now["sites"].get(name):
            raise DataError(f"the data of site '{name}' are not those the run began with; start a new run with them")


def config_digest(toml: str) -> str:
    """Return a digest of all in an experiment file that the model depends on."""
    table = {key: value for key, value in tomllib.loads(toml).items() if key not in ("run", "stop")}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


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
            line = json.loads(text)
            if not isinstance(line, dict) or not {"round", "scope"} <= line.keys():
                raise ValueError
            lines.append(line)
        except ValueError:
            if number == len(texts):
                break
            raise RunFolderError(f"line {number} of '{path}' is not what a run writes") from None
    return lines
