"""Write the tables of this example: one illness, four hospitals, and the troubles that real files have.

`python make_tables.py FOLDER` writes the same bytes every time. The patients are made up: fever, cough and a blood
value depend on the grade of the illness, and every hospital writes them down in its own way.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

GRADES = ("None", "mild", "severe")
MARKER = {"None": 4.0, "mild": 9.0, "severe": 16.0}
FEVER = {"None": 36.7, "mild": 37.7, "severe": 38.9}
COUGH = {"None": 0.15, "mild": 0.6, "severe": 0.75}


@dataclass(frozen=True)
class Patient:
    """One patient, before a hospital writes it down."""

    number: int
    age: int
    female: bool
    fever: float
    marker: float
    platelets: int
    coughs: bool
    grade: str


def patients(count: int, rng: np.random.Generator, chances: tuple[float, float, float]) -> list[Patient]:
    """Draw patients whose grade determines fever, blood marker, platelets and cough."""
    found = []
    for number in range(1, count + 1):
        grade = str(rng.choice(GRADES, p=chances))
        found.append(
            Patient(
                number,
                int(rng.integers(18, 90)),
                bool(rng.random() < 0.5),
                float(rng.normal(FEVER[grade], 0.5)),
                float(max(0.5, rng.normal(MARKER[grade], 2.5))),
                int(rng.normal(250_000 - 4_000 * MARKER[grade], 30_000)),
                bool(rng.random() < COUGH[grade]),
                grade,
            )
        )
    return found


def north(p: Patient, rng: np.random.Generator) -> list[str]:
    """Semicolons, decimal commas, Windows text; grades in three spellings; the healthy ones are graded "None"."""
    grade = {"None": "None", "mild": str(rng.choice(["mild", "Mild", "MILD"])), "severe": "severe"}[p.grade]
    sex = "F" if p.female else "M"
    fever, marker = f"{p.fever:.1f}".replace(".", ","), f"{p.marker:.2f}".replace(".", ",")
    return [f"N{p.number:03}", str(p.age), sex, fever, marker, str(p.platelets), "ja" if p.coughs else "nein", grade]


def south(p: Patient, rng: np.random.Generator) -> list[str]:
    """A spreadsheet's export: thousands separators, units, a date, and a marker below the limit of detection."""
    marker = "<5" if p.marker < 5 and rng.random() < 0.3 else f"{p.marker:.2f}"
    seen = f"{rng.integers(1, 29):02}.{rng.integers(1, 13):02}.2025"
    sex = "female" if p.female else "male"
    cells = [f"S{p.number:03}", str(p.age), sex, f"{p.fever:.1f}", marker, f"{p.platelets:,}"]
    return [*cells, "yes" if p.coughs else "no", seen, {"None": "none", "mild": "mild", "severe": "severe"}[p.grade]]


def east(p: Patient, rng: np.random.Generator) -> list[str]:
    """Codes instead of words: grades 0, 1 and 2, cough 0 and 1; a compressed file with tabs."""
    fever = "NA" if rng.random() < 0.05 else f"{p.fever:.1f}"
    sex = "female" if p.female else "male"
    cells = [f"E{p.number:03}", str(p.age), sex, fever, f"{p.marker:.2f}", str(p.platelets), str(int(p.coughs))]
    return [*cells, str(GRADES.index(p.grade))]


def west(p: Patient, rng: np.random.Generator) -> list[str]:
    """Only well or ill, and the year of birth in the column `age`."""
    sex = "female" if p.female else "male"
    cells = [f"W{p.number:03}", str(2025 - p.age), sex, f"{p.fever:.1f}", f"{p.marker:.2f}", str(p.platelets)]
    return [*cells, "yes" if p.coughs else "no", "well" if p.grade == "None" else "ill"]


COLUMNS = ["patient", "age", "sex", "fever", "marker", "platelets", "cough"]
Write = Callable[[Patient, np.random.Generator], list[str]]


def text(header: list[str], write: Write, people: list[Patient], separator: str, rng: np.random.Generator) -> str:
    """Return a table as text, with cells quoted where they contain the separator."""

    def line(cells: list[str]) -> str:
        return separator.join(f'"{cell}"' if separator in cell else cell for cell in cells)

    return "\n".join(line(cells) for cells in [header, *(write(person, rng) for person in people)]) + "\n"


def write_tables(folder: Path) -> None:
    """Write the four tables and a table of new patients."""
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True, exist_ok=True)
    table = text(
        ["Patient", "age", "sex", "fever", "marker", "platelets", "cough", "Diagnose"],
        north,
        patients(180, rng, (0.4, 0.4, 0.2)),
        ";",
        rng,
    )
    (folder / "north.csv").write_bytes(table.replace("Diagnose", "Schweregrad Grippe (ärztlich)").encode("cp1252"))
    table = text([*COLUMNS, "seen", "severity"], south, patients(160, rng, (0.5, 0.3, 0.2)), ",", rng)
    (folder / "south.csv").write_text(table, encoding="utf-8")
    table = text([*COLUMNS, "severity"], east, patients(150, rng, (0.3, 0.3, 0.4)), "\t", rng)
    (folder / "east.tsv.gz").write_bytes(gzip.compress(table.encode("utf-8"), mtime=0))
    table = text([*COLUMNS, "condition"], west, patients(200, rng, (0.6, 0.25, 0.15)), ",", rng)
    (folder / "west.csv").write_text(table, encoding="utf-8")
    table = text(
        COLUMNS,
        lambda p, rng: east(p, rng)[:6] + ["yes" if p.coughs else "no"],
        patients(6, rng, (0.4, 0.3, 0.3)),
        ",",
        rng,
    )
    (folder / "new.csv").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    write_tables(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
