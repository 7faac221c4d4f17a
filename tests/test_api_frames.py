"""Sites with pandas frames: features agreed as between files, and predictions for raw frames."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from command_line import command, write
from fedaccord import Federation, Site
from fedaccord.runs.model_folder import TrainedModel

pytestmark = pytest.mark.usefixtures("one_thread")
GRADES = ["grave", "mild", "none"]
COARSE = {"kind": "coarse", "correspondence": {"well": ["none"], "ill": ["mild", "grave"]}}
FEATURES = {"numbers": ["age", "fever"], "categories": ["smoker"], "text": ["note"], "text_width": 8}
QUICK = {"model": {"name": "mlp", "hidden": [8]}, "rounds": 15, "epochs": 3, "lr": 0.1}


def patients(n, seed):
    """Numbers, words, text and missing values, from which the grade can be told."""
    rng = np.random.default_rng(seed)
    grade = rng.permutation(np.arange(n) % 3)
    frame = pd.DataFrame(
        {
            "age": (30 + 15 * grade + rng.normal(size=n)).round(2),
            "smoker": pd.Categorical(np.where(grade == 2, "yes", np.where(rng.random(n) < 0.5, "no", "maybe"))),
            "fever": rng.random(n) < 0.5,
            "note": np.where(grade == 0, "all is well", "short of breath"),
            "grade": [["none", "mild", "grave"][g] for g in grade],
        }
    )
    frame.loc[3, "age"] = np.nan
    frame.loc[4, ["smoker", "note"]] = None
    return frame


def coarse(frame):
    return frame.assign(ill=np.where(frame.grade == "none", "well", "ill")).drop(columns="grade")


def sites(**changes):
    return [
        Site.from_frame("north", patients(60, 1), label="grade"),
        Site.from_frame("south", coarse(patients(60, 2)), label="ill", view=changes.get("view", COARSE)),
    ]


@pytest.fixture(scope="module")
def result():
    federation = Federation(sites(), test=patients(30, 3), features=FEATURES)
    return federation.train(**QUICK)


class TestTraining:
    def test_it_learns_and_finds_the_classes(self, result):
        assert result.trained.labels == tuple(GRADES)
        assert result.summary["final"]["global"]["accuracy"] > 0.9

    def test_it_is_the_run_of_the_same_files(self, result, tmp_path):
        """Same rows, same seed: the model of `fedaccord run`, bit for bit."""
        for name, frame in (("north", patients(60, 1)), ("south", coarse(patients(60, 2)))):
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
        patients(30, 3).to_csv(tmp_path / "test.csv", index=False)
        write(
            tmp_path,
            """
name = "files"
server.test = "test.csv"
features = { numbers = ["age", "fever"], categories = ["smoker"], text = ["note"], text_width = 8 }
model = { name = "mlp", hidden = [8] }
method = { name = "accord", rounds = 15, epochs = 3, lr = 0.1 }
run.workers = 0
[[sites]]
name = "north"
data = "north.csv"
label = "grade"
[[sites]]
name = "south"
data = "south.csv"
label = "ill"
view = { kind = "coarse", correspondence = { well = ["none"], ill = ["mild", "grave"] } }
""",
        )
        assert command("run", "experiment.toml", cwd=tmp_path).code == 0
        files = TrainedModel.load(tmp_path / "runs/files")
        assert torch.equal(files.network().head.weight, result.model.head.weight)
