"""Draw the rooms of the package and the steps of a round as SVG, from the import graph of the code.

    python tools/draw_rooms.py > docs/rooms.svg

A box is a room; an arrow points from a room to one that it imports from. Arrows implied by others are omitted
(transitive reduction), so that the layers are visible.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fedaccord"
# Top-level modules that form one room; every other module or folder is a separate room.
TOGETHER = {
    "base": (
        *("errors", "extensions", "findings", "seeds", "durable", "lazy", "config_errors", "toml_text"),
        *("plain_text", "terminal"),
    ),
    "config": ("config", "stopping", "renamed"),
    "running": ("experiment", "session", "recording", "summary"),
    "hosting": ("hosting", "clean_classifier"),
    "commands": ("cli", "api", "init", "display", "__main__"),
}
PURPOSE = {
    "base": "errors, seeds, trust",
    "messages": "messages and checks",
    "engines": "where sites run",
    "labels": "label space, views",
    "data": "samples of the sites",
    "models": "networks",
    "training": "a site's steps",
    "evaluation": "metrics",
    "aggregation": "combines replies",
    "adversary": "attacks, scores",
    "federation": "the round",
    "methods": "one folder per family",
    "hosting": "a site's process",
    "config": "the experiment file",
    "runs": "the run folder",
    "running": "an experiment",
    "settings_search": "chooses settings",
    "deployment": "many machines",
    "checks": "problems before training",
    "commands": "CLI and Python API",
}
ROUND = (
    ("prepare", "server", "methods: server steps"),
    ("brief", "server", "sharing, exchange"),
    ("train", "site", "objective, solver, view"),
    ("admit", "server", "checks, weights"),
    ("combine", "server", "aggregation"),
    ("refine", "server", "methods: server steps"),
    ("evaluate", "both", "view, metrics"),
)
BOX, GAP_X, GAP_Y, WIDE, TOP = (150, 44), 52, 34, 860, 118
MARGIN, LANE = 14, 12  # distances of a lane from boxes and from other lanes
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1b1f24 } .small { font-size: 11px; fill: #57606a }
  .tiny { font-size: 9.5px; fill: #57606a }
  .box { fill: #f6f8fa; stroke: #8c959f } .site { fill: #ddf4ff } .both { fill: #fff8c5 }
  .arrow { fill: none; stroke: #8c959f } .head { fill: #8c959f }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 } text { fill: #e6edf3 } .small, .tiny { fill: #9198a1 }
    .box { fill: #161b22; stroke: #6e7681 } .site { fill: #0c2d48 } .both { fill: #3b2f00 }
    .arrow { stroke: #6e7681 } .head { fill: #6e7681 }
  }
"""


def room_of(module: str) -> str:
    """Return the room of a module, such as "labels.views.exact" or "cli_options"."""
    first = module.split(".")[0]
    grouped = {name: room for room, names in TOGETHER.items() for name in names}
    return grouped.get(first) or grouped.get(first.partition("_")[0], first)


def imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, except those for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in node.body
        for inner in ast.walk(part)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in skipped and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {name.removeprefix("fedaccord.") for name in names if name.startswith("fedaccord.")}
    return found


def graph() -> dict[str, set[str]]:
    """Return the rooms that each room imports from."""
    uses: dict[str, set[str]] = defaultdict(set)
    rooms = {path.stem if path.is_file() else path.name for path in SOURCE.iterdir() if path.name[0] != "_"}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] == "__init__":
            continue
        room = room_of(parts[0])
        uses[room] |= {room_of(name) for name in imports(path) if name.split(".")[0] in rooms} - {room}
    return dict(uses)


def reduced(uses: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph without the arrows implied by others."""

    def reached(room: str, without: str = "") -> set[str]:
        near = uses[room] - {without}
        return near.union(*(reached(other) for other in near)) if near else set()

    return {room: {other for other in near if other not in reached(room, other)} for room, near in uses.items()}


def layers(uses: dict[str, set[str]]) -> list[list[str]]:
    """Return the rooms in layers from the top down; a room is below all rooms that import from it."""
    depth: dict[str, int] = {}

    def depth_of(room: str) -> int:
        if room not in depth:
            depth[room] = 1 + max((depth_of(other) for other in uses[room]), default=-1)
        return depth[room]

    rows: dict[int, list[str]] = defaultdict(list)
    for room in sorted(uses):
        rows[depth_of(room)].append(room)
    return [rows[at] for at in sorted(rows, reverse=True)]


def box(x: float, y: float, title: str, small: str, kind: str = "") -> str:
    """Return a labelled box whose upper left corner is at (x, y)."""
    wide, high = BOX
    return (
        f'<rect class="box {kind}" x="{x:g}" y="{y:g}" width="{wide}" height="{high}" rx="6"/>'
        f'<text x="{x + wide / 2:g}" y="{y + 19:g}" text-anchor="middle">{title}</text>'
        f'<text class="small" x="{x + wide / 2:g}" y="{y + 35:g}" text-anchor="middle">{small}</text>'
    )


def way_of_a_round() -> list[str]:
    """Return the steps of a round as a row of boxes."""
    step = (WIDE - 20 - 112) / (len(ROUND) - 1)
    parts = ['<text x="10" y="20">A round</text>']
    for number, (name, where, what) in enumerate(ROUND):
        x = 10 + number * step
        kind = where if where in ("site", "both") else ""
        parts.append(
            f'<rect class="box {kind}" x="{x:g}" y="32" width="112" height="56" rx="6"/>'
            f'<text x="{x + 56:g}" y="52" text-anchor="middle">{number + 1} {name}</text>'
            f'<text class="small" x="{x + 56:g}" y="67" text-anchor="middle">{where}</text>'
            f'<text class="tiny" x="{x + 56:g}" y="81" text-anchor="middle">{what}</text>'
        )
    return parts


def placed(rows: list[list[str]], arrows: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
    """Return the upper left corner of each box; boxes in a row are ordered like the boxes whose arrows reach them."""
    places: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        above = {room: [places[other][0] for other in places if room in arrows[other]] for room in row}
        row = sorted(row, key=lambda room: (sum(above[room]) / max(1, len(above[room])), room))
        start = (WIDE - len(row) * BOX[0] - (len(row) - 1) * GAP_X) / 2
        for at, room in enumerate(row):
            places[room] = start + at * (BOX[0] + GAP_X), TOP + 24 + level * (BOX[1] + GAP_Y)
    return places


def lane(start: float, end: float, passed: list[float], taken: list[float]) -> float:
    """Return the x closest to the middle of an arrow that avoids boxes, given by their left sides, and other lanes."""
    free = [
        x
        for x in range(MARGIN, WIDE - MARGIN)
        if all(not left - MARGIN < x < left + BOX[0] + MARGIN for left in passed)
        and all(abs(x - other) >= LANE for other in taken)
    ]
    return min(free, key=lambda x: (abs(x - start) + abs(x - end), x))


def arrow_paths(arrows: dict[str, set[str]], places: dict[str, tuple[float, float]]) -> list[str]:
    """Return the arrows; one that passes other rows runs straight down beside their boxes."""
    paths, lanes = [], list[tuple[float, float, float]]()  # lanes: x, top, bottom
    pairs = [(room, other) for room in sorted(arrows) for other in sorted(arrows[room])]
    for room, other in sorted(pairs, key=lambda pair: places[pair[0]][1] - places[pair[1]][1]):  # the longest first
        (x1, y1), (x2, y2) = places[room], places[other]
        x1, x2, y1 = x1 + BOX[0] / 2, x2 + BOX[0] / 2, y1 + BOX[1]
        path, top, bottom, bend = f"M{x1:g} {y1:g}", y1 + GAP_Y, y2 - GAP_Y, GAP_Y / 2
        if top < bottom:
            passed = [x for x, y in places.values() if top <= y < bottom]
            x = lane(x1, x2, passed, [x for x, above, below in lanes if above < bottom and top < below])
            lanes.append((x, top, bottom))
            path += f" C{x1:g} {y1 + bend:g} {x:g} {y1 + bend:g} {x:g} {top:g} V{bottom:g}"
            x1, y1 = x, bottom
        paths.append(
            f'<path class="arrow" marker-end="url(#head)" '
            f'd="{path} C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2 - 3:g}"/>'
        )
    return paths


def drawing() -> str:
    """Return the picture as SVG."""
    uses = graph()
    rows, shown = layers(uses), reduced(uses)
    places = placed(rows, shown)
    high = TOP + 40 + len(rows) * (BOX[1] + GAP_Y)
    boxes = [box(*places[room], room, PURPOSE[room]) for room in sorted(places)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" role="img">',
        "<title>The rooms of FedAccord and the steps of a round</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0 8 4 0 8z"/></marker></defs>',
        *way_of_a_round(),
        f'<text x="10" y="{TOP}">The rooms; an arrow points to a room that is imported from</text>',
        *arrow_paths(shown, places),
        *boxes,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(drawing())
