"""Compare features standardised by each site's own moments with features standardised by those of all sites.

    FEDACCORD_DATA=... python benchmarks/standardise.py [--only lost] [--seeds 5] [--out FILE]

Fifteen data sets of numbers, as sites have them: by hospital, person or phone if the data say so, otherwise split at
random and skewed by label. Every method runs with its default settings on the same seeds (same split, same annotations,
same initial weights), once with each value of `data.standardise`; nothing else differs. Figures are those of the last
round: accuracy, or mean average precision of tags, in percent. The output is the figure with "federation" and in
brackets the mean paired difference to "site" with its 95 % t interval, in bold where that excludes 0. Finished cells
are kept in the output file, one JSON line each, so an interrupted run can continue. `--only` selects the federations
whose name contains the text.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedaccord.config import check_experiment
from fedaccord.evaluation.judge import Judgement, judge_better, paired_differences
from fedaccord.experiment import load_federation
from fedaccord.recording import play
from fedaccord.session import open_server

ROUNDS, EPOCHS = 50, 2
ALWAYS = ("accord", "fedavg", "local")
ALSO = {"candidates": ("pfedpll+",), "tags": ("fedharmony+",)}  # methods for one kind of labels
HEART = "heart.npz"  # made of the hospitals' files
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
WAYS = ("site", "federation")


@dataclass(frozen=True)
class Set:
    """A data set, its kind of labels, and its natural sites or the number of sites into which it is split."""

    dataset: str
    view: str = "exact"
    sites: int = 4
    natural: str = ""
    samples: int | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that run on it."""
        return (*ALWAYS, *ALSO.get(self.view, ()))

    @property
    def figure(self) -> str:
        """The figure that heads its results."""
        return "map" if self.view == "tags" else "accuracy"

    def partitions(self) -> dict[str, dict[str, Any]]:
        """Return its splits by name."""
        if self.natural:
            return {f"by {self.natural}": {"kind": "natural", "by": self.natural}}
        skewed = {"kind": "dirichlet", "sites": self.sites, "alpha": 0.5}
        return {"iid": {"kind": "iid", "sites": self.sites}, "skewed": skewed}


SETS = {
    "Lost": Set("partial_label/lost.npz", "candidates"),
    "MSRCv2": Set("partial_label/msrcv2.npz", "candidates"),
    "FG-NET": Set("partial_label/fgnet.npz", "candidates"),
    "heart disease": Set(HEART, natural="hospital"),
    "UCI-HAR": Set("uci_har", natural="subject", samples=3000),
    "ExtraSensory": Set("extrasensory", "tags", natural="user"),
    "COMPAS": Set("compas", sites=8),
    "students": Set("student", sites=8),
    "adult": Set("adult", sites=8, samples=4000),
    "LabelMe": Set("annotators/labelme.npz"),
    "emotions": Set("emotions", "tags"),
    "scene": Set("scene", "tags", sites=8),
    "birds": Set("birds", "tags"),
    "medical": Set("medical", "tags"),
    "genbase": Set("multi_label/genbase.npz", "tags"),
}


@dataclass(frozen=True)
class Cell:
    """One run: a data set, its split, a method, a way to standardise and a seed."""

    name: str
    split: str
    method: str
    way: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the output file."""
        return "|".join((self.name, self.split, self.method, self.way, str(self.seed)))

    def run(self, made: Path) -> dict[str, float]:
        """Run it and return the figures of its last round; `made` is the folder of files that this script makes."""
        chosen = SETS[self.name]
        data = {
            "dataset": str(made / HEART) if chosen.dataset == HEART else chosen.dataset,
            "partition": chosen.partitions()[self.split],
            "view": {"kind": chosen.view},
            "standardise": self.way,
        }
        experiment = check_experiment(
            {
                "seed": self.seed,
                "data": data if chosen.samples is None else {**data, "samples": chosen.samples},
                "model": {"name": "mlp", "hidden": [128]},
                "method": {"name": self.method, "rounds": ROUNDS, "epochs": EPOCHS},
                "run": {"workers": 0, "evaluate_every": ROUNDS},
            }
        )
        federation = load_federation(experiment, Path(os.environ.get("FEDACCORD_DATA", ".")))
        with open_server(experiment, federation) as server:
            last = list(play(experiment, server))[-1].evaluation
        assert last is not None
        both = {"sites": last.over_sites()["mean"], "global": last.global_ or {}}  # `local` has no global model
        return {name: found[chosen.figure] for name, found in both.items() if chosen.figure in found}


def make_heart(folder: Path) -> None:
    """Write the four hospitals' patients as one file of arrays: 13 numbers each, and whether the disease was found."""
    source = Path(os.environ.get("FEDACCORD_DATA", ".")) / "heart_disease"
    rows = [np.genfromtxt(source / f"processed.{name}.data", delimiter=",", missing_values="?") for name in HOSPITALS]
    table = np.concatenate(rows)
    hospital = np.repeat(HOSPITALS, [len(part) for part in rows])
    disease = (table[:, -1] > 0).astype(np.int64)
    np.savez(folder / HEART, x=table[:, :-1], y=disease, label_names=["healthy", "disease"], hospital=hospital)


def cells(only: str, seeds: int) -> list[Cell]:
    """Return all runs; the seed is the outermost loop, so that an interrupted run has whole pairs."""
    return [
        Cell(name, split, method, way, seed)
        for seed in range(seeds)
        for name, chosen in SETS.items()
        for split in chosen.partitions()
        if only in f"{name}, {split}"
        for method in chosen.methods
        for way in WAYS
    ]


def finished(out: Path) -> dict[str, dict[str, float]]:
    """Return the figures of the finished cells by key."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return {entry["cell"]: entry["figures"] for entry in map(json.loads, lines)}


class Table:
    """The finished cells, compared: how much "federation" gains over "site", in percent."""

    def __init__(self, done: dict[str, dict[str, float]], only: str, seeds: int) -> None:
        self.done, self.seeds = done, seeds
        federations = [(name, split) for name, chosen in SETS.items() for split in chosen.partitions()]
        self.federations = [both for both in federations if only in ", ".join(both)]

    def values(self, name: str, split: str, method: str, way: str, figure: str) -> dict[int, float]:
        """Return a figure by seed; empty if the method did not run or does not have it."""
        found = {seed: self.done.get(Cell(name, split, method, way, seed).key, {}) for seed in range(self.seeds)}
        return {seed: 100 * figures[figure] for seed, figures in found.items() if figure in figures}

    def judgement(self, name: str, split: str, method: str, figure: str) -> Judgement | None:
        """Judge whether "federation" is better; None if the method has no such figure."""
        first, second = (self.values(name, split, method, way, figure) for way in reversed(WAYS))
        return judge_better(paired_differences(first, second)) if first else None

    def show(self, figure: str, title: str) -> None:
        """Print the table of one figure, and how often "federation" is better."""
        columns = [*ALWAYS, *(method for methods in ALSO.values() for method in methods)]
        columns = [m for m in columns if any(self.judgement(*both, m, figure) for both in self.federations)]
        print(f"\n{title}\n\n| | {' | '.join(columns)} |\n| --- |" + " --- |" * len(columns))
        for both in self.federations:
            shown = [self.shown(*both, method, figure) for method in columns]
            print(f"| {', '.join(both)} | {' | '.join(shown)} |")
        judged = {m: [j for both in self.federations if (j := self.judgement(*both, m, figure))] for m in columns}
        means = [_difference(judge_better(j.mean for j in found)) for found in judged.values()]
        print(f"| mean over federations | {' | '.join(means)} |")
        for words, verdict in (("better", "holds"), ("worse", "refuted"), ("undecided", "undecided")):
            counts = [str(sum(j.verdict == verdict for j in found)) for found in judged.values()]
            print(f"| federations where it is {words} | {' | '.join(counts)} |")

    def shown(self, name: str, split: str, method: str, figure: str) -> str:
        """Return the figure with "federation", and its difference to "site"; bold if its interval excludes 0."""
        found = self.judgement(name, split, method, figure)
        if found is None:
            return "-"
        mean = statistics.fmean(self.values(name, split, method, "federation", figure).values())
        return f"{mean:.1f} ({_difference(found)})"


def _difference(found: Judgement) -> str:
    """Return a mean difference and half of its interval, in bold if it is decided."""
    shown = f"{found.mean:+.1f} ± {(found.interval.high - found.interval.low) / 2:.1f}"
    return shown if found.verdict == "undecided" else f"**{shown}**"


def main() -> None:
    """Run what is not finished, then print a table for the sites and one for the global model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/standardise.jsonl"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    make_heart(options.out.parent)
    done = finished(options.out)
    for cell in cells(options.only, options.seeds):
        if cell.key not in done:
            done[cell.key] = cell.run(options.out.parent.resolve())
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"cell": cell.key, "figures": done[cell.key]}) + "\n")
    table = Table(done, options.only, options.seeds)
    table.show("sites", "Mean over the sites, each on its own test rows:")
    table.show("global", "The global model on the server's test rows:")


if __name__ == "__main__":
    main()
