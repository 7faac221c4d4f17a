"""`private-labels` with labels that every site knows: the run ends with report and model, and can be resumed."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from sklearn.datasets import load_digits

from command_line import SMALL, command, write

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("labels", ["public", "public_per_label"])
def test_a_run_with_public_labels_is_whole(tmp_path, labels):
    text = SMALL.replace('"iid", sites = 2', '"label-sets", sites = 3, labels = 4')
    text = text.replace('name = "fedavg"', f'name = "private-labels"\nlabels = "{labels}"\ntuning = "mse"')
    write(tmp_path, text + "checkpoint_every = 1\n\n[server]\nunlabelled = 20\n")
    done = command("run", "experiment.toml", "--out", "whole", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    whole = tmp_path / "whole"
    assert (whole / "report.html").stat().st_size > 10_000
    np.savez(tmp_path / "new.npz", x=load_digits().images[:10, None].astype(np.float32) / 8 - 1)
    predicted = command("predict", "whole", "new.npz", cwd=tmp_path)
    assert predicted.code == 0, predicted.err
    shutil.copytree(whole, tmp_path / "cut")
    for name in ("summary.json", "report.html", "checkpoints/round-000002.checkpoint"):
        (tmp_path / "cut" / name).unlink()
    resumed = command("resume", "cut", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    ends = [json.loads((tmp_path / run / "summary.json").read_text())["model_sha256"] for run in ("whole", "cut")]
    assert ends[0] == ends[1]
    assert (tmp_path / "cut/report.html").is_file()
