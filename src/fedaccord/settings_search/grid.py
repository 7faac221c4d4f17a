"""The settings to try: all combinations of the values given with `--set`; importable without torch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaccord.config import Experiment, load_experiment, to_toml
from fedaccord.errors import ConfigError, UserError
from fedaccord.seeds import derive

OWN = "the file's own"
# Other keys change the rows, the labels or the sites, so that settings would be judged on different tasks, and rows
# that are test rows of the file might be trained on.
VARIABLE = ("method.", "model.", "features.", "run.", "stop.", "data.standardise")


@dataclass(frozen=True)
class Setting:
    """One combination of values, by key; a key that the file's own setting leaves alone is not in it."""

    values: Mapping[str, str]  # as in --set, e.g. {"method.lr": "0.1"}
    experiment: Experiment
    is_own: bool = False  # the experiment is that of the file, apart from keys with one value

    def words(self, keys: Sequence[str]) -> str:
        """Return the values of some keys, as in `lr=0.1, mu=0`; the file's own setting has none of them."""
        short = {key: key.rpartition(".")[2] for key in keys}
        names = {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}
        return ", ".join(f"{names[key]}={self.values[key]}" for key in keys if key in self.values) or OWN


@dataclass(frozen=True)
class Grid:
    """The settings to try, and the keys that they differ in; `skipped` combinations are outside the budget."""

    settings: list[Setting]
    keys: list[str]
    skipped: int = 0


def read_grid(file: Path, changes: Sequence[str], budget: int | None = None) -> tuple[Grid, Path]:
    """Check every combination of the changes `key=value,value`; return the grid and the folder of the file.

    A change with one value applies to every setting. The file's own setting is added if no combination equals it. With
    a budget, that many combinations are drawn, with the file's seed, besides the file's own setting.
    """
    axes = _axes(changes)
    fixed = {key: values[0] for key, values in axes.items() if len(values) == 1}
    varied = {key: values for key, values in axes.items() if len(values) > 1}
    if not varied:
        raise UserError("tune needs a --set with several values, such as --set method.lr=0.01,0.03,0.1")
    for key in varied:
        if not key.startswith(VARIABLE):
            raise UserError(f"--set {key}: values to choose from are for keys of {', '.join(VARIABLE)}; give one value")
    own, base = _own(file, fixed)
    found: dict[str, Setting] = {}
    for values in itertools.product(*varied.values()):
        chosen = fixed | dict(zip(varied, values, strict=True))
        experiment = load_experiment(file, _as_changes(chosen))[0]
        is_own = own is not None and to_toml(own) == to_toml(experiment)
        found.setdefault(to_toml(experiment), Setting(chosen, experiment, is_own))
    settings = list(found.values())
    if own is not None and not any(setting.is_own for setting in settings):
        settings.insert(0, Setting(fixed, own, is_own=True))
    return _within(Grid(settings, list(varied)), budget), base


def _own(file: Path, fixed: Mapping[str, str]) -> tuple[Experiment | None, Path]:
    """Return the file's own experiment; None if it lacks a key that only the combinations give."""
    try:
        return load_experiment(file, _as_changes(fixed))
    except ConfigError:
        if not file.exists():
            raise
        return None, file.resolve().parent


def _within(grid: Grid, budget: int | None) -> Grid:
    others = [setting for setting in grid.settings if not setting.is_own]
    if budget is None or budget >= len(others):
        return grid
    drawn = random.Random(derive(others[0].experiment.seed, "budget")).sample(others, budget)
    kept = [setting for setting in grid.settings if setting.is_own or setting in drawn]
    return Grid(kept, grid.keys, len(grid.settings) - len(kept))


def _axes(changes: Sequence[str]) -> dict[str, list[str]]:
    axes: dict[str, list[str]] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        key, values = key.strip(), split_values(text)
        if not equals or not key:
            raise UserError(f"--set takes section.key=value,value, not '{change}'")
        if key in axes:
            raise UserError(f"--set {key} is given twice; name all its values in one, as in {key}=1,2")
        if key == "seed":
            raise UserError("--set seed: the seeds of the runs are given with --seeds")
        if not all(values):
            raise UserError(f"--set {change}: a value between commas is empty")
        axes[key] = values
    return axes


def split_values(text: str) -> list[str]:
    """Split at commas that are not inside brackets or quotes: `[8, 8],[16]` -> `[8, 8]` and `[16]`."""
    parts, depth, quote, escaped = [""], 0, "", False
    for letter in text:
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and not escaped and quote == '"'
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _as_changes(values: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]
