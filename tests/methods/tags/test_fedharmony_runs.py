"""Whole runs with tags: the run folder, the report, the same result with workers, and models that can be used."""

import json

import numpy as np
import pytest

from fedaccord import Federation, LabelSpace, Site, Tags
from fedaccord.cli import app
from fedaccord.runs.reading import read_run
from fedaccord.runs.trained_model import TrainedModel

SPACE = LabelSpace(["sea", "beach", "city", "night"])


def samples(rows, seed, rare=0.5):
    """Rows whose tags go together: beach needs the sea, and the night falls on the city."""
    rng = np.random.default_rng(seed)
    sea, city = rng.random(rows) < rare, rng.random(rows) < 0.5
    tags = np.stack([sea, sea & (rng.random(rows) < 0.8), city, city & (rng.random(rows) < 0.8)], 1)
    x = tags @ rng.normal(size=(4, 6)) * 0 + tags @ np.eye(4, 6) + 0.7 * rng.normal(size=(rows, 6))
    return x, [[name for name, there in zip(SPACE, row, strict=True) if there] for row in tags]


def sites(known=None):
    views = {"a": Tags(SPACE, known), "b": Tags(SPACE), "c": Tags(SPACE)}
    made = {name: samples(60, number, 0.2 + 0.3 * number) for number, name in enumerate("abc")}
    if known:
        x, tags = made["a"]
        made["a"] = x, [[tag for tag in row if tag in known] for row in tags]
    return [Site(name, *made[name], views[name]) for name in "abc"]


SETTINGS = {"rounds": 4, "epochs": 2, "batch": 16, "lr": 0.02}


@pytest.mark.slow
def test_the_same_model_with_and_without_workers():
    federation, model = Federation(sites(["sea", "beach"])), {"name": "mlp", "hidden": [8]}
    runs = [federation.train("fedharmony+", model, workers=workers, **SETTINGS) for workers in (0, 2)]
    assert runs[0].summary["model_sha256"] == runs[1].summary["model_sha256"]


def test_a_run_with_tags_shows_their_correlations_and_the_sites_agreement(tmp_path):
    federation = Federation(sites())
    model, out = {"name": "mlp", "hidden": [8]}, tmp_path / "run"
    result = federation.train("fedharmony", model, out=out, block_count=2, **SETTINGS)
    assert {"map", "o_map", "cf1", "of1", "hamming"} <= result.summary["final"]["sites"]["mean"].keys()
    run = read_run(tmp_path / "run")
    lines = {line.site: line for line in run.of("correlation")}
    assert set(lines) == {None, "a", "b", "c"}
    assert lines[None].names == list(SPACE.names)
    assert lines[None].matrix[0][1] == pytest.approx(lines[None].matrix[1][0], abs=1e-3)
    assert len(lines["a"].blocks) == 4
    figures = run.of("round")[-1].figures
    assert {"quality/a", "quality/b", "quality/c", "alignment_share"} == set(figures)
    page = (tmp_path / "run" / "report.html").read_text()
    for said in ("How tags go together", "Agreement of the sites", "of their training time", "mAP, mean over sites"):
        assert said in page
    for tag in SPACE:
        assert f"· {tag}" in page or f"\\u00b7 {tag}" in page


def test_a_site_predicts_with_its_own_frequencies_from_the_model_folder(tmp_path):
    Federation(sites()).train("fedharmony+", {"name": "mlp", "hidden": [8]}, out=tmp_path / "run", **SETTINGS)
    model = TrainedModel.load(tmp_path / "run")
    x = model.inputs(samples(5, 9)[0].astype(np.float32))
    common, rare, often = (model.predict(x, site)[:, 0].mean() for site in (None, "a", "c"))
    assert rare < common < often


def test_with_private_tags_a_site_is_judged_on_those_it_knows(tmp_path):
    result = Federation(sites(["city", "night"])).train("fedharmony+", {"name": "mlp", "hidden": [8]}, **SETTINGS)
    assert result.summary["final"]["sites"]["each"]["a"]["tags_judged"] == 2
    assert result.summary["dropped"] == 0


@pytest.mark.parametrize(
    ("method", "settings", "warned"),
    [
        ("fedharmony+", {}, 0),
        ("fedharmony", {"exchanges": 2, "weights": "samples"}, 0),
        ("fedharmony", {"exchanges": 2}, 1),
        ("fedharmony", {}, 1),
    ],
)
def test_noise_that_guarantees_nothing_is_told(method, settings, warned):
    asked = SETTINGS | {"rounds": 2} | settings
    result = Federation(sites()).train(method, {"name": "mlp", "hidden": [8]}, correlation_noise=0.1, **asked)
    assert result.summary["dropped"] == 0
    assert sum("no privacy guarantee" in said for said in result.summary["warnings"]) == warned


def test_a_tag_site_joins_from_an_experiment_file_with_unseen_sites(tmp_path):
    from typer.testing import CliRunner

    rng = np.random.default_rng(0)
    tags = rng.integers(-1, 2, (120, 3)).astype(np.int8)
    np.savez(
        tmp_path / "people.npz",
        X=rng.normal(size=(120, 5)),
        Y=tags,
        user=np.arange(120) // 20,
        label_names=["walks", "sits", "talks"],
    )
    (tmp_path / "f.toml").write_text(
        """
name = "people"
[data]
dataset = "people.npz"
partition = { kind = "natural", by = "user" }
view = { kind = "tags" }
[server]
unseen = 2
[model]
hidden = [8]
[method]
name = "fedharmony+"
rounds = 2
[run]
workers = 0
"""
    )
    done = CliRunner().invoke(app, ["run", str(tmp_path / "f.toml"), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {"map", "correlation_error"} <= summary["final"]["global"].keys()
    assert "2 sites that do not train" in (tmp_path / "run" / "report.html").read_text()
