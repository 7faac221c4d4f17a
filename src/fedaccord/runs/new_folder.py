"""Chooses the folder of a new run: a free one, or that of an earlier run if it may be replaced."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from pathlib import Path

from fedaccord.errors import FedAccordError, FolderTakenError, listed
from fedaccord.runs.folder import RunFolder, free_folder
from fedaccord.runs.progress import Progress, read_progress, resume_command

PARENT = Path("runs")
RUN_FILES = (
    *("run.json", "config.toml", "federation.json", "metrics.jsonl", "summary.json", "report.html", "log.txt"),
    *(".lock", "checkpoints", "model", "tracking", "resamples.safetensors", "config.toml.bak*", ".*.tmp"),
)
"""Patterns of everything in a run folder; only a folder with nothing else is ever replaced."""
BEFORE_CONFIG = {".lock", "checkpoints", "model", "log.txt", "run.json", ".run.json.tmp", ".config.toml.tmp"}
"""All that a run writes before its config.toml; without that file it cannot be resumed."""


def new_run_folder(
    out: Path | None, name: str, config: str | None, overwrite: bool = False, note: Callable[[str], object] = str
) -> RunFolder:
    """Return the folder of a new run, `out` or a free one in `runs`, locked for this process.

    Raise FolderTakenError for a folder that is in use, and if the experiment was cut off before; `config` is its
    digest, or None if it may be repeated. With `overwrite`, the run in `out` or `runs/NAME` is replaced instead.
    `note` is called with a sentence about a cut run of the same name with other settings.
    """
    if overwrite:
        path = out or PARENT / name
        _check_replaceable(path)
        return RunFolder(path, overwrite=True)
    if out is not None:
        _check_free(out)
        return RunFolder(out, overwrite=_ended_at_its_start(out))
    for progress, is_same in [] if config is None else _cut_runs(name, config):
        if is_same:
            raise FolderTakenError(_cut_words(progress))
        note(f"{progress.folder} was cut off and has other settings; {resume_command(progress.folder)} continues it")
    return RunFolder(free_folder(PARENT, name))


def _cut_runs(name: str, config: str) -> list[tuple[Progress, bool]]:
    """Return the cut runs of a name, and whether each is a run of this experiment."""
    found = []
    for path in sorted(PARENT.glob(f"{name}*/run.json")):
        if not re.fullmatch(rf"{re.escape(name)}(-\d+)?", path.parent.name):
            continue
        try:
            run, progress = json.loads(path.read_text(encoding="utf-8")), read_progress(path.parent)
        except (FedAccordError, OSError, ValueError):
            continue  # not a run that could be continued
        if progress.state == "cut" and not run.get("in_memory"):
            found.append((progress, run.get("config") == config))
    return found


def _check_free(path: Path) -> None:
    """Raise FolderTakenError if a run is in the folder, with what can be done about it."""
    if not (path / "config.toml").is_file():
        return  # `RunFolder` refuses a folder with other files
    progress = read_progress(path)
    if progress.state == "cut":
        raise FolderTakenError(_cut_words(progress))
    raise FolderTakenError(
        f"the folder '{path}' holds a run ({progress}); give another one with --out, or replace it with --overwrite"
    )


def _ended_at_its_start(path: Path) -> bool:
    """Return whether a folder holds only the beginning of a run, from which nothing can be continued."""
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    folders = [path / name for name in ("checkpoints", "model") if name in names]
    return ".lock" in names and names <= BEFORE_CONFIG and not any(any(folder.iterdir()) for folder in folders)


def _cut_words(progress: Progress) -> str:
    path = progress.folder
    return (
        f"the run in '{path}' was cut off after round {progress.round} of {progress.rounds}; continue it with: "
        f"{resume_command(path)}, or start anew with: --out {path} --overwrite"
    )


def _check_replaceable(path: Path) -> None:
    """Raise FolderTakenError unless a folder is missing, empty, or holds a run and nothing else."""
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    if names and "run.json" not in names and not _ended_at_its_start(path):
        raise FolderTakenError(f"'{path}' is not a run folder, so --overwrite does not replace it")
    foreign = sorted(name for name in names if not any(fnmatch.fnmatchcase(name, known) for known in RUN_FILES))
    if foreign:
        raise FolderTakenError(f"'{path}' also holds {listed(foreign)}, so --overwrite does not replace it")
