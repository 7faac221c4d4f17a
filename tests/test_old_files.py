"""Files of earlier versions keep working: experiment files load, cut runs resume, models predict, reports are rebuilt.

`tests/old_files/make.py` wrote them, with the code of their version.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from command_line import command
from fedaccord.config import load_experiment, to_toml

PLACE = "PLACE"  # stands in the files for the folder of their version
HERE = Path(__file__).parent
VERSIONS = sorted(path for path in (HERE / "old_files").iterdir() if (path / "experiments").is_dir())
TOLERANCE = 1e-4  # processors round differently, and a few rounds of training make it larger


def found(pattern: str) -> list[Any]:
    """Return what every version has of a pattern, as parameters that are named by their place."""
    places = [path for version in VERSIONS for path in sorted(version.glob(pattern))]
    return [pytest.param(path, id=str(path.relative_to(HERE / "old_files"))) for path in places]


def placed(folder: Path, tmp_path: Path) -> Path:
    """Copy a run folder with the data that it names, and return the copy as its user would have it."""
    version = folder.parents[1]
    for name in ("data", "experiments"):
        shutil.copytree(version / name, tmp_path / name)
    copy = shutil.copytree(folder, tmp_path / folder.parent.name / folder.name)
    (copy / "run/model").mkdir(exist_ok=True)  # empty in a cut run, and git keeps no empty folder
    described, config = copy / "run/run.json", copy / "run/config.toml"
    for path in (described, config):
        path.write_text(path.read_text(encoding="utf-8").replace(PLACE, str(tmp_path)), encoding="utf-8")
    run = json.loads(described.read_text(encoding="utf-8"))
    if str(tmp_path) in config.read_text(encoding="utf-8"):
        run["config"] = config_digest(config.read_text(encoding="utf-8"))
    described.write_text(json.dumps(run), encoding="utf-8")
    upgrade(config)
    return copy


def upgrade(path: Path) -> None:
    """Give keys that were renamed since their new names, as the message about them says."""
    done = command("upgrade", path, cwd=path.parent)
    assert (done.code, done.err) == (0, "")


def config_digest(toml: str) -> str:
    """Return the digest that run.json of version 0.1 holds of its config.toml."""
    table = {key: value for key, value in tomllib.loads(toml).items() if key not in ("run", "stop")}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def figures(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number of a nested table under its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from figures(inner, f"{place}/{key}")
    elif isinstance(value, int | float):
        yield place, float(value)


def check_contains(new: Any, old: Any, place: str) -> None:
    """Check that a new table says all that the old one did."""
    if isinstance(old, Mapping):
        for key, value in old.items():
            assert key in new, f"{place}.{key}"
            check_contains(new[key], value, f"{place}.{key}")
    else:
        assert new == old, place


def test_the_versions_that_are_kept_have_files():
    assert [version.name for version in VERSIONS] == ["0.1"]
    assert (len(found("experiments/*/*.toml")), len(found("complete/*.toml"))) == (8, 37)
    assert (len(found("cut/*")), len(found("finished/*"))) == (7, 7)


@pytest.mark.parametrize("path", found("experiments/*/*.toml"))
def test_an_experiment_file_loads_and_describes_the_same_federation(path, tmp_path):
    copy = shutil.copytree(path.parent, tmp_path / "copy")
    upgrade(copy / path.name)
    checked = command("check", path.name, cwd=copy)
    assert checked.code in (0, 1), checked.err  # 1: it warns of what the example shows


@pytest.mark.parametrize("path", found("complete/*.toml"))
def test_every_setting_of_every_method_keeps_its_value(path, tmp_path):
    copy = Path(shutil.copy(path, tmp_path))
    upgrade(copy)
    experiment, _ = load_experiment(copy)
    check_contains(tomllib.loads(to_toml(experiment)), tomllib.loads(copy.read_text(encoding="utf-8")), path.stem)


@pytest.mark.parametrize("folder", found("cut/*"))
def test_a_cut_run_resumes_and_ends_as_it_would_have(folder, tmp_path):
    copy = placed(folder, tmp_path)
    done = command("resume", "run", "--workers", "0", cwd=copy)
    assert (done.code, done.err) == (0, "")
    assert "resumed after round 2" in (copy / "run/log.txt").read_text(encoding="utf-8")
    ended = json.loads((copy / "run/summary.json").read_text(encoding="utf-8"))
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    assert ended["rounds"] == expected["rounds"]
    now = dict(figures(ended["final"]))
    assert {key: now.get(key) for key, _ in figures(expected["final"])} == pytest.approx(
        dict(figures(expected["final"])), abs=TOLERANCE, rel=TOLERANCE
    )


@pytest.mark.parametrize("folder", found("finished/*"))
def test_a_model_predicts_the_same_probabilities(folder, tmp_path):
    copy = placed(folder, tmp_path)
    expected = json.loads((folder / "predicted.json").read_text(encoding="utf-8"))
    for answer in expected["answers"]:
        done = command("predict", "run", tmp_path / "data" / expected["rows"], *answer["asked"], cwd=copy)
        assert (done.code, done.err) == (0, "")
        old = list(csv.DictReader(answer["csv"]))
        new = list(csv.DictReader((copy / "predictions.csv").read_text(encoding="utf-8").splitlines()))
        assert [row.keys() for row in new] == [row.keys() for row in old]
        for row, before in zip(new, old, strict=True):
            assert row.pop("prediction") == before.pop("prediction")
            assert {key: float(cell) for key, cell in row.items()} == pytest.approx(
                {key: float(cell) for key, cell in before.items()}, abs=1e-5
            )


@pytest.mark.parametrize("folder", found("finished/*"))
def test_a_report_is_rebuilt(folder, tmp_path):
    copy = placed(folder, tmp_path)
    done = command("report", "run", cwd=copy)
    assert (done.code, done.err) == (0, "")
    assert (copy / "run/report.html").stat().st_size > 100_000
