"""The run folder is the truth: everything a run did, written so that a crash loses nothing that was finished."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedaccord.errors import RunFolderError
from fedaccord.messages.message import Message, to_bytes
from fedaccord.runs.checkpoint import pack, seal
from fedaccord.runs.lock import FolderLock

KEPT_CHECKPOINTS = 2


class RunFolder:
    """One run's folder, opened for writing by this process alone."""

    def __init__(self, path: Path, reopen: bool = False) -> None:
        self.path = path
        if reopen:
            if not (path / "config.toml").is_file():
                raise RunFolderError(f"'{path}' is not a run folder: it has no config.toml")
            self._lock = FolderLock(path)
            return
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise RunFolderError(f"the folder '{path}' is not empty; give another one with --out")
            (path / "checkpoints").mkdir()
            (path / "model").mkdir()
            self._lock = FolderLock(path)
        except OSError as error:
            if isinstance(error, RunFolderError):
                raise
            raise RunFolderError(f"the run folder '{path}' cannot be made: {error.strerror}") from None

    def write_config(self, toml: str) -> None:
        """Write down what is run, complete."""
        self._write("config.toml", toml)

    def write_json(self, name: str, table: Mapping[str, Any]) -> None:
        """Write a JSON file as a whole."""
        self._write(name, json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def append_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Append a round's lines to metrics.jsonl."""
        texts = [json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines]
        self._append("metrics.jsonl", "".join(texts))

    def log(self, text: str) -> None:
        """Append a line to log.txt, with the time."""
        self._append("log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def write_checkpoint(self, state: Message, memories: Mapping[str, Message]) -> None:
        """Write the whole state of the run as one file, and drop all but the last few."""
        round_ = int(state.numbers["round"])
        self._write(f"checkpoints/round-{round_:06d}.checkpoint", seal(pack(state, memories)))
        for old in sorted((self.path / "checkpoints").glob("round-*.checkpoint"))[:-KEPT_CHECKPOINTS]:
            old.unlink()

    def write_model(self, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
        """Write the trained model and how to rebuild it."""
        self._write("model/model.safetensors", to_bytes(Message(dict(tensors))))
        self.write_json("model/model.json", description)

    def trim_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Write metrics.jsonl anew with only these lines."""
        self._write("metrics.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    def close(self) -> None:
        """Let other processes in."""
        self._lock.release()

    def discard(self) -> None:
        """Remove the folder of a run that ended before its first round; it was empty, so all in it is ours."""
        if not (self.path / "metrics.jsonl").exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def _write(self, name: str, content: str | bytes) -> None:
        """Write a file so that either the old or the new content is there, whatever happens."""
        target = self.path / name
        temporary = target.with_name(f".{target.name}.tmp")
        data = content.encode() if isinstance(content, str) else content
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise RunFolderError(f"'{target}' cannot be written: {error.strerror}") from None

    def _append(self, name: str, text: str) -> None:
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise RunFolderError(f"'{self.path / name}' cannot be written: {error.strerror}") from None


def free_folder(parent: Path, name: str) -> Path:
    """Return `parent/name`, or the first of name-2, name-3, ... that is not there yet."""
    candidate, number = parent / name, 2
    while candidate.exists():
        candidate, number = parent / f"{name}-{number}", number + 1
    return candidate
