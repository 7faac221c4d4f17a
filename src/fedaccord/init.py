"""An example federation: a commented experiment file and small made-up tables."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from fedaccord.errors import UserError

CONFIG = "federation.toml"
ILLNESSES = ("healthy", "cold", "flu")
_TEMPERATURE = {"healthy": 36.6, "cold": 37.6, "flu": 39.0}
_COUGH = {"healthy": 0.1, "cold": 0.85, "flu": 0.6}
Write = Callable[[str, np.random.Generator], str]


def write_federation(folder: Path) -> Path:
    """Write the experiment file and the sites' tables into a new or empty folder; returns the experiment file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"the folder '{folder}' is not empty; name a new one")
        rng = np.random.default_rng(0)
        _table(folder / "hospital.csv", "diagnosis", _patients(120, rng, _diagnosis))
        _table(folder / "school.csv", "at_home", _patients(160, rng, _at_home))
        _table(folder / "hotline.csv", "maybe", _patients(160, rng, _cannot_rule_out))
        _table(folder / "test.csv", "diagnosis", _patients(150, rng, lambda illness, _: illness))
        text = resources.files("fedaccord").joinpath("init.toml").read_text(encoding="utf-8")
        (folder / CONFIG).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"the folder '{folder}' cannot be written: {error.strerror or error}") from None
    return folder / CONFIG


def _patients(number: int, rng: np.random.Generator, write: Write) -> Iterable[Sequence[str]]:
    """Generate patients whose disease determines temperature and cough; each site annotates it in its own view."""
    for _ in range(number):
        illness = str(rng.choice(ILLNESSES))
        temperature = f"{rng.normal(_TEMPERATURE[illness], 0.35):.1f}" if rng.random() > 0.03 else ""
        cough = "yes" if rng.random() < _COUGH[illness] else "no"
        yield str(rng.integers(5, 90)), temperature, cough, write(illness, rng)


def _diagnosis(illness: str, rng: np.random.Generator) -> str:
    return illness if rng.random() > 0.05 else ""


def _at_home(illness: str, rng: np.random.Generator) -> str:
    return "no" if illness == "healthy" else "yes"


def _cannot_rule_out(illness: str, rng: np.random.Generator) -> str:
    others = [other for other in ILLNESSES if other != illness and rng.random() < 0.35]
    return "|".join(sorted([illness, *others], key=ILLNESSES.index))


def _table(path: Path, label: str, rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["age", "temperature", "cough", label])
        writer.writerows(rows)
