"""Predictions at a deployed site: its own folder has what the embedded engine's model folder has of that site."""

from __future__ import annotations

import itertools
import json
import shutil

import numpy as np
import pandas as pd
import pytest
from all_recipes import texts, write_tags
from fake_grid import FakeGrid

from command_line import blobs, command, write
from fedaccord.deployment.certificates import wire_key
from fedaccord.deployment.serving import serve
from fedaccord.engines.flower.envelope import open_sealed
from fedaccord.errors import FedAccordError, UserError
from fedaccord.methods.registry import METHODS
from fedaccord.runs.trained_model import TrainedModel

pytestmark = pytest.mark.usefixtures("one_thread")

TABLES = """
name = "tables"
run.workers = 0
model.hidden = [6]
method = { name = "accord", rounds = 2, steps = 3 }

[[sites]]
name = "north"
data = "north.csv"
label = "grade"

[[sites]]
name = "south"
data = "south.csv"
label = "ill"
view = { kind = "coarse", correspondence = { well = ["none"], ill = ["mild", "grave"] } }
"""
ARRAYS = """
name = "arrays"
run.workers = 0
model.hidden = [6]
labels.classes = ["0", "1", "2"]
method = { name = "private-labels", rounds = 2, steps = 3 }
run.evaluate_every = 0

[[sites]]
name = "north"
data = "north.npz"
view = { known = ["0", "1"] }

[[sites]]
name = "south"
data = "south.npz"
"""


class DeployedGrid(FakeGrid):
    """A grid without a network whose nodes have the folders that `fedaccord deploy` wrote."""

    def __init__(self, deployment, empty):
        super().__init__(empty, sites=[])
        keys = json.loads((deployment / "server/link.json").read_text())["keys"]
        for number, (site, file) in enumerate(keys.items()):
            self.folders[site] = deployment / "sites" / site
            self.join(site, number + 1, wire_key((deployment / "server" / file).read_bytes()))


def deployed(folder, text):
    """Deploy an experiment, play its run on a grid without a network, and play it here as well."""
    write(folder, text)
    assert command("deploy", "experiment.toml", "d", cwd=folder).code == 0
    serve(DeployedGrid(folder / "d", folder / "empty"), folder / "d/server")
    assert command("run", "experiment.toml", "--out", "here", cwd=folder).code == 0
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)

    def patients(n):
        grade = rng.permutation(np.arange(n) % 3)
        frame = pd.DataFrame({"age": 30.0 + 15 * grade, "smoker": np.where(rng.random(n) < 0.5, "no", "yes")})
        frame.loc[3, "age"] = np.nan
        return frame.assign(grade=np.array(["none", "mild", "grave"])[grade])

    patients(40).to_csv(folder / "north.csv", index=False)
    south = patients(40)
    south["ill"] = np.where(south.pop("grade") == "none", "well", "ill")
    south.to_csv(folder / "south.csv", index=False)
    patients(9).drop(columns="grade").to_csv(folder / "new.csv", index=False)
    return deployed(folder, TABLES)


@pytest.mark.parametrize("site", ["north", "south"])
def test_a_site_predicts_from_its_own_folder_as_the_embedded_engine_does(tables, site):
    done = command("predict", f"d/sites/{site}", "new.csv", "--answers", "own", "--out", "there.csv", cwd=tables)
    assert (done.code, done.err) == (0, "")
    asked = ("predict", "here", "new.csv", "--answers", "own", "--site", site, "--out", "here.csv")
    assert command(*asked, cwd=tables).code == 0
    assert (tables / "there.csv").read_bytes() == (tables / "here.csv").read_bytes()


def test_the_server_learns_what_each_site_gained_and_not_its_weights(tables):
    (run,) = (tables / "d/server/runs").iterdir()
    there, here = (json.loads((folder / "summary.json").read_text()) for folder in (run, tables / "here"))
    assert there["gains"] == here["gains"]
    assert there["gains"].keys() == {"north", "south"}
    assert there["verdict"]["alone"] == here["verdict"]["alone"]
    assert "experts" in here
    assert "experts" not in there
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "with weights of its own, which stay there" in page


def test_it_can_be_exported_too(tables):
    assert command("export", "d/sites/south", "--onnx", "m.onnx", "--answers", "own", cwd=tables).code == 0
    assert command("export", "here", "--onnx", "h.onnx", "--answers", "own", "--site", "south", cwd=tables).code == 0
    assert (tables / "m.onnx").stat().st_size == (tables / "h.onnx").stat().st_size


def test_other_sites_and_the_global_model_are_not_there(tables):
    done = command("predict", "d/sites/north", "new.csv", "--site", "south", cwd=tables)
    assert (done.code, done.err) == (2, "error: the model has no site 'south'; did you mean 'north'?\n")
    with pytest.raises(UserError, match="has only the model of site 'north'; name that site"):
        TrainedModel.load(tables / "d/sites/north").network()


def test_the_servers_model_folder_has_no_site(tables):
    (run,) = (tables / "d/server/runs").iterdir()
    assert command("predict", run, "new.csv", cwd=tables).code == 0
    assert not (run / "model/sites").exists()


def test_a_folder_without_a_finished_run(tables, tmp_path):
    shutil.copytree(tables / "d/sites/north", tmp_path / "north")
    shutil.rmtree(tmp_path / "north/memory")
    done = command("predict", "north", tables / "new.csv", cwd=tmp_path)
    said = "site 'north' has no final model in 'north'; it receives one when a run ends and its node is connected"
    assert (done.code, done.err) == (3, f"error: {said}\n")


def test_arrays_are_scaled_by_the_site_and_other_labels_have_no_name(tmp_path):
    """Also without any evaluation, after which a site would have seen the last model."""
    for number, name in enumerate(("north", "south")):
        x, y = blobs(60, seed=number)
        known = y < 2 if name == "north" else y < 3
        np.savez(tmp_path / f"{name}.npz", x=(x * (1 + 4 * number) + number)[known], y=y[known])
    deployed(tmp_path, ARRAYS)
    for site in ("north", "south"):
        assert command("predict", f"d/sites/{site}", f"{site}.npz", "--out", "there.csv", cwd=tmp_path).code == 0
        assert command("predict", "here", f"{site}.npz", "--site", site, "--out", "here.csv", cwd=tmp_path).code == 0
        there, here = (pd.read_csv(tmp_path / file) for file in ("there.csv", "here.csv"))
        assert there.to_numpy().tolist() == here.to_numpy().tolist()
        assert list(there.columns[2:]) == (["0", "1", "(label 2)"] if site == "north" else ["0", "1", "2"])


def test_a_site_that_is_away_at_the_end_is_named_in_the_log(tmp_path):
    pd.DataFrame({"age": [1.0, 2, 3, 4, 5, 6], "y": list("ababab")}).to_csv(tmp_path / "a.csv", index=False)
    site = '[[sites]]\nname = "{0}"\ndata = "a.csv"\nlabel = "y"\n'
    write(tmp_path, "method.rounds = 1\nmethod.steps = 1\nmodel.hidden = [2]\n" + site.format("a") + site.format("b"))
    assert command("deploy", "experiment.toml", "d", cwd=tmp_path).code == 0
    grid = DeployedGrid(tmp_path / "d", tmp_path / "empty")
    push = grid.push_messages

    def lose_b(messages):
        """Let site b vanish when it is asked to keep the final model."""
        tasks = {open_sealed(message.content).get("task") for message in messages}
        pushed = push(messages)
        if "keep" in tasks:
            grid.leave("b")
        return pushed

    grid.push_messages = lose_b
    serve(grid, tmp_path / "d/server")
    (run,) = (tmp_path / "d/server/runs").iterdir()
    said = "site 'b' has not received the final model, so it cannot predict: "
    assert said in (run / "log.txt").read_text()
    assert command("predict", "d/sites/a", "a.csv", cwd=tmp_path).code == 0
    assert command("predict", "d/sites/b", "a.csv", cwd=tmp_path).code == 3


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name != "pooled"])  # which moves data
def test_every_method(tmp_path, method):
    """Personal layers, own heads, estimated correspondences, tags: as in the embedded engine's model folder."""
    tagged = write_tags(tmp_path / "tags.npz")
    for number, text in enumerate(texts(method, tagged)):  # the first that the method takes
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            deployed(folder, text)
            break
        except (AssertionError, FedAccordError):
            continue
    else:
        pytest.fail("no federation fits the method")
    shape = (4, 64) if "tags.npz" in text else (4, 1, 8, 8)
    np.savez(folder / "new.npz", x=np.random.default_rng(0).normal(size=shape))
    for site, answers in itertools.product("abc", ("classes", "own")):
        there = command("predict", f"d/sites/{site}", "new.npz", "--answers", answers, "--out", "t.csv", cwd=folder)
        here = command("predict", "here", "new.npz", "--answers", answers, "--site", site, "--out", "h.csv", cwd=folder)
        assert (there.code, there.err) == (here.code, here.err)
        if there.code == 0:
            read = [pd.read_csv(folder / file, dtype=str).iloc[:, 1:] for file in ("t.csv", "h.csv")]
            assert read[0].to_numpy().tolist() == read[1].to_numpy().tolist()
