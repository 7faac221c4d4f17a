"""One run of a search in this process: every kind of annotation judges, and test rows are never read."""

import json
from pathlib import Path

import numpy as np
import pytest

from command_line import blobs
from fedaccord.config import load_experiment, to_toml, with_paths_from
from fedaccord.data.validation_rows import SERVER_ROWS, keep_apart
from fedaccord.experiment import load_federation
from fedaccord.settings_search.worker import run_cell
from golden import record

END = (
    '\n[model]\nhidden = [8]\n\n[method]\nname = "{}"\nrounds = 2\nschedule = "constant"\nsteps = 2\nlr = 0.1\n'
    "\n[run]\nworkers = 0\n"
)
DIGITS = """
name = "tuned"

[data]
dataset = "digits"
samples = 200
partition = { kind = "iid", sites = 4 }
test = 0.2
views.site-1 = { kind = "coarse", correspondence = "shape" }
views.site-2 = { kind = "candidates", generate = "uniform", q = 0.3 }
views.site-3 = { kind = "unlabelled" }
"""


def cell(folder, text, method="accord", seed=0):
    path = folder / "experiment.toml"
    path.write_text(text + END.format(method), encoding="utf-8")
    experiment, base = load_experiment(path)
    return run_cell(to_toml(with_paths_from(experiment, base)), base, seed)


def site_files(folder, spoil=False):
    """Two sites with marked test rows; these are ruined if `spoil`."""
    sections = 'name = "tuned"\n'
    for number, name in enumerate("ab"):
        x, y = blobs(60, seed=number)
        is_test = np.arange(60) % 3 == 0
        if spoil:
            x[is_test], y[is_test] = np.nan, (y[is_test] + 1) % 3
        np.savez(folder / f"{name}.npz", x=x, y=y, is_test=is_test)
        sections += f'[[sites]]\nname = "{name}"\ndata = "{name}.npz"\n'
    return sections


def test_sites_of_every_view_of_one_label_judge_by_their_own_annotations(tmp_path):
    found = cell(tmp_path, DIGITS)
    each = found["figures"]["sites"]["each"]
    assert {site for site in each if "nll" in each[site]} == {"site-0", "site-1", "site-2"}
    assert found["not_judged"] == ["site-3"]
    assert "accuracy" not in each["site-2"]  # the true classes behind the candidate sets are not looked at
    assert "in_set" in each["site-2"]
    assert {site: each[site]["samples"] for site in each} == {"site-0": 8, "site-1": 8, "site-2": 8}


def test_tags_judge_by_likelihood_and_by_average_precision(tmp_path):
    x, y = blobs(90)
    np.savez(tmp_path / "tags.npz", x=x, Y=np.eye(3, dtype=np.int64)[y] | np.eye(3, dtype=np.int64)[(y + 1) % 3])
    data = 'name = "tuned"\n[data]\ndataset = "tags.npz"\npartition = { kind = "iid", sites = 2 }\n'
    found = cell(tmp_path, data + 'view = { kind = "tags" }\n', "fedharmony+")
    assert {"nll", "map"} <= found["figures"]["sites"]["mean"].keys()


def test_tables_of_sites_are_judged_too(tmp_path):
    text = 'name = "tuned"\n'
    for number, name in enumerate("ab"):
        x, y = blobs(30, seed=number)
        rows = [",".join([*map(str, row), "uvw"[label]]) for row, label in zip(x.round(2), y, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["p,q,r,s,class", *rows]) + "\n")
        text += f'[[sites]]\nname = "{name}"\ndata = "{name}.csv"\nlabel = "class"\n'
    found = cell(tmp_path, text, "local")
    assert found["not_judged"] == []
    assert {site["samples"] for site in found["figures"]["sites"]["each"].values()} == {5}  # of 24 training rows


@pytest.mark.parametrize("method", ["single", "fedmt+"])
def test_a_method_that_trains_at_the_server_is_judged_by_samples_of_the_server_too(tmp_path, method):
    coarse = 'view = { kind = "coarse", correspondence = "shape" }\n'
    text = DIGITS[: DIGITS.index("views.site-1")] + coarse + "\n[server]\nlabelled = { per_class = 10 }\n"
    found = cell(tmp_path, text, method)
    assert found["server_judges"]
    assert "nll" in found["figures"]["global"]
    data = keep_apart(load_federation(*load_experiment(tmp_path / "experiment.toml")), 0).data
    assert (data.test_source, len(data.test[0]), len(data.labelled[0])) == (SERVER_ROWS, 20, 80)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Experiment files of all methods, for sites that the method does not refuse, by the name of the case."""
    folder = tmp_path_factory.mktemp("cases")
    recorded = json.loads(Path(record.__file__).with_name("recorded.json").read_text(encoding="utf-8"))
    found = {name: text for name, text in record.cases().items() if "refused" not in recorded[name]}
    for word, path in record.write_data(folder).items():
        found = {name: text.replace(word, str(path)) for name, text in found.items()}
    return folder, found


@pytest.mark.parametrize("method", record.METHODS)
def test_every_method_is_judged_by_a_likelihood(cases, method):
    folder, texts = cases
    path = folder / "experiment.toml"
    path.write_text(next(text for name, text in texts.items() if name.startswith(f"{method}: ")), encoding="utf-8")
    experiment, base = load_experiment(path)
    figures = run_cell(to_toml(experiment), base, 0)["figures"]
    assert "nll" in figures["sites"]["mean"]


def test_ruined_test_rows_change_no_figure(tmp_path):
    folders = [tmp_path / "clean", tmp_path / "spoilt"]
    for folder in folders:
        folder.mkdir()
    clean, spoilt = (cell(f, site_files(f, spoil=f.name == "spoilt"))["figures"] for f in folders)
    assert clean == spoilt
    assert clean["global"]["accuracy"] > 0


def test_a_seed_changes_the_run_but_not_the_test_rows_of_the_file(tmp_path):
    assert cell(tmp_path, DIGITS, seed=1) != cell(tmp_path, DIGITS, seed=2)
    path = tmp_path / "experiment.toml"
    data = load_federation(*load_experiment(path))
    tested = {row.numpy().tobytes() for site in data.sites.values() for row in site.test.x}
    for seed in (1, 2):
        apart = keep_apart(data, seed).data
        seen = [row for site in apart.sites.values() for part in (site.train, site.test) for row in part.x]
        assert not tested & {row.numpy().tobytes() for row in seen}


def test_a_run_that_may_stop_early_stops_by_the_rows_kept_apart(tmp_path):
    never_better = '\n[stop]\nmetric = "sites.mean.nll"\npatience = 1\nmin_delta = 1000.0\n'
    whole = cell(tmp_path, DIGITS, 'accord"\nprior = "all')  # one that fades would do so more slowly in 50 rounds
    path = tmp_path / "experiment.toml"
    text = path.read_text(encoding="utf-8")
    longer = text.replace("rounds = 2", "rounds = 50") + never_better
    path.write_text(longer, encoding="utf-8")
    experiment, base = load_experiment(path)
    assert run_cell(to_toml(experiment), base, 0)["figures"] == whole["figures"]  # it stops after the second round
