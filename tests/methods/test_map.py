"""The map of methods names every family folder and, under it, exactly the methods of that family."""

from __future__ import annotations

import re
from pathlib import Path

from fedaccord import methods
from fedaccord.methods.registry import METHODS

FOLDER = Path(methods.__file__).parent
MAP = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_every_method_is_listed_under_its_family_with_a_paper():
    listed = {}
    for section in MAP.split("\n### ")[1:]:
        family = re.match(r"`(\w+)/`", section)
        assert family, section
        rows = re.findall(r"^\| `([^`]+)` \| (.+) \| (.+) \|$", section, re.MULTILINE)
        assert len(rows) == section.count("\n| `")  # every row has an idea and a paper
        listed[family[1]] = sorted(name for name, _, _ in rows)
    registered: dict[str, list[str]] = {path.parent.name: [] for path in FOLDER.glob("*/settings.py")}
    for entry in METHODS.values():
        registered[entry.recipe.split(".")[2]].append(entry.name)
    assert listed == {family: sorted(names) for family, names in registered.items()}


def test_every_file_and_folder_that_the_map_names_exists():
    content = MAP.partition("## The families")[0]
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", content):
        found = list(FOLDER.glob(f"*/{name}")) if name.endswith(".py") else []
        assert found or (FOLDER / name).exists() or (FOLDER.parent / name).exists(), name
