"""Runs of one experiment with several seeds: `runs/NAME/seed-0`, `runs/NAME/seed-1`, ..."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fedaccord.errors import RunFolderError, UserError

MOST_SEEDS = 10_000  # a larger number is a slip of the keyboard


def parse_seeds(text: str) -> list[int]:
    """Return the seeds that `8` (that is 0-7), `0-7`, `0,2,5` or `0-3,8` stand for, each once, in order."""
    parts = [part.strip() for part in text.split(",")]
    spans = [re.fullmatch(r"(\d+)(?:-(\d+))?", part, re.ASCII) for part in parts]
    if not all(spans):
        raise UserError(f"--seeds takes a number of seeds (8), a span (0-7) or a list (0,2,5), not '{text}'")
    if len(parts) == 1 and "-" not in text:
        first, last = 0, int(parts[0]) - 1
        if last < 0:
            raise UserError("--seeds 0 asks for no seed; use --seed 0 for one run with seed 0")
        ends = [(first, last)]
    else:
        ends = [(int(span[1]), int(span[2] or span[1])) for span in spans if span is not None]
    for first, last in ends:
        if last < first:
            raise UserError(f"--seeds {text}: the span {first}-{last} is empty; write {last}-{first}")
        if last - first >= MOST_SEEDS:
            raise UserError(f"--seeds {text} asks for {last - first + 1} seeds; at most {MOST_SEEDS} are allowed")
    return sorted({seed for first, last in ends for seed in range(first, last + 1)})


def seed_folder(parent: Path, seed: int) -> Path:
    """Return the run folder of a seed."""
    return parent / f"seed-{seed}"


def seed_folders(folder: Path) -> list[Path]:
    """Return the run folders of the seeds inside a folder, sorted by seed; empty if it is no folder of seeds."""
    if not folder.is_dir():
        return []
    found = {int(name[1]): path for path in folder.iterdir() if (name := re.fullmatch(r"seed-(\d+)", path.name))}
    return [found[seed] for seed in sorted(found) if found[seed].is_dir()]


def expand(folders: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Return the runs, with each folder of seeds replaced by its finished runs, and the unfinished runs left out."""
    runs, unfinished = list[Path](), list[Path]()
    for folder in folders:
        seeds = [] if (folder / "config.toml").exists() else seed_folders(folder)
        finished = [seed for seed in seeds if (seed / "summary.json").exists()]
        if seeds and not finished:
            raise RunFolderError(f"no run in '{folder}' is finished; run the command that made it again")
        runs += finished or [folder]
        unfinished += [seed for seed in seeds if seed not in finished]
    return runs, unfinished
