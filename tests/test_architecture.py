"""The picture of the rooms is drawn from the code as it is, and the plan names every room."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from test_rooms import ROOMS

ROOT = Path(__file__).parents[1]


def test_the_picture_is_not_stale():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from draw_rooms import drawing
    finally:
        sys.path.remove(str(ROOT / "tools"))
    drawn = (ROOT / "docs/rooms.svg").read_text(encoding="utf-8")
    assert drawn == drawing(), "draw it again: python tools/draw_rooms.py > docs/rooms.svg"


def test_the_plan_names_every_room():
    plan = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"^      (\w+)(?:/|\.py)  ", plan, re.MULTILINE)
    assert sorted(named) == sorted(ROOMS)
    is_folder = {room: (ROOT / "src/fedaccord" / room).is_dir() for room in ROOMS}
    assert [room for room, folder in is_folder.items() if f"      {room}{'/' if folder else '.py'} " not in plan] == []
