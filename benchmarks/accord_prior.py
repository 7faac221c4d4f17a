"""Which sites should use a site prior in `accord`? Paired runs on several federations.

    python benchmarks/accord_prior.py [--seeds 8] [--only digits] [--out FILE]

Every scenario is run with each setting on the same seeds (same split, same annotations, same initial weights). Printed
are means over seeds and the paired difference to `prior = off` with its standard error: accuracy of the global model
(no offset, all classes), accuracy of the sites on their own tasks (with their offset), and their likelihood. Finished
cells are kept in the output file, so that a cut run goes on. MNIST-like data and the real candidate sets are read from
FEDACCORD_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation, open_server, play

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

DIGITS = {"method": {"rounds": 60, "steps": 10, "batch": 32, "lr": 0.1, "weight_decay": 1e-4},
          "model": {"name": "mlp", "hidden": [64]}}  # fmt: skip
FASHION = {"method": {"rounds": 30, "steps": 20, "batch": 32, "lr": 0.05},
           "model": {"name": "mlp", "hidden": [128]}}  # fmt: skip
REAL = {"method": {"rounds": 100, "steps": 40, "batch": 32, "lr": 0.01}, "model": {"name": "mlp", "hidden": [128]}}

VARIANTS = {
    "off": {"prior": "off"},
    "exact-sites": {"prior": "exact-sites"},
    "all": {"prior": "all"},
    "all, pseudo-count 10": {"prior": "all", "prior_count": 10.0},
}


def mixture(dataset: str, views: list, partition: dict, samples: int, base: dict) -> dict:
    names = [f"site-{i}" for i in range(len(views))]
    data = {"dataset": dataset, "partition": {**partition, "sites": len(views)}, "samples": samples,
            "views": dict(zip(names, views, strict=True)), "test": 0.3, "test_samples": 4000}  # fmt: skip
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
    "lost (candidates)": {"data": {"dataset": "partial_label/lost.npz",
        "partition": {"kind": "dirichlet", "sites": 4, "alpha": 0.5}, "view": {"kind": "candidates"}}, **REAL},
    "msrcv2 (candidates)": {"data": {"dataset": "partial_label/msrcv2.npz",
        "partition": {"kind": "dirichlet", "sites": 4, "alpha": 0.5}, "view": {"kind": "candidates"}}, **REAL},
}  # fmt: skip


def cell(table: dict, method: str, settings: dict, seed: int) -> dict[str, float]:
    """Run one experiment and return its last round's figures."""
    spec = {**table, "seed": seed, "run": {"workers": 0, "evaluate_every": 0}}
    spec["method"] = {**table["method"], "name": method, **settings}
    rounds = spec["method"]["rounds"]
    spec["run"]["evaluate_every"] = rounds
    experiment = check_experiment(spec)
    data = load_federation(experiment, Path(os.environ.get("FEDACCORD_DATA", ".")))
    with open_server(experiment, data) as server:
        last = [record for record in play(experiment, server)][-1].evaluation
    assert last is not None
    mean = last.over_sites()["mean"]
    worst = {f"site {name}": m["accuracy"] for name, m in last.sites.items() if "accuracy" in m}
    return {"global": last.global_.get("accuracy", float("nan")), "sites": mean["accuracy"], "nll": mean["nll"], **worst}


def paired(values: list[float]) -> str:
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{mean:+.2f} ({error:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/accord_prior.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = json.loads(options.out.read_text()) if options.out.exists() else {}
    for scenario, table in SCENARIOS.items():
        if options.only not in scenario:
            continue
        for seed in range(options.seeds):
            for variant, settings in VARIANTS.items():
                key = f"{scenario}|{variant}|{seed}"
                if key not in done:
                    done[key] = cell(table, "accord", settings, seed)
                    options.out.write_text(json.dumps(done, indent=1))
        print(f"\n{scenario}, {options.seeds} paired seeds")
        print("| prior | global | sites | nll | global - off | sites - off | nll - off |\n| --- |" + " --- |" * 6)
        for variant in VARIANTS:
            rows = [(done[f"{scenario}|{variant}|{s}"], done[f"{scenario}|off|{s}"]) for s in range(options.seeds)]
            means = [statistics.fmean(scale * r[k] for r, _ in rows) for k, scale in FIGURES]
            gaps = [paired([scale * (r[k] - o[k]) for r, o in rows]) for k, scale in FIGURES]
            print(f"| {variant} | " + " | ".join(f"{m:.2f}" for m in means) + " | " + " | ".join(gaps) + " |", flush=True)


FIGURES = (("global", 100), ("sites", 100), ("nll", 1))

if __name__ == "__main__":
    main()
