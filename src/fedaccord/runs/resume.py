"""Reads the state of an interrupted run: the last valid checkpoint, and the metrics up to its round."""

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
    """The state of a run before it was interrupted."""

    state: Message | None = None  # None without a checkpoint: the run starts at its first round
    memories: dict[SiteId, Message] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)  # of metrics.jsonl, up to the checkpoint's round
    refused: dict[str, str] = field(default_factory=dict)  # reasons by the names of unusable checkpoints

    @property
    def round(self) -> int:
        """The last finished round."""
        return 0 if self.state is None else int(self.state.numbers["round"])

    @property
    def seconds(self) -> float:
        """The seconds that the run took until then."""
        return 0.0 if self.state is None else float(self.state.numbers["seconds"])

    @property
    def stopped(self) -> str:
        """The reason for an early stop after that round, or an empty string."""
        return "" if self.state is None else self.state.words.get("stopped", "")


def read_past(folder: Path, run: str) -> Past:
    """Find the newest valid checkpoint of this run, and the reasons why newer ones are unusable."""
    past = Past()
    lines = read_lines(folder / "metrics.jsonl")
    recorded = {line["round"] for line in lines if line["scope"] == "round"}
    for path in sorted((folder / "checkpoints").glob("round-*.checkpoint"), reverse=True):
        try:
            state, memories = read_checkpoint(path)
            if state.words.get("run") != run:
                raise RunFolderError("it belongs to another run")
            missing = set(range(1, int(state.numbers["round"]) + 1)) - recorded
            if missing:
                raise RunFolderError(f"metrics.jsonl has no line for round {min(missing)}")
        except FedAccordError as error:
            past.refused[path.name] = f"checkpoint '{path.name}' is not used: {error}"
            continue
        past.state, past.memories = state, memories
        break
    past.lines = [line for line in lines if line["round"] <= past.round]
    return past


def read_run(folder: Path) -> dict[str, Any]:
    """Read run.json, which identifies a run; raise an error if the run cannot be resumed."""
    try:
        run: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if not isinstance(run["run"], str):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFolderError(f"'{folder}' cannot be resumed: its run.json cannot be read") from None
    if run.get("in_memory"):
        raise RunFolderError(f"'{folder}' cannot be resumed: its samples were only in memory")
    if "config" in run and run["config"] != config_digest((folder / "config.toml").read_text(encoding="utf-8")):
        raise ConfigError(
            f"'{folder / 'config.toml'}' has changed since the run started, and only [run] and [stop] may change; "
            "run it as a new experiment"
        )
    return run


def check_same_data(folder: Path, description: dict[str, Any]) -> None:
    """Raise DataError if the sites and their samples differ from federation.json."""
    try:
        before = json.loads((folder / "federation.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    now = json.loads(json.dumps(description))
    for name in sorted(before.get("sites", {}).keys() | now["sites"].keys()):
        if before.get("sites", {}).get(name) != now["sites"].get(name):
            raise DataError(f"the data of site '{name}' have changed since the run started; start a new run")


def config_digest(toml: str) -> str:
    """Return a digest of the settings in an experiment file that affect the model."""
    table = {key: value for key, value in tomllib.loads(toml).items() if key not in ("run", "stop")}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl, without a truncated last line."""
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
            raise RunFolderError(f"line {number} of '{path}' is damaged") from None
    return lines
