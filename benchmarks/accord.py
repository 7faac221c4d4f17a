"""Compare `accord` with baselines on federations of mixed views, and the choices of sites that use a prior.

    python benchmarks/accord.py prior   [--seeds 8] [--only digits]
    python benchmarks/accord.py mixture [--seeds 8] [--only digits]

Every scenario runs each method on the same seeds (same split, same annotations, same initial weights). The output is
the mean over seeds and the paired difference to the first method with its standard error, for three metrics: accuracy
of the global model (no offset, all classes), accuracy of the sites on their own tasks (with their offset), and their
negative log-likelihood. Only the default of `prior` was chosen by these figures. Finished cells are kept in the output
file, so an interrupted run can continue. All data sets except digits are read from FEDACCORD_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation
from fedaccord.recording import play
from fedaccord.session import open_server

GROUPS = [
    {"low": ["0", "1", "2"], "mid": ["3", "4", "5"], "high": ["6", "7"], "top": ["8", "9"]},
    {"round": ["0", "6", "8", "9"], "straight": ["1", "4", "7"], "open": ["2", "3", "5"]},
    {"even": ["0", "2", "4", "6", "8"], "odd": ["1", "3", "5", "7", "9"]},
]
COARSE = [{"kind": "coarse", "correspondence": groups} for groups in GROUPS]
CANDIDATES = {"kind": "candidates", "generate": "uniform", "q": 0.3}
SOME = [{"kind": "exact", "known": list(known)} for known in ("012", "567")]
EXACT = {"kind": "exact"}
BALANCED = [EXACT, EXACT, *SOME, *COARSE[:2], CANDIDATES, CANDIDATES]
FEW_EXACT = [EXACT, SOME[0], *COARSE, CANDIDATES, CANDIDATES, CANDIDATES]

DIGITS = {
    "method": {"rounds": 60, "steps": 10, "batch": 32, "lr": 0.1, "weight_decay": 1e-4},
    "model": {"name": "mlp", "hidden": [64]},
}
FASHION = {"method": {"rounds": 30, "steps": 20, "batch": 32, "lr": 0.05}, "model": {"name": "mlp", "hidden": [128]}}
REAL = {"method": {"rounds": 100, "steps": 40, "batch": 32, "lr": 0.01}, "model": {"name": "mlp", "hidden": [128]}}

TABLES = {
    "prior": {
        "off": ("accord", {"prior": "off"}),
        "exact-sites": ("accord", {"prior": "exact-sites"}),
        "all": ("accord", {"prior": "all"}),
        "all, pseudo-count 10": ("accord", {"prior": "all", "prior_count": 10.0}),
    },
    "mixture": {
        "accord": ("accord", {}),
        "local": ("local", {}),
        "fedavg, exact sites only": ("fedavg", {"sites": "exact"}),
        "fedavg": ("fedavg", {}),
        "pooled, same views": ("pooled", {"labels": "views"}),
        "pooled, true classes": ("pooled", {"labels": "truth"}),
    },
}


def mixture(dataset: str, views: list, partition: dict, samples: int, base: dict) -> dict:
    names = [f"site-{i}" for i in range(len(views))]
    data = {
        "dataset": dataset,
        "partition": {**partition, "sites": len(views)},
        "samples": samples,
        "views": dict(zip(names, views, strict=True)),
        "test": 0.3,
        "test_samples": 4000,
    }
    return {"data": data, **base}


IID, SKEWED = {"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.3, "min_size": 10}
SCENARIOS = {
    "digits, balanced": mixture("digits", BALANCED, IID, 800, DIGITS),
    "digits, few exact": mixture("digits", FEW_EXACT, IID, 800, DIGITS),
    "digits, balanced, skewed": mixture("digits", BALANCED, SKEWED, 800, DIGITS),
    "digits, few exact, skewed": mixture("digits", FEW_EXACT, SKEWED, 800, DIGITS),
    "fashion, balanced, skewed": mixture("fashion_mnist", BALANCED, SKEWED, 2400, FASHION),
    "fashion, few exact, skewed": mixture("fashion_mnist", FEW_EXACT, SKEWED, 2400, FASHION),
    "mnist, few exact, skewed": mixture("mnist", FEW_EXACT, SKEWED, 2400, FASHION),
    "lost (candidates)": {
        "data": {
            "dataset": "partial_label/lost.npz",
            "partition": {"kind": "dirichlet", "sites": 4, "alpha": 0.5},
            "view": {"kind": "candidates"},
            "standardise": "site",  # the default when the figures in docs/accord.md were measured
        },
        **REAL,
    },
    "msrcv2 (candidates)": {
        "data": {
            "dataset": "partial_label/msrcv2.npz",
            "partition": {"kind": "dirichlet", "sites": 4, "alpha": 0.5},
            "view": {"kind": "candidates"},
            "standardise": "site",  # the default when the figures in docs/accord.md were measured
        },
        **REAL,
    },
}


def cell(table: dict, method: str, settings: dict, seed: int) -> dict[str, float]:
    """Run one experiment and return the figures of its last round."""
    spec = {**table, "seed": seed, "run": {"workers": 0, "evaluate_every": 0}}
    spec["method"] = {**table["method"], "name": method, **settings}
    rounds = spec["method"]["rounds"]
    spec["run"]["evaluate_every"] = rounds
    experiment = check_experiment(spec)
    data = load_federation(experiment, Path(os.environ.get("FEDACCORD_DATA", ".")))
    with open_server(experiment, data) as server:
        last = list(play(experiment, server))[-1].evaluation
    assert last is not None
    mean = last.over_sites()["mean"]
    each = {f"site {name}": m["accuracy"] for name, m in last.sites.items() if "accuracy" in m}
    whole = {"global": last.global_["accuracy"]} if last.global_ else {}
    return {**whole, "sites": mean["accuracy"], "nll": mean["nll"], **each}


def paired(values: list[float]) -> str:
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{mean:+.2f} ({error:.2f})"


def cells(scenario: str, contestants: dict, seeds: int, done: dict, out: Path) -> dict[str, list[dict[str, float]]]:
    """Run the unfinished cells of a scenario and return all its cells by method."""
    for seed in range(seeds):
        for name, (method, settings) in contestants.items():
            key = f"{scenario}|{name}|{seed}"
            if key not in done:
                done[key] = cell(SCENARIOS[scenario], method, settings, seed)
                out.write_text(json.dumps(done, indent=1))
    return {name: [done[f"{scenario}|{name}|{seed}"] for seed in range(seeds)] for name in contestants}


def figures(results: dict[str, list[dict[str, float]]]) -> None:
    """Print the means and the paired differences to the first method."""
    first = next(iter(results))
    print(f"| | global | sites | nll | global - {first} | sites - {first} | nll - {first} |\n| --- |" + " --- |" * 6)
    for name, rows in results.items():
        means, gaps = [], []
        for key, scale in FIGURES:
            measured = all(key in row for row in rows)  # local training has no global model
            means.append(f"{statistics.fmean(scale * row[key] for row in rows):.2f}" if measured else "-")
            pairs = zip(rows, results[first], strict=True)
            gaps.append(paired([scale * (row[key] - other[key]) for row, other in pairs]) if measured else "-")
        print(f"| {name} | " + " | ".join(means) + " | " + " | ".join(gaps) + " |", flush=True)


def by_site(results: dict[str, list[dict[str, float]]], views: dict) -> None:
    """Print the accuracy of each site on its own task, with local training and with `accord`."""
    print("\n| site | view | local | accord | accord - local |\n| --- | --- | --- | --- | --- |")
    for key in results["accord"][0]:
        if key.startswith("site "):
            pairs = [
                (100 * a[key], 100 * b[key])
                for a, b in zip(results["accord"], results["local"], strict=True)
                if key in a and key in b
            ]
            view = views[key.removeprefix("site ")]
            kind = "some classes" if "known" in view else view["kind"]
            ours, alone = (statistics.fmean(column) for column in zip(*pairs, strict=True))
            gain = paired([a - b for a, b in pairs])
            print(f"| {key[5:]} | {kind} | {alone:.1f} | {ours:.1f} | {gain} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or Path(f"benchmarks/results/accord_{options.table}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    done = json.loads(out.read_text()) if out.exists() else {}
    for scenario in SCENARIOS:
        if options.only in scenario:
            contestants = dict(TABLES[options.table])
            views = SCENARIOS[scenario]["data"].get("views")
            if not views:  # data sets of real candidate sets have no exact site
                contestants.pop("fedavg, exact sites only", None)
            results = cells(scenario, contestants, options.seeds, done, out)
            print(f"\n{scenario}, {options.seeds} paired seeds")
            figures(results)
            if options.table == "mixture" and views:
                by_site(results, views)


FIGURES = (("global", 100), ("sites", 100), ("nll", 1))

if __name__ == "__main__":
    main()
