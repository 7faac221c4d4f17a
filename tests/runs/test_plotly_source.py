"""The script that reports contain is the published one, with its licence, and is named where a user looks."""

from __future__ import annotations

import gzip
import hashlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src/fedaccord/runs/plotly"
PACKED = (FOLDER / "plotly-cartesian.min.js.gz").read_bytes()
SCRIPT = gzip.decompress(PACKED)
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def in_readme(row):
    (cell,) = re.findall(rf"^\| {row} \| (.*) \|$", README, re.MULTILINE)
    return cell


@pytest.mark.parametrize(("row", "content"), [("SHA-256, packed", PACKED), ("SHA-256, unpacked", SCRIPT)])
def test_the_readme_has_the_checksums_of_the_script(row, content):
    assert in_readme(row) == f"`{hashlib.sha256(content).hexdigest()}`"


def test_the_script_has_the_version_and_licence_that_are_named():
    banner = SCRIPT[:200].decode()
    assert f"plotly.js (cartesian - minified) v{in_readme('version')}\n" in banner
    assert "Licensed under the MIT license" in banner
    licence = (FOLDER / "LICENSE").read_text(encoding="utf-8")
    assert licence.startswith("MIT License\n\nCopyright")
    assert "The above copyright notice and this permission notice shall be included" in licence


def test_the_notice_names_version_licence_and_folder_and_is_part_of_the_wheel():
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert f"plotly.js {in_readme('version')}, MIT licence" in notice
    assert str(FOLDER.relative_to(ROOT)) in notice
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license-files"] == ["LICENSE", "NOTICE", "src/fedaccord/runs/plotly/LICENSE"]
