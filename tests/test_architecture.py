"""The picture of the rooms is drawn from the code as it is, and the plan names every room."""

from __future__ import annotations

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
    folders = [room for room in ROOMS if (ROOT / "src/fedaccord" / room).is_dir()]
    assert [room for room in folders if f"      {room}/" not in plan] == []
