"""The wheel holds the package alone: papers, tests and tools stay in the repository."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"


def files_of_the_wheel(folder):
    subprocess.run([sys.executable, "-c", BUILD, folder], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return opened.namelist()


@pytest.mark.slow
def test_the_wheel_holds_the_package_alone(tmp_path):
    names = files_of_the_wheel(tmp_path)
    files = [name for name in names if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in files} == {"fedaccord"}
    assert not any("papers" in name for name in files)
    assert {"fedaccord/cli.py", "fedaccord/py.typed", "fedaccord/runs/texts.toml"} <= set(files)
    plotly = {f"fedaccord/runs/plotly/{name}" for name in ("plotly-cartesian.min.js.gz", "LICENSE", "README.md")}
    assert plotly <= set(files)
    licences = {name.partition("/licenses/")[2] for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE", "src/fedaccord/runs/plotly/LICENSE"}
