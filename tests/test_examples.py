"""Every example is checked and run as its README says, with fewer rounds, and learns something."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import command
from fedaccord.config import load_experiment
from fedaccord.data.registry import DATA_VARIABLE

EXAMPLES = Path(__file__).parent.parent / "examples"
FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/federation.toml"))

# What `fedaccord check` says of each, and the least that must be reached: which figure, and above what.
SOUND, WARNINGS = 0, 1
EXPECTED = {
    "candidates": (SOUND, "global.accuracy", 0.7),  # of 3 classes
    "coarse": (SOUND, "global.accuracy", 0.4),  # of 10
    "digits_mixture": (SOUND, "global.accuracy", 0.6),
    "exact": (SOUND, "sites.mean.accuracy", 0.6),  # of 3
    "four_hospitals": (WARNINGS, "sites.mean.accuracy", 0.4),  # of 5, at one site 2
    "messy_hospitals": (SOUND, "sites.mean.accuracy", 0.75),  # of 3, at one site 2
    "some_classes": (SOUND, "global.accuracy", 0.5),
    "tags": (WARNINGS, "sites.mean.accuracy", 0.75),  # of 2
    "unlabelled": (SOUND, "global.accuracy", 0.6),
}
VIEWS = ("exact", "some_classes", "candidates", "coarse", "tags", "unlabelled")


def test_every_example_is_tested_and_explained():
    assert sorted(EXPECTED) == FOLDERS
    for name in FOLDERS:
        readme = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
        assert "fedaccord run federation.toml" in readme
    assert set(VIEWS) <= set(FOLDERS)


@pytest.mark.parametrize("name", VIEWS)
def test_an_example_of_a_view_has_that_view(name):
    experiment, _ = load_experiment(EXAMPLES / name / "federation.toml")
    sites, data = experiment.sites, experiment.data
    views = [site.view for site in sites] if sites else [data.view, *data.views.values()]
    kind = "exact" if name == "some_classes" else name
    assert kind in {view.kind for view in views}
    assert (name == "some_classes") == any(getattr(v, "known", None) is not None for v in views if v.kind == "exact")


def run(name, folder):
    """Check and run a copy of an example in a folder of its own; returns its summary and the account of its sites."""
    copy = shutil.copytree(EXAMPLES / name, folder / name)
    expected, metric, least = EXPECTED[name]
    checked = command("check", "federation.toml", cwd=copy)
    assert (checked.code, checked.err) == (expected, "")
    changes = ("--workers", "0", "--set", "method.rounds=15", "--set", "run.evaluate_every=5")
    done = command("run", "federation.toml", *changes, cwd=copy)
    assert (done.code, done.err) == (0, "")
    (run_folder,) = (copy / "runs").iterdir()
    summary = json.loads((run_folder / "summary.json").read_text())
    value = summary["final"]
    for key in metric.split("."):
        value = value[key]
    assert value > least
    return summary, json.loads((run_folder / "federation.json").read_text())


@pytest.mark.parametrize("name", [name for name in FOLDERS if name != "four_hospitals"])
def test_an_example(name, tmp_path):
    run(name, tmp_path)


def test_the_mixture_is_the_demo():
    mixture, _ = load_experiment(EXAMPLES / "digits_mixture" / "federation.toml")
    demo, _ = load_experiment(EXAMPLES.parent / "src" / "fedaccord" / "demo.toml")
    assert mixture.model_copy(update={"name": "demo"}) == demo


def test_four_hospitals(tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)  # its files are in the repository
    summary, account = run("four_hospitals", tmp_path)
    each = summary["final"]["sites"]["each"]
    assert each["budapest"]["accuracy"] > 0.7  # of two answers, in its own labels
    assert account["sites"]["budapest"]["view"]["kind"] == "coarse"
    sizes = {name: site["train"] + site["test"] for name, site in account["sites"].items()}
    assert sizes == {"cleveland": 303, "budapest": 294, "zurich-basel": 123, "long-beach": 200}
    assert account["missing"]["cleveland"] == {"ca": 4, "thal": 2}  # as the collection's own description counts them
    assert "ca is missing" in account["features"]
    assert "sex = 1" in account["features"]
    assert "sex = 1.0" not in account["features"]  # Cleveland's file has 1.0 where the others have 1
    readme = (EXAMPLES / "four_hospitals" / "README.md").read_text(encoding="utf-8")
    for name, size in sizes.items():
        assert re.search(rf"`{name}` \| {size} \|", readme)


def test_the_files_of_four_hospitals_name_their_licence_and_the_people_who_collected_them():
    folder = EXAMPLES / "four_hospitals" / "heart_disease"
    told = (folder / "README.md").read_text(encoding="utf-8")
    assert "creativecommons.org/licenses/by/4.0" in told
    assert all(f"`{path.name}`" in told for path in folder.glob("*.data"))
    assert all(name in told for name in ("Janosi", "Steinbrunn", "Pfisterer", "Detrano"))


def test_the_messy_tables_are_those_that_the_script_writes(tmp_path):
    folder = EXAMPLES / "messy_hospitals"
    subprocess.run([sys.executable, folder / "make_tables.py", tmp_path], check=True)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {name: (folder / name).read_bytes() for name in made}
    assert len(made) == 5


def skin_table(folder, images):
    """A table like Fitzpatrick17k's, with two of its classes in each group, and an image for all rows but the last."""
    from PIL import Image

    kinds = [
        ("benign dermal", "benign"),
        ("benign epidermal", "benign"),
        ("inflammatory", "non-neoplastic"),
        ("genodermatoses", "non-neoplastic"),
    ]
    colours = ["red", "lime", "blue", "yellow"]
    lines = ["md5hash,nine_partition_label,three_partition_label"]
    images.mkdir()
    for number in range(4 * 25):
        fine, coarse = kinds[number % 4]
        lines.append(f"h{number},{fine},{coarse}")
        Image.new("RGB", (20, 16), colours[number % 4]).save(images / f"h{number}.png")
    (images / "h99.png").unlink()
    table = folder / "skin.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def test_skin_images_become_the_data_set_that_the_full_size_example_names(tmp_path):
    copy = shutil.copytree(EXAMPLES / "full_size", tmp_path / "full_size")
    table = skin_table(copy, copy / "images")
    asked = [sys.executable, "prepare_fitzpatrick17k.py", table.name, "images", "--size", "8"]
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    made = subprocess.run(asked, cwd=copy, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout == "fitzpatrick17k.npz: 99 images, 1 rows of the table have none\n"
    smaller = [
        "model.name=resnet8",
        "run.device=cpu",
        "method.rounds=3",
        "method.threshold=0.3",
        "method.lr=0.05",
        "server.labelled.per_class=5",
        "data.partition.sites=2",
        "method.warmup=30",
    ]
    changes = [part for change in smaller for part in ("--set", change)]
    done = command("run", "fitzpatrick17k.toml", *changes, cwd=copy)
    assert (done.code, done.err) == (0, "")
    summary = json.loads((copy / "runs" / "fedmt-fitzpatrick17k" / "summary.json").read_text())
    assert summary["final"]["global"]["accuracy"] > 0.5  # of 4 classes


@pytest.mark.parametrize("name", ["cifar100", "fitzpatrick17k"])
def test_the_full_size_examples_have_the_papers_network_and_length_and_want_a_gpu(name):
    experiment, _ = load_experiment(EXAMPLES / "full_size" / f"{name}.toml")
    rounds, epochs = {"cifar100": (200, 5), "fitzpatrick17k": (100, 2)}[name]
    assert (experiment.model.name, experiment.method["rounds"], experiment.method["epochs"]) == (
        "resnet18",
        rounds,
        epochs,
    )
    assert experiment.run.device == "cuda"
