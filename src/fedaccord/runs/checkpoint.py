"""Checkpoints, one message with the server's state and all sites' memories, and how an interrupted run is resumed."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaccord.durable import read_bytes
from fedaccord.errors import ConfigError, DataError, FedAccordError, MessageError, RunFolderError
from fedaccord.messages.message import Message, SiteId, from_bytes, to_bytes

FORMAT = 1
AFTER_LAST_ROUND = ("quality", "ends with")  # scopes of lines that a resumed run writes anew
_DIGEST = 32  # bytes of the SHA-256 digest before the message, which detects damaged files


def pack(state: Message, memories: Mapping[SiteId, Message]) -> Message:
    """Combine state and memories into one message; sites are numbered, because names may contain any character."""
    whole = Message(numbers={"format": FORMAT})
    parts = {"state": state} | {f"site-{i}": memories[site] for i, site in enumerate(sorted(memories))}
    for prefix, part in parts.items():
        whole.put(prefix, part.tensors)
        whole.numbers.update({f"{prefix}/{name}": value for name, value in part.numbers.items()})
        whole.words.update({f"{prefix}/{name}": value for name, value in part.words.items()})
    whole.words.update({f"name/site-{i}": site for i, site in enumerate(sorted(memories))})
    return whole


def unpack(whole: Message) -> tuple[Message, dict[SiteId, Message]]:
    """Return the state and memories of a message that `pack` made."""
    if whole.numbers.get("format") != FORMAT:
        raise RunFolderError(
            f"the checkpoint has format {whole.numbers.get('format')}, but this version reads format {FORMAT}"
        )

    def part(prefix: str) -> Message:
        start = len(prefix) + 1
        return Message(
            whole.select(prefix),
            {name[start:]: value for name, value in whole.numbers.items() if name.startswith(prefix + "/")},
            {name[start:]: value for name, value in whole.words.items() if name.startswith(prefix + "/")},
        )

    names = {key.removeprefix("name/"): site for key, site in whole.words.items() if key.startswith("name/")}
    return part("state"), {site: part(prefix) for prefix, site in names.items()}


def seal(whole: Message) -> bytes:
    """Return the bytes of a checkpoint file."""
    data = to_bytes(whole)
    return hashlib.sha256(data).digest() + data


def read_checkpoint(path: Path) -> tuple[Message, dict[SiteId, Message]]:
    """Read a checkpoint file."""
    data = read_bytes(path, RunFolderError)
    try:
        if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
            raise MessageError("its content does not match its digest")
        whole = from_bytes(data[_DIGEST:])
    except MessageError as error:
        raise RunFolderError(f"the checkpoint '{path}' is damaged: {error}") from None
    return unpack(whole)


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
    past.lines = [line for line in lines if line["round"] <= past.round and line["scope"] not in AFTER_LAST_ROUND]
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
