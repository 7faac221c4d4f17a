"""Sites that are hard to judge, from files to predictions: no test rows, few rows, one class, no annotations."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch

from command_line import blobs, command, write
from fedaccord.messages.message import from_bytes, to_bytes
from fedaccord.runs.trained_model import TrainedModel

ODD = """
name = "odd"
run.workers = 0
model.hidden = [8]
method = { rounds = 3, steps = 4 }

[[sites]]
name = "large"
data = "large.npz"

[[sites]]
name = "untested"
data = "untested.npz"
test = 0

[[sites]]
name = "tiny"
data = "tiny.npz"

[[sites]]
name = "one-class"
data = "one-class.npz"

[[sites]]
name = "blind"
data = "blind.npz"
view = { kind = "unlabelled" }
"""
SITES = {"large": 80, "untested": 40, "tiny": 3, "one-class": 90, "blind": 40}


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    for seed, (name, rows) in enumerate(SITES.items()):
        x, y = blobs(rows, seed=seed)
        kept = y == 1 if name == "one-class" else y >= 0
        np.savez(folder / f"{name}.npz", x=x[kept], y=y[kept], label_names=np.array(["ant", "bee", "cat"]))
    np.savez(folder / "new.npz", x=blobs(7, seed=9)[0])
    write(folder, ODD)
    return folder, command("run", "experiment.toml", "--out", "run", cwd=folder)


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def test_only_sites_with_test_rows_have_a_gain_and_few_rows_allow_no_verdict(odd):
    folder, done = odd
    assert (done.code, done.err) == (0, "")
    summary = summary_of(folder / "run")
    assert summary["experts"].keys() == {"large", "untested", "tiny", "one-class"}
    assert summary["gains"].keys() == {"large", "one-class"}
    few = summary["gains"]["one-class"]
    assert (few["rows"], few["standing"]) == (6, "unclear")
    assert few["difference"]["low"] is None
    assert "one-class); no site is worse" in summary["verdict"]["text"]
    assert re.search(r"^ one-class .* cannot tell:", done.out, re.MULTILINE)
    page = (folder / "run" / "report.html").read_text(encoding="utf-8")
    assert re.search(r"<td>untested</td>.*?not measured</td>", page)


@pytest.mark.parametrize("site", SITES)
def test_each_of_them_predicts_and_is_exported(odd, site):
    folder, _ = odd
    done = command("predict", "run", "new.npz", "--site", site, "--out", f"{site}.csv", cwd=folder)
    assert (done.code, done.err) == (0, "")
    assert len((folder / f"{site}.csv").read_text().splitlines()) == 8
    done = command("export", "run", "--onnx", f"{site}.onnx", "--site", site, cwd=folder)
    assert (done.code, done.err) == (0, "")
    assert_same_probabilities(folder, "run", site)


def test_a_site_whose_weights_are_all_on_its_model_alone_predicts_and_is_exported(odd):
    folder, _ = odd
    shutil.copytree(folder / "run" / "model", folder / "own")
    site = folder / "own" / json.loads((folder / "own" / "model.json").read_text())["sites"]["large"]
    part = from_bytes(site.read_bytes())
    part.tensors["experts/weights"] = torch.tensor([0.0, 0.0, 1.0])
    site.write_bytes(to_bytes(part))
    assert command("export", "own", "--onnx", "large.onnx", "--site", "large", cwd=folder).code == 0
    mixed, alone = assert_same_probabilities(folder, "own", "large"), TrainedModel.load(folder / "run")
    network = alone.site("large").experts.trained_alone(alone.network())
    x = alone.inputs(np.load(folder / "new.npz")["x"], "large")
    assert np.allclose(alone.view("large").answer(network(x)).detach().numpy(), mixed, atol=1e-5)


def assert_same_probabilities(folder, trained, site):
    import onnxruntime

    model, x = TrainedModel.load(folder / trained), np.load(folder / "new.npz")["x"]
    session = onnxruntime.InferenceSession(folder / f"{site}.onnx")
    inputs = {session.get_inputs()[0].name: model.inputs(x, site).numpy()}
    (probabilities,) = session.run(["probabilities"], inputs)
    assert np.allclose(model.predict(x, site).numpy(), probabilities, atol=1e-5)
    return probabilities


@pytest.mark.parametrize("change", ["run.evaluate_every=0", 'method.personal="off"'])
def test_a_run_without_examination_or_experts_says_nothing_about_training_alone(odd, change):
    folder, _ = odd
    out = "unexamined" if "evaluate" in change else "shared-only"
    done = command("run", "experiment.toml", "--set", change, "--out", out, cwd=folder)
    assert (done.code, done.err) == (0, "")
    summary = summary_of(folder / out)
    assert "gains" not in summary
    assert summary["verdict"]["alone"] is None
    assert ("experts" in summary) == (out == "unexamined")
    assert "What federation brought each site" not in done.out
    page = (folder / out / "report.html").read_text(encoding="utf-8")
    assert ("What each site ends with" in page) == (out == "unexamined")


def test_a_federation_in_which_nobody_gains_is_told_why(tmp_path):
    """Two sites without a common label: neither can learn from the other."""
    for name, shift in (("left", 0), ("right", 2)):
        x, y = blobs(60, classes=2, seed=shift)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y + shift, label_names=np.array(["ant", "bee", "cat", "dog"]))
    sites = "".join(
        f'[[sites]]\nname = "{name}"\ndata = "{name}.npz"\nview = {{ known = {known} }}\n'
        for name, known in (("left", '["ant", "bee"]'), ("right", '["cat", "dog"]'))
    )
    method = 'name = "apart"\nrun.workers = 0\nmodel.hidden = [8]\nmethod = { rounds = 10, lr = 0.1 }\n'
    done = command("run", write(tmp_path, method + sites), "--out", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    text = summary_of(tmp_path / "out")["verdict"]["text"]
    assert "Better than training alone at no site; cannot tell at 2 (left, right); no site is worse. " in text
    assert "Labels that only one site has: ant, bee, cat, dog; sites help each other with labels they share." in text
    assert "2 of 2 sites have fewer than 60 training rows; annotate more rows." in text
    assert text in done.out


def test_a_resumed_run_compares_with_the_run_that_it_began_with(odd):
    """The verdict and the table are by the run of `--alone`, also if the run was cut before its end."""
    folder, _ = odd
    assert command("run", "experiment.toml", "--alone", "--out", "both", cwd=folder).code == 0
    verdict = summary_of(folder / "both")["verdict"]
    (folder / "both" / "summary.json").unlink()
    done = command("resume", "both", cwd=folder)
    assert (done.code, done.err) == (0, "")
    assert summary_of(folder / "both")["verdict"] == verdict
    assert re.search(r"^ site +alone +together ", done.out, re.MULTILINE)
    assert verdict["text"] in done.out
