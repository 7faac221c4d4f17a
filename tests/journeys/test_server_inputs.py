"""The server's inputs without labels from a file of its own, beside sites with their own tables."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from command_line import command, write
from fedaccord import Exact, Federation, LabelSpace, Site
from fedaccord.config import check_experiment, load_experiment, with_paths_from
from fedaccord.deployment.known import read_known
from fedaccord.errors import ConfigError, DataError
from fedaccord.experiment import load_federation

pytestmark = pytest.mark.usefixtures("one_thread")

CENTRES = {"flu": (0.0, 3.0), "cold": (3.0, 0.0), "well": (-2.0, -2.0)}
KNOWN = {"north": ["flu", "cold"], "south": ["cold", "well"], "east": ["well", "flu"]}
SITES = "".join(
    f'[[sites]]\nname = "{name}"\ndata = "{name}.csv"\nlabel = "dx"\nview = {{ VIEW }}\n'.replace(
        "VIEW", f"kind = 'exact', known = {known}"
    )
    for name, known in KNOWN.items()
)
METHOD = """
[server]
test = "test.csv"
label = "dx"
unlabelled = "public.csv"

[model]
hidden = [8]

[method]
name = "{name}"
rounds = 3
{more}

[run]
workers = 0
"""


def patients(labels, rows, seed, sets=False):
    """Two numbers with a gap here and there, a word, and a diagnosis; `sets` adds a second candidate."""
    rng = np.random.default_rng(seed)
    dx = rng.choice(labels, rows)
    x = np.array([CENTRES[name] for name in dx]) + rng.normal(size=(rows, 2))
    frame = pd.DataFrame({"fever": x[:, 0], "cough": x[:, 1], "sex": rng.choice(["f", "m"], rows), "dx": dx})
    frame.loc[0, "fever"] = np.nan
    if sets:
        frame["dx"] = ["|".join(dict.fromkeys([name, str(rng.choice(list(CENTRES)))])) for name in dx]
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clinics")
    for seed, (name, known) in enumerate(KNOWN.items()):
        patients(known, 60, seed).to_csv(folder / f"{name}.csv", index=False)
        patients(known, 60, seed, sets=True).to_csv(folder / f"{name}-sets.csv", index=False)
    patients(list(CENTRES), 90, 7).to_csv(folder / "test.csv", index=False)
    patients(list(CENTRES), 80, 8).drop(columns="dx").to_csv(folder / "public.csv", index=False)
    return folder


def run(folder, sites, name="private-labels", **more):
    text = sites + METHOD.format(name=name, more="\n".join(f"{key} = {value!r}" for key, value in more.items()))
    write(folder, text)
    out = "-".join([name, *map(str, more.values())])
    done = command("run", "experiment.toml", "--out", out, cwd=folder)
    assert (done.code, done.err) == (0, ""), done.err
    summary = json.loads((folder / out / "summary.json").read_text())
    assert summary["dropped"] == 0
    return folder / out, summary


def test_private_labels_are_tuned_on_the_servers_own_file(folder):
    runs = {tuning: run(folder, SITES, tuning=tuning) for tuning in ("none", "mse", "pairwise", "balance")}
    assert len({summary["model_sha256"] for _, summary in runs.values()}) == 4
    said = command("check", "experiment.toml", cwd=folder)
    assert said.code == 0, said.out
    assert "the server holds 80 inputs without labels from public.csv" in " ".join(said.out.split())
    # Balanced answers to the server's inputs are as frequent as the default asks: equally.
    assert command("predict", runs["balance"][0], "public.csv", "--out", "answers.csv", cwd=folder).code == 0
    answers = pd.read_csv(folder / "answers.csv")
    means = [answers[column].mean() for column in answers if any(name in column for name in CENTRES)]
    assert means == pytest.approx([1 / 3] * 3, abs=0.02)


def test_the_scores_of_pfedpll_are_computed_on_it(folder):
    sites = SITES.replace(".csv", "-sets.csv").replace("'exact'", "'candidates'")
    sites = "\n".join(line.partition(", known")[0] + " }" if "known" in line else line for line in sites.splitlines())
    scored, counted = (run(folder, sites, "pfedpll", steps=4, score=score) for score in ("kl", "samples"))
    assert scored[1]["model_sha256"] != counted[1]["model_sha256"]


def table(folder, **server):
    sites = [{"name": name, "data": f"{name}.csv", "label": "dx"} for name in KNOWN]
    return {"sites": sites, "server": server}


def test_its_features_are_encoded_like_those_of_the_sites(folder):
    judged = patients(list(CENTRES), 30, 9)
    judged.to_csv(folder / "same.csv", index=False)
    judged.drop(columns="dx").to_csv(folder / "same-inputs.csv", index=False)
    experiment = check_experiment(table(folder, labelled="same.csv", unlabelled="same-inputs.csv"))
    data = load_federation(experiment, folder)
    assert torch.equal(data.labelled[0], data.unlabelled)
    assert with_paths_from(experiment, folder).server.unlabelled == str(folder / "same-inputs.csv")


def test_labels_in_it_are_not_used_and_that_is_noted(folder):
    patients(list(CENTRES), 30, 9).to_csv(folder / "labelled.csv", index=False)
    data = load_federation(check_experiment(table(folder, unlabelled="labelled.csv")), folder)
    assert data.unlabelled.shape == (30, *data.input_shape)
    assert "server.unlabelled: column 'dx' may hold labels, which are not used" in data.notes


def test_arrays_and_images_of_the_server(tmp_path):
    x = np.linspace(0, 1, 40, dtype=np.float32).reshape(10, 4)
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["p", "q"] * 5))
    np.savez(tmp_path / "more.npz", x=x[:3], y=np.array(["p", "q", "p"]))
    np.savez(tmp_path / "wide.npz", x=np.ones((3, 5), dtype=np.float32))
    arrays = {"sites": [{"name": "a", "data": "a.npz"}], "server": {"unlabelled": "more.npz"}}
    data = load_federation(check_experiment(arrays), tmp_path)
    assert data.unlabelled.shape == (3, 4)
    assert "server.unlabelled: array 'y' may hold labels, which are not used" in data.notes
    with pytest.raises(DataError, match=r"server\.unlabelled: the samples of .*wide\.npz' have shape \(5,\)"):
        load_federation(check_experiment(arrays | {"server": {"unlabelled": "wide.npz"}}), tmp_path)
    for number in range(8):
        (tmp_path / "seen").mkdir(exist_ok=True)
        (tmp_path / "public").mkdir(exist_ok=True)
        for name in ("seen", "public"):
            Image.new("L", (4, 4), 20 * number).save(tmp_path / name / f"{number}.png")
    cells = "".join(f"{number}.png,{'dark' if number < 4 else 'light'}\n" for number in range(8))
    (tmp_path / "seen" / "labels.csv").write_text("file,kind\n" + cells)
    images = {"sites": [{"name": "a", "data": "seen/", "label": "kind"}], "server": {"unlabelled": "public/"}}
    assert load_federation(check_experiment(images), tmp_path).unlabelled.shape[0] == 8
    split = {"data": {"dataset": "a.npz", "partition": {"kind": "iid", "sites": 2}}, "server": arrays["server"]}
    assert load_federation(check_experiment(split), tmp_path).unlabelled.shape == (3, 4)


def test_inputs_that_the_model_is_judged_on_are_refused(folder):
    experiment = check_experiment(table(folder, test="test.csv", unlabelled="test.csv"))
    with pytest.raises(DataError, match=r"server\.unlabelled, test\.csv: 90 of its 90 samples are in"):
        load_federation(experiment, folder)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (30, r'server\.unlabelled = 30 takes samples out of \[data\].*unlabelled = "public\.csv"'),
        (0, r"server\.unlabelled: 0 gives the server no inputs; leave the key out"),
    ],
)
def test_a_number_beside_sites_with_files_is_refused(folder, given, told):
    with pytest.raises(ConfigError, match=told):
        check_experiment(table(folder, unlabelled=given))


def test_it_goes_with_a_deployed_server_and_with_no_site(folder, tmp_path):
    write(folder, SITES + METHOD.format(name="private-labels", more='tuning = "mse"'))
    done = command("deploy", "experiment.toml", tmp_path / "d", cwd=folder)
    assert done.code == 0, done.err
    made = load_federation(load_experiment(folder / "experiment.toml")[0], folder)
    assert torch.equal(read_known(tmp_path / "d/server").unlabelled, made.unlabelled)
    texts = [path.read_text(errors="replace") for path in (tmp_path / "d/sites").rglob("*") if path.is_file()]
    assert not any("public.csv" in text for text in texts)


class TestPython:
    def test_frames(self, folder):
        sites = [Site.from_frame(name, patients(known, 40, 3), "dx", view="exact") for name, known in KNOWN.items()]
        public = patients(list(CENTRES), 50, 4)
        federation = Federation(sites, unlabelled=public)
        findings = federation.check("private-labels", tuning="mse")
        assert any("column 'dx' may hold labels" in finding.text for finding in findings)
        assert not any("has no effect" in finding.text for finding in findings)
        settings = {"model": "linear", "rounds": 2, "seed": 1}
        tuned = federation.train("private-labels", tuning="mse", **settings)
        plain = federation.train("private-labels", **settings)
        assert tuned.summary["dropped"] == 0
        assert tuned.summary["model_sha256"] != plain.summary["model_sha256"]
        with pytest.raises(DataError, match="a frame is needed, like those of the sites, not list"):
            Federation(sites, unlabelled=[[1.0]]).train("fedavg", rounds=1)

    def test_arrays(self):
        x = np.arange(20, dtype=np.float32).reshape(10, 2)
        sites = [Site("a", x, ["p", "q"] * 5, Exact(LabelSpace(["p", "q"])))]
        federation = Federation(sites, unlabelled=x + 0.5)
        result = federation.train("private-labels", model="linear", rounds=1, tuning="balance", batch=4)
        assert result.summary["dropped"] == 0
        with pytest.raises(DataError, match="unlabelled: the samples have shape"):
            Federation(sites, unlabelled=np.ones((4, 3))).train("fedavg", rounds=1)
        with pytest.raises(DataError, match="unlabelled: 10 of its 10 samples are in the server's test data too"):
            Federation(sites, test=(x, ["p"] * 10), unlabelled=x).train("fedavg", rounds=1)
