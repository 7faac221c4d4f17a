"""The run folder is the truth: everything a run did, written so that a crash loses nothing that was finished."""

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
A model trained by FedAccord. This folder alone is enough to use it elsewhere:

    fedaccord predict FOLDER FILE          class names and probabilities for new rows
    fedaccord export FOLDER --onnx FILE    for programs without PyTorch

model.safetensors is the common model, model.json says how to rebuild it. The files in sites/ hold what single sites
keep to themselves: personal layers, label frequencies, the moments of their features. They are here because all sites
were run by one person. To pass on the common model only, leave sites/ out, and take from model.json what is under
"sites".
"""


class NotWritten(RunFolderError):
    """A file of a run could not be written; all that was written before is there, and the run can be resumed."""


class RunFolder:
    """One run's folder, opened for writing by this process alone."""

    def __init__(self, path: Path, reopen: bool = False) -> None:
        self.path = path
        if reopen:
            if not (path / "config.toml").is_file():
                raise RunFolderError(f"'{path}' is not a run folder: it has no config.toml")
            self._lock = FolderLock(path)
            self._sweep()
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
        """Write the whole state of the run as one file, and drop all but the last few.

        The lines of its round are made durable first: a checkpoint is never newer than metrics.jsonl.
        """
        round_ = int(state.numbers["round"])
        self._make_durable("metrics.jsonl")
        self._write(f"checkpoints/round-{round_:06d}.checkpoint", seal(pack(state, memories)))
        self.drop_old_checkpoints()

    def drop_old_checkpoints(self) -> None:
        """Keep only the last few checkpoints."""
        for old in sorted((self.path / "checkpoints").glob("round-*.checkpoint"))[:-KEPT_CHECKPOINTS]:
            with contextlib.suppress(OSError):  # one too many does no harm
                old.unlink()

    def set_aside(self, name: str) -> None:
        """Rename a checkpoint that cannot be used, so that it neither counts as one nor is lost."""
        path = self.path / "checkpoints" / name
        try:
            path.replace(path.with_name(f"{name}.refused"))
        except OSError as error:
            raise RunFolderError(f"'{path}' cannot be renamed: {error.strerror}") from None

    def write_model(
        self, tensors: Mapping[str, Tensor], description: Mapping[str, Any], parts: Mapping[str, Message] | None = None
    ) -> None:
        """Write the trained model, further parts of it by file name, and how to rebuild it; that last of all."""
        for name, part in (parts or {}).items():
            self._make_folder(Path("model", name).parent)
            self._write(f"model/{name}", to_bytes(part))
        self._write("model/model.safetensors", to_bytes(Message(dict(tensors))))
        self._write("model/README.txt", MODEL_README)
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

    def _make_folder(self, name: Path) -> None:
        try:
            (self.path / name).mkdir(exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"'{self.path / name}' cannot be made: {error.strerror}") from None

    def _write(self, name: str, content: str | bytes) -> None:
        """Write a file so that either the old or the new content is there, whatever happens."""
        target = self.path / name
        data = content.encode() if isinstance(content, str) else content
        try:
            with atomic_write(target) as file:
                file.write(data)
        except OSError as error:
            raise NotWritten(f"'{target}' cannot be written: {error.strerror}") from None

    def _sweep(self) -> None:
        """Remove what a killed process left half written."""
        for left in [*self.path.glob(".*.tmp"), *self.path.glob("*/.*.tmp"), *self.path.glob("*/*/.*.tmp")]:
            with contextlib.suppress(OSError):
                left.unlink()

    def _make_durable(self, name: str) -> None:
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
    """Return `parent/name`, or the first of name-2, name-3, ... that is not there yet."""
    candidate, number = parent / name, 2
    while candidate.exists():
        candidate, number = parent / f"{name}-{number}", number + 1
    return candidate
