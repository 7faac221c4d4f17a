"""Write the files that this version of FedAccord makes, to prove with later versions that they keep working.

    python tests/old_files/make.py     writes tests/old_files/VERSION, which must not be there yet

Run it once for each release, with the code of that release; files that are there are never made anew.

    VERSION/
      data/            files that the others read, and rows to predict
      experiments/     experiment files as people write them, with the sites' tables beside them
      complete/        one experiment file for each method, with every setting of the version written out
      cut/NAME/        run folders of runs that were killed after 2 of 4 rounds, and expected.json: how they end
      finished/NAME/   finished run folders, and predicted.json: what their models say about rows in data/

Absolute paths are replaced with the word PLACE; the test puts its own folder in its place. Model digests belong to one
machine, since processors round differently. So expected.json holds them for comparing by hand, and the test compares
figures.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from command_line import command  # noqa: E402
from fedaccord import __version__  # noqa: E402
from fedaccord.config import load_experiment, to_toml  # noqa: E402
from fedaccord.methods.registry import METHODS  # noqa: E402

PLACE = "PLACE"
EXAMPLES = ["candidates", "coarse", "digits_mixture", "exact", "some_classes", "tags", "unlabelled"]
DIGITS = """
seed = 5
[data]
dataset = "digits"
samples = 300
partition = { kind = "quantity", sizes = [45, 40, 45, 35] }
names = ["a", "b", "c", "d"]
"""
SETS = DIGITS + 'view = { kind = "candidates", generate = "uniform", q = 0.3 }\n'
COARSE = DIGITS + 'view = { kind = "coarse", correspondence = "shape" }\n'
KNOWN = 'a = { known = ["0", "1", "2", "3", "4", "5"] }\nb = { known = ["4", "5", "6", "7", "8", "9"] }\n'
SOME = DIGITS + f"[data.views]\n{KNOWN}"
COMING = SOME.replace('"d"]\n', '"d"]\njoins = { b = 2 }\nleaves = { a = 4 }\n')
MIXTURE = (
    DIGITS
    + """
[data.views]
a = { known = ["0", "1", "2", "3", "4", "5"] }
b = { kind = "candidates", generate = "uniform" }
c = { kind = "coarse", correspondence = "shape" }
d = { kind = "unlabelled" }
"""
)
TAGS = DIGITS.replace('"digits"', '"../data/tags.npz"\nview = { kind = "tags" }')
LABELLED = "[server]\nlabelled = { per_class = 3 }\n"
REST = (
    '[model]\nname = "{model}"\nhidden = [8]\n[run]\nworkers = 0\ncheckpoint_every = 2\n[method]\nrounds = 4\n{method}'
)
CASES = {
    "accord": MIXTURE + REST.format(model="mlp", method='name = "accord"\nsteps = 3\nprior = "all"\n'),
    "pfedpll": SETS + "[server]\nunlabelled = 20\n" + REST.format(model="mlp", method='name = "pfedpll"\nsteps = 3\n'),
    "private-labels": COMING
    + REST.format(model="mlp", method='name = "private-labels"\nsteps = 3\nlocal = "scaffold"\n'),
    "fedmt": COARSE + LABELLED + REST.format(model="mlp", method='name = "fedmt"\nlr = 0.05\nthreshold = 0.1\n'),
    "fedrep": COARSE + LABELLED + REST.format(model="mlp", method='name = "fedrep"\nlr = 0.05\n'),
    "fedharmony": TAGS + REST.format(model="mlp", method='name = "fedharmony"\nsteps = 3\nlr = 0.01\n'),
    "fedadc": SOME + REST.format(model="mlp", method='name = "fedadc"\nsteps = 3\n'),
    "spherefed": TAGS + REST.format(model="sphere-mlp", method='name = "spherefed"\nsteps = 3\n'),
    "local": SETS + REST.format(model="mlp", method='name = "local"\nloss = "rc"\nsteps = 3\n'),
}
ONLY_FINISHED, ONLY_CUT = ("fedrep", "local"), ("private-labels", "fedadc", "spherefed")
CUT_AFTER = 2


def main() -> None:
    """Write the folder of this version."""
    torch.set_num_threads(1)
    folder = HERE / ".".join(__version__.split(".")[:2])
    folder.mkdir()
    os.environ["FEDACCORD_CACHE"] = tempfile.mkdtemp()
    write_data(folder / "data")
    write_experiments(folder / "experiments")
    write_complete(folder / "complete")
    for name, text in CASES.items():
        finished = folder / "finished" / name
        write_finished(finished, text, "flat.npz" if "tags.npz" in text else "digits.npz")
        if name not in ONLY_FINISHED:
            write_cut(finished, folder / "cut" / name)
        shutil.rmtree(finished if name in ONLY_CUT else finished / "run/checkpoints")
    clinic = folder / "experiments/clinic/federation.toml"
    write_finished(folder / "finished/clinic", clinic.read_text(encoding="utf-8"), "clinic.csv", clinic.parent)
    shutil.rmtree(folder / "finished/clinic/run/checkpoints")
    shutil.rmtree(os.environ["FEDACCORD_CACHE"])


def write_data(folder: Path) -> None:
    """Write digits with tags, and rows to predict."""
    folder.mkdir()
    digits = load_digits()
    tags = np.stack([np.isin(digits.target, (0, 6, 8, 9)), digits.target % 2 == 0, digits.target > 4], 1)
    names = np.array(["round", "even", "large"])
    pixels = digits.data.astype(np.uint8)
    np.savez_compressed(folder / "tags.npz", X=pixels[:300], Y=tags[:300].astype(np.int8), label_names=names)
    np.savez_compressed(folder / "flat.npz", x=pixels[-4:])
    np.savez_compressed(folder / "digits.npz", x=(pixels[-4:] / 16).reshape(-1, 1, 8, 8).astype(np.float32))
    rows = ["age,temperature,cough", "31,36.6,none", "70,39.4,dry", "12,38.1,wet", "55,,dry", "8,37.0,none"]
    (folder / "clinic.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_experiments(folder: Path) -> None:
    """Write the examples of every view, and what `fedaccord init` writes."""
    for name in EXAMPLES:
        shutil.copytree(HERE.parents[1] / "examples" / name, folder / name, ignore=shutil.ignore_patterns("*.md"))
    done = command("init", folder / "clinic", cwd=folder)
    assert done.code == 0, done.err


def write_complete(folder: Path) -> None:
    """Write every setting of every method, with its default."""
    folder.mkdir()
    for name in METHODS:
        path = folder / f"{name}.toml"
        path.write_text(f'{MIXTURE}[model]\n[method]\nname = "{name}"\n', encoding="utf-8")
        experiment, _ = load_experiment(path)
        path.write_text(to_toml(experiment), encoding="utf-8")


def write_cut(finished: Path, folder: Path) -> None:
    """Copy a run as it would be if its process had been killed between two rounds, and write down how it ends."""
    ignored = shutil.ignore_patterns("summary.json", "model", "predicted.json", "round-000004.checkpoint")
    shutil.copytree(finished, folder, ignore=ignored)
    lines = (folder / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["round"] <= CUT_AFTER]
    (folder / "run/metrics.jsonl").write_text("".join(kept), encoding="utf-8")
    log = (folder / "run/log.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "run/log.txt").write_text(log[0], encoding="utf-8")
    (checkpoint,) = (folder / "run/checkpoints").iterdir()
    assert checkpoint.name == f"round-{CUT_AFTER:06d}.checkpoint"
    summary = json.loads((finished / "run/summary.json").read_text(encoding="utf-8"))
    end = {key: summary[key] for key in ("model_sha256", "rounds", "final")}
    (folder / "expected.json").write_text(json.dumps(end, indent=1) + "\n", encoding="utf-8")


def write_finished(folder: Path, text: str, rows: str, base: Path | None = None) -> None:
    """Run an experiment to its end, and keep what its models say about rows that they have not seen."""
    path = experiment_file(folder, text) if base is None else base / "federation.toml"
    rounds = ["--set", "method.rounds=4"]
    done = command("run", path, "--out", folder / "run", "--workers", "0", *rounds, cwd=path.parent)
    assert done.code == 0, done.err
    sites = json.loads((folder / "run/model/model.json").read_text(encoding="utf-8"))["sites"]
    predicted = {"rows": rows, "answers": []}
    for site, answers in [(None, "classes"), *((site, answers) for site in sites for answers in ("classes", "own"))]:
        asked = ["--answers", answers, *([] if site is None else ["--site", site])]
        done = command("predict", folder / "run", folder.parents[1] / "data" / rows, *asked, cwd=folder)
        if done.code:
            assert (site, "trains no global model" in done.err) == (None, True), done.err
        else:
            written = (folder / "predictions.csv").read_text(encoding="utf-8")
            predicted["answers"].append({"asked": asked, "csv": written.splitlines()})
            (folder / "predictions.csv").unlink()
    (folder / "predicted.json").write_text(json.dumps(predicted, indent=1) + "\n", encoding="utf-8")
    tidy(folder)


def experiment_file(folder: Path, text: str) -> Path:
    """Write an experiment file whose relative paths begin beside the run folder."""
    folder.mkdir(parents=True)
    path = folder / "federation.toml"
    path.write_text(text.replace("../data/", "../../data/"), encoding="utf-8")
    return path


def tidy(folder: Path) -> None:
    """Remove the report and the lock, and put PLACE where this machine's paths are."""
    for name in ("run/report.html", "run/.lock"):
        (folder / name).unlink(missing_ok=True)
    place = str(folder.parents[1])
    for name in ("run.json", "config.toml", "log.txt", "summary.json", "federation.json", "metrics.jsonl"):
        path = folder / "run" / name
        if path.exists():
            text = path.read_text(encoding="utf-8").replace(f"{folder}/../..", PLACE).replace(place, PLACE)
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
