"""Play every method on tiny federations and record what came out: digests and final figures.

    python tests/golden/record.py FILE             record all cases
    python tests/golden/record.py FILE --compare   play all cases again; digests must be equal, bit for bit

A digest belongs to one machine, since processors round differently. So `tests/golden/recorded.json` holds digests for
comparing two states of the code on one machine, and the suite compares its figures within a small tolerance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits

sys.path[:0] = [str(Path(__file__).parents[1])]

from command_line import command  # noqa: E402

METHODS = [
    "accord",
    "fedavg",
    "fedprox",
    "scaffold",
    "fednova",
    "fedcurv",
    "private-labels",
    "pfedpll",
    "pfedpll+",
    "fed-cc",
    "fed-rc",
    "fed-lw",
    "fed-cavl",
    "fed-abs-gce",
    "fed-uniform",
    "fed-clpl",
    "fedpll-la-approx",
    "fedmt",
    "fedmt+",
    "semifl",
    "fedrep",
    "fedtrans",
    "single",
    "pfedmo",
    "fednag",
    "fastslowmo",
    "fedmom",
    "slowmo",
    "domo",
    "fedadc",
    "mime",
    "representation",
    "fedharmony",
    "fedharmony+",
    "spherefed",
    "local",
    "pooled",
]

DIGITS = """
seed = 5
[data]
dataset = "digits"
samples = 240
partition = { kind = "quantity", sizes = [60, 55, 50] }
names = ["a", "b", "c"]
"""
FOUR = DIGITS.replace("[60, 55, 50]", "[45, 40, 45, 35]").replace('"c"]', '"c", "d"]')
VIEWS = {
    "exact": DIGITS,
    "some-classes": DIGITS
    + '[data.views]\na = { known = ["0", "1", "2", "3", "4", "5"] }\nb = { known = ["4", "5", "6", "7", "8", "9"] }\n',
    "candidates": DIGITS
    + "[data.views]\n"
    + "".join(f'{site} = {{ kind = "candidates", generate = "uniform" }}\n' for site in "abc"),
    "mixture": FOUR + '[data.views]\na = { known = ["0", "1", "2", "3", "4", "5"] }\n'
    'b = { kind = "candidates", generate = "uniform" }\n'
    'c = { kind = "coarse", correspondence = "shape" }\nd = { kind = "unlabelled" }\n',
    "coarse-labelled": DIGITS.replace("240", "320")
    + "[data.views]\n"
    + "".join(f'{site} = {{ kind = "coarse", correspondence = "shape" }}\n' for site in "abc")
    + "[server]\nlabelled = { per_class = 3 }\n",
    "tags": DIGITS.replace('"digits"', '"TAGS"\nview = { kind = "tags" }'),
}

# Parts that compose: a defence, robust rules, control variates, sites that come and go, cohorts, prepare and refine.
MANY = (
    DIGITS.replace("240", "600")
    .replace("sizes = [60, 55, 50]", f"sizes = {[18] * 24}")
    .replace('names = ["a", "b", "c"]\n', "")
)
SEVEN = MANY.replace("18, " * 17, "")
PRIVATE = VIEWS["some-classes"].replace("seed = 5", "seed = 6") + "[server]\nunlabelled = 40\n"
COMING = VIEWS["some-classes"].replace('"c"]\n', '"c"]\njoins = { b = 2 }\nleaves = { a = 3 }\n')
UNFAIR = """
seed = 5
[data]
dataset = "UNFAIR"
partition = { kind = "iid", sites = 6 }
view = { kind = "candidates", generate = "uniform", q = 0.3 }
sensitive = { column = "region", q = 0.1 }
[fairness]
group = "north"
label = "high"
"""
PAIRS: dict[str, tuple[str, str]] = {
    "fedavg, median": (VIEWS["exact"], 'name = "fedavg"\naggregation = "median"\n'),
    "fedavg, trimmed mean": (VIEWS["exact"], 'name = "fedavg"\naggregation = "trimmed-mean"\n'),
    "accord, krum": (SEVEN, 'name = "accord"\naggregation = "krum"\nhostile = 1\n'),
    "accord, multi-krum": (SEVEN, 'name = "accord"\naggregation = "multi-krum"\nhostile = 1\n'),
    "accord, median, some classes": (VIEWS["some-classes"], 'name = "accord"\naggregation = "median"\n'),
    "accord, exact priors": (VIEWS["mixture"], 'name = "accord"\nprior = "exact-sites"\n'),
    "accord, adam": (VIEWS["mixture"], 'name = "accord"\noptimiser = "adam"\nlr = 0.01\n'),
    "accord, part of the sites": (VIEWS["mixture"], 'name = "accord"\nparticipation = 0.5\n'),
    "accord, joins and leaves": (COMING, 'name = "accord"\n'),
    "private-labels, joins and leaves": (COMING, 'name = "private-labels"\n'),
    "scaffold, joins and leaves": (COMING, 'name = "scaffold"\n'),
    "private-labels, scaffold": (VIEWS["some-classes"], 'name = "private-labels"\nlocal = "scaffold"\n'),
    "private-labels, fedprox": (VIEWS["some-classes"], 'name = "private-labels"\nlocal = "fedprox"\n'),
    "private-labels, median": (VIEWS["some-classes"], 'name = "private-labels"\naggregation = "median"\n'),
    "private-labels, per label": (VIEWS["some-classes"], 'name = "private-labels"\nlabel_weight = "per_label"\n'),
    "private-labels, dense": (VIEWS["some-classes"], 'name = "private-labels"\nrows = "dense"\n'),
    "private-labels, public": (VIEWS["some-classes"], 'name = "private-labels"\nlabels = "public"\n'),
    "private-labels, public rows": (VIEWS["some-classes"], 'name = "private-labels"\nlabels = "public_per_label"\n'),
    "private-labels, mse": (PRIVATE, 'name = "private-labels"\ntuning = "mse"\n'),
    "private-labels, mse renorm": (PRIVATE, 'name = "private-labels"\ntuning = "mse"\nnorm = "renorm"\n'),
    "private-labels, pairwise": (PRIVATE, 'name = "private-labels"\ntuning = "pairwise"\n'),
    "private-labels, balance": (PRIVATE, 'name = "private-labels"\ntuning = "balance"\n'),
    "fedavg, squared": (VIEWS["exact"], 'name = "fedavg"\nloss = "squared"\nweights = "equal"\n'),
    "fedprox, strong": (VIEWS["mixture"], 'name = "fedprox"\nmu = 0.5\n'),
    "scaffold, server rate": (VIEWS["exact"], 'name = "scaffold"\nserver_lr = 0.5\nmu = 0.1\n'),
    "fednova, unequal steps": (VIEWS["exact"], 'name = "fednova"\nepochs = 1\nbatch = 8\n'),
    "fedavg, attack": (FOUR, 'name = "fedavg"\nattack = { kind = "sign-flip", sites = 1 }\naggregation = "median"\n'),
    "accord, label flip": (FOUR, 'name = "accord"\nattack = { kind = "label-flip", sites = 1 }\n'),
    "fedavg, alie": (SEVEN, 'name = "fedavg"\nattack = { kind = "alie", sites = 1 }\n'),
    "pfedpll, momentum": (VIEWS["candidates"], 'name = "pfedpll"\nmomentum = 0.5\n'),
    "pfedpll, scored by features": (VIEWS["candidates"] + "[server]\nunlabelled = 40\n", 'name = "pfedpll"\n'),
    "fedmt, mixed views": (
        VIEWS["mixture"].replace("240", "320") + "[server]\nlabelled = { per_class = 3 }\n",
        'name = "fedmt"\nthreshold = 0.1\nlr = 0.05\n',
    ),
    "semifl, mixed views": (
        VIEWS["mixture"].replace("240", "320") + "[server]\nlabelled = { per_class = 3 }\n",
        'name = "semifl"\nthreshold = 0.1\nlr = 0.05\n',
    ),
    "local, rc": (VIEWS["candidates"], 'name = "local"\nloss = "rc"\n'),
    "local, lw": (VIEWS["candidates"], 'name = "local"\nloss = "lw"\n'),
    "fed-rc, local head": (VIEWS["candidates"], 'name = "fed-rc"\nhead = "local"\n'),
    "fedmt, known": (
        VIEWS["coarse-labelled"],
        'name = "fedmt"\ncorrespondence = "known"\nthreshold = 0.1\nlr = 0.05\n',
    ),
    "fedmt, average": (
        VIEWS["coarse-labelled"],
        'name = "fedmt"\ncorrespondence = "estimated-average"\nthreshold = 0.1\nlr = 0.05\n',
    ),
    "fedmt, learnable": (
        VIEWS["coarse-labelled"],
        'name = "fedmt"\ncorrespondence = "learnable"\nthreshold = 0.1\nlr = 0.05\n',
    ),
    "fedmt+, fedprox": (VIEWS["coarse-labelled"], 'name = "fedmt+"\nlocal = "fedprox"\nthreshold = 0.1\nlr = 0.05\n'),
    "fedmt, scaffold": (VIEWS["coarse-labelled"], 'name = "fedmt"\nlocal = "scaffold"\nthreshold = 0.1\nlr = 0.05\n'),
    "pfedmo, printed": (VIEWS["coarse-labelled"], 'name = "pfedmo"\nrule = "printed"\nsteps = 3\n'),
    "pfedmo, reversed, exact": (
        VIEWS["exact"].replace("240", "320") + "[server]\nlabelled = { per_class = 3 }\n",
        'name = "pfedmo"\nrule = "reversed"\nsteps = 3\n',
    ),
    "pfedmo, pull, exact": (
        VIEWS["exact"].replace("240", "320") + "[server]\nlabelled = { per_class = 3 }\n",
        'name = "pfedmo"\nrule = "pull"\nsteps = 3\n',
    ),
    "fedharmony, two exchanges": (VIEWS["tags"], 'name = "fedharmony"\nexchanges = 2\nlr = 0.01\n'),
    "fedharmony, counts": (VIEWS["tags"], 'name = "fedharmony"\nteacher = "counts"\nlr = 0.01\n'),
    "fedharmony, median consensus": (VIEWS["tags"], 'name = "fedharmony"\nconsensus = "median"\nlr = 0.01\n'),
    "fedharmony+, noise": (VIEWS["tags"], 'name = "fedharmony+"\ncorrelation_noise = 0.5\n'),
    "fedharmony, no blocks": (VIEWS["tags"], 'name = "fedharmony"\nblocks = "off"\nweights = "samples"\nlr = 0.01\n'),
    **{
        f"{method}, {how}": (MANY + f'[run]\nworkers = 0\nbatched = "{how}"\n', f'name = "{method}"\n')
        for method in ("accord", "fedavg", "scaffold", "private-labels", "fedprox", "mime", "local")
        for how in ("always", "never")
    },
    "accord, two workers": (MANY + "[run]\nworkers = 2\n", 'name = "accord"\n'),
    "fed-clpl, defence": (
        UNFAIR,
        'name = "fed-clpl"\nattack = { kind = "plfa", sites = 1 }\ndefence = { kind = "group-update" }\n',
    ),
    "fed-clpl, probe": (
        UNFAIR,
        'name = "fed-clpl"\nattack = { kind = "pafa", sites = 1 }\ndefence = { kind = "probe" }\n',
    ),
    "fed-clpl, inversion": (
        UNFAIR,
        'name = "fed-clpl"\nattack = { kind = "mixup", sites = 1 }\n'
        'defence = { kind = "inversion", reconstruct = true, steps = 3, dummies = 8 }\n',
    ),
    "fed-clpl, group-update+": (UNFAIR, 'name = "fed-clpl"\ndefence = { kind = "group-update+" }\n'),
}

UNSEEDED = ("fedharmony+, noise",)  # private noise comes from the machine, so two runs differ

MODEL = "\n[model]\nhidden = [16]\n"
RUN = "\n[run]\nworkers = 0\n"
TAUGHT = ("fedmt", "fedmt+", "semifl", "fedrep", "fedtrans", "single")  # take passes, and a threshold sites reach


def cases() -> dict[str, str]:
    """Return every case as an experiment file."""
    found = {}
    for method in METHODS:
        for view, data in VIEWS.items():
            model = '\n[model]\nname = "sphere-mlp"\nhidden = [16]\n' if method == "spherefed" else MODEL
            length = "lr = 0.05\n" if method in TAUGHT else "steps = 3\n"
            length += "threshold = 0.1\n" if method in ("fedmt", "fedmt+", "semifl") else ""
            found[f"{method}: {view}"] = f'{data}{model}{RUN}\n[method]\nname = "{method}"\nrounds = 2\n{length}'
    for name, (data, method) in PAIRS.items():
        length = "" if any(word in method for word in ("steps", "epochs", "fedmt")) else "steps = 3\n"
        run = "" if "[run]" in data else RUN
        found[name] = f"{data}{MODEL}{run}\n[method]\n{method}rounds = 3\n{length}"
    return found


def play(text: str, folder: Path) -> dict[str, Any]:
    """Run one experiment file and return its digests and final figures, or that it was refused."""
    data = write_data(folder)
    for word, path in data.items():
        text = text.replace(word, str(path))
    path = folder / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    done = command("run", path, "--out", folder / "run", cwd=folder)
    if done.code == 2:
        return {"refused": True}
    if done.code:
        return {"crashed": done.err.strip().splitlines()[-3:]}
    summary = json.loads((folder / "run/summary.json").read_text(encoding="utf-8"))
    return {
        "model_sha256": summary["model_sha256"],
        "kept_sha256": kept_digest(folder / "run/model"),
        "bytes": [summary["bytes"]["sent"], summary["bytes"]["received"]],
        "dropped": summary["dropped"],
        "figures": dict(figures(summary["final"])),
    }


def same_bytes(one: list[int], other: list[int]) -> bool:
    """Compare what travelled; numbers written as text differ in length, by time and noise."""
    return all(abs(a - b) <= 0.01 * b for a, b in zip(one, other, strict=True))


def equal(name: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Compare two results of a case on one machine, bit for bit."""
    if one.keys() != other.keys() or not same_bytes(one.get("bytes", []), other.get("bytes", [])):
        return False
    return name in UNSEEDED or all(one[key] == other[key] for key in one if key != "bytes")


def kept_digest(model: Path) -> str:
    """Return a digest of all tensors in a model folder, whatever their names are."""
    whole = []
    for path in sorted(model.rglob("*.safetensors")):
        for tensor in load_file(path).values():
            whole.append(hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest())
    return hashlib.sha256("".join(sorted(whole)).encode()).hexdigest()


def figures(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of a nested table under its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from figures(inner, f"{place}/{key}".strip("/"))
    elif isinstance(value, int | float):
        yield place, float(value)


def write_data(folder: Path) -> dict[str, Path]:
    """Write the files that cases name: digits with tags, and a table of people."""
    digits = load_digits()
    tags = np.stack([np.isin(digits.target, (0, 6, 8, 9)), digits.target % 2 == 0, digits.target > 4], 1)
    names = np.array(["round", "even", "large"])
    np.savez(folder / "tags.npz", X=digits.data, Y=tags.astype(np.int8), label_names=names)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(420, 4)).astype(np.float32)
    y = (x @ np.array([1.0, -1.0, 0.5, 0.0]) + 0.5 * rng.normal(size=420) > 0).astype(int)
    region = rng.choice(["north", "south"], 420)
    np.savez(folder / "people.npz", x=x, y=y, label_names=np.array(["low", "high"]), region=region)
    return {"TAGS": folder / "tags.npz", "UNFAIR": folder / "people.npz"}


def played(names: list[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Play the named cases, by default all, one after the other."""
    torch.set_num_threads(1)
    for name, text in cases().items():
        if names is None or name in names:
            with tempfile.TemporaryDirectory() as folder:
                yield name, play(text, Path(folder))


def main() -> None:
    """Record, or compare with what was recorded on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--compare", action="store_true", help="compare with the file instead of writing it")
    parser.add_argument("--only", help="cases whose name contains this")
    chosen = parser.parse_args()
    names = [name for name in cases() if chosen.only is None or chosen.only in name]
    recorded = json.loads(chosen.file.read_text(encoding="utf-8")) if chosen.compare else {}
    now, different = {}, []
    for name, result in played(names):
        now[name] = result
        if chosen.compare and not equal(name, result, recorded.get(name, {})):
            different.append(name)
            print(f"{name}: DIFFERS", flush=True)
        else:
            print(f"{name}: {result.get('model_sha256', next(iter(result)))[:12]}", flush=True)
    if not chosen.compare:
        chosen.file.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    finished = sum("figures" in result for result in now.values())
    print(f"{len(now)} cases, {finished} played, {len(different)} different")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
