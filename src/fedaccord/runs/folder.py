"""The run folder: the complete record of a run, written so that a crash loses no finished round."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedaccord.durable import atomic_write, sync
from fedaccord.errors import FolderTakenError, RunFolderError
from fedaccord.messages.message import Message, to_bytes
from fedaccord.runs.checkpoint import pack, seal
from fedaccord.runs.lock import FolderLock

KEPT_CHECKPOINTS = 2
MODEL_README = """\
A model trained by FedAccord. It can be used elsewhere with this folder alone:

    fedaccord predict FOLDER FILE          class names and probabilities for new rows
    fedaccord export FOLDER --onnx FILE    for programs without PyTorch

model.safetensors is the global model; model.json describes how to rebuild it. The files in sites/ contain the private
parts of single sites: personal layers, label frequencies, mean and variance of their features. They are here because
all sites ran on one machine. To share the global model only, remove sites/ and the key "sites" in model.json.
"""


class NotWritten(RunFolderError):
    """A file of a run could not be written; earlier files are complete, and the run can be resumed."""


class RunFolder:
    """The folder of a run, locked for writing by this process."""

    def __init__(self, path: Path, reopen: bool = False) -> None:
        self.path = path
        if reopen:
            if not (path / "config.toml").is_file():
                raise RunFolderError(f"'{path}' is not a run folder: it has no config.toml")
            self._lock = FolderLock(path)
            self._remove_temporary_files()
            return
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise FolderTakenError(f"the folder '{path}' is not empty; give another one with --out")
            (path / "checkpoints").mkdir()
            (path / "model").mkdir()
            self._lock = FolderLock(path)
        except OSError as error:
            if isinstance(error, RunFolderError):
                raise
            raise RunFolderError(f"the run folder '{path}' cannot be created: {error.strerror}") from None

    def write_config(self, toml: str) -> None:
        """Write the complete experiment file."""
        self._write("config.toml", toml)

    def write_json(self, name: str, table: Mapping[str, Any]) -> None:
        """Write a JSON file atomically."""
        self._write(name, json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def append_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Append the lines of a round to metrics.jsonl."""
        texts = [json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines]
        self._append("metrics.jsonl", "".join(texts))

    def log(self, text: str) -> None:
        """Append a line to log.txt, with the time."""
        self._append("log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def write_checkpoint(self, state: Message, memories: Mapping[str, Message]) -> None:
        """Write a checkpoint, and remove all but the last few.

        metrics.jsonl is flushed to disk first, so that a checkpoint is never newer than its lines.
        """
        round_ = int(state.numbers["round"])
        self._flush("metrics.jsonl")
        self._write(f"checkpoints/round-{round_:06d}.checkpoint", seal(pack(state, memories)))
        self.drop_old_checkpoints()

    def drop_old_checkpoints(self) -> None:
        """Remove all but the last few checkpoints."""
        for old in sorted((self.path / "checkpoints").glob("round-*.checkpoint"))[:-KEPT_CHECKPOINTS]:
            with contextlib.suppress(OSError):  # an extra checkpoint does no harm
                old.unlink()

    def set_aside(self, name: str) -> None:
        """Rename an unusable checkpoint, so that it is ignored but not deleted."""
        path = self.path / "checkpoints" / name
        try:
            path.replace(path.with_name(f"{name}.refused"))
        except OSError as error:
            raise RunFolderError(f"'{path}' cannot be renamed: {error.strerror}") from None

    def write_model(
        self, tensors: Mapping[str, Tensor], description: Mapping[str, Any], parts: Mapping[str, Message] | None = None
    ) -> None:
        """Write the trained model, its further parts by file name and, last, the description to rebuild it."""
        for name, part in (parts or {}).items():
            self._make_folder(Path("model", name).parent)
            self._write(f"model/{name}", to_bytes(part))
        self._write("model/model.safetensors", to_bytes(Message(dict(tensors))))
        self._write("model/README.txt", MODEL_README)
        self.write_json("model/model.json", description)

    def trim_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Replace metrics.jsonl by these lines."""
        self._write("metrics.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def discard(self) -> None:
        """Remove the folder of a run that ended before its first round; it was empty before, so this is safe."""
        if not (self.path / "metrics.jsonl").exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def _make_folder(self, name: Path) -> None:
        try:
            (self.path / name).mkdir(exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"'{self.path / name}' cannot be created: {error.strerror}") from None

    def _write(self, name: str, content: str | bytes) -> None:
        """Write a file atomically."""
        target = self.path / name
        data = content.encode() if isinstance(content, str) else content
        try:
            with atomic_write(target) as file:
                file.write(data)
        except OSError as error:
            raise NotWritten(f"'{target}' cannot be written: {error.strerror}") from None

    def _remove_temporary_files(self) -> None:
        """Remove temporary files of a killed process."""
        for path in [*self.path.glob(".*.tmp"), *self.path.glob("*/.*.tmp"), *self.path.glob("*/*/.*.tmp")]:
            with contextlib.suppress(OSError):
                path.unlink()

    def _flush(self, name: str) -> None:
        try:
            if (self.path / name).exists():
                sync(self.path / name)
                sync(self.path)
        except OSError as error:
            raise NotWritten(f"'{self.path / name}' cannot be written: {error.strerror}") from None

    def _append(self, name: str, text: str) -> None:
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise NotWritten(f"'{self.path / name}' cannot be written: {error.strerror}") from None


def free_folder(parent: Path, name: str) -> Path:
    """Return `parent/name`, or the first of name-2, name-3, ... that does not exist."""
    candidate, number = parent / name, 2
    while candidate.exists():
        candidate, number = parent / f"{name}-{number}", number + 1
    return candidate
