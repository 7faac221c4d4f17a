"""A deployed server tunes its model on a file of inputs, and ends with the model of a run on one machine."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fleet import Fleet

from command_line import command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TUNED = """
[[sites]]
name = "north"
data = "north.csv"
label = "dx"
view = { known = ["cold", "flu"] }

[[sites]]
name = "south"
data = "south.csv"
label = "dx"
view = { known = ["flu", "well"] }

[server]
unlabelled = "public.csv"

[model]
hidden = [4]

[method]
name = "private-labels"
tuning = "mse"
rounds = 2
"""


def test_inputs_without_labels_in_a_real_deployment(tmp_path):
    rng = np.random.default_rng(0)
    for name, labels in (("north", ["cold", "flu"]), ("south", ["flu", "well"]), ("public", [])):
        rows = [f"{a:.3f},{b:.3f}" for a, b in rng.normal(size=(30, 2))]
        cells = [f"{row},{labels[i % 2]}" for i, row in enumerate(rows)] if labels else rows
        (tmp_path / f"{name}.csv").write_text("\n".join(["fever,cough" + ",dx" * bool(labels), *cells]) + "\n")
    with Fleet(tmp_path / "d", TUNED) as fleet:
        fleet.start("north", "south")
        fleet.begin()
        deployed = fleet.finish(120)
    models = {}
    for tuning in ("mse", "none"):
        done = command("run", "d.toml", "--out", tuning, "--set", f"method.tuning={tuning}", cwd=tmp_path)
        assert done.code == 0, done.err
        models[tuning] = json.loads((tmp_path / tuning / "summary.json").read_text())["model_sha256"]
    assert deployed["model_sha256"] == models["mse"] != models["none"]
    assert deployed["dropped"] == 0
