"""A forest plot as SVG: a row for each set, with a mean difference and its interval for each comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fedaccord.evaluation.judge import Interval

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1b1f24 } .small { font-size: 11px; fill: #57606a }
  .zero { stroke: #57606a } .grid { stroke: #d0d7de } .line { stroke-width: 2 } .clipped { stroke-dasharray: 2 2 }
  .c0 { stroke: #0969da; fill: #0969da } .c1 { stroke: #bc4c00; fill: #bc4c00 }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 } text { fill: #e6edf3 } .small { fill: #9198a1 }
    .zero { stroke: #9198a1 } .grid { stroke: #30363d }
    .c0 { stroke: #58a6ff; fill: #58a6ff } .c1 { stroke: #f0883e; fill: #f0883e }
  }
"""
LEFT, WIDTH, ROW, TOP = 190, 460, 26, 44


@dataclass(frozen=True)
class ForestRow:
    """A named row with one interval for each comparison; None if it was not measured."""

    name: str
    intervals: Sequence[Interval | None]


def forest_plot(title: str, comparisons: Sequence[str], rows: Sequence[ForestRow]) -> str:
    """Return the drawing; intervals that reach beyond the axis are cut and dashed."""
    means = [abs(found.mean) for row in rows for found in row.intervals if found is not None]
    reach = max(2.0, math.ceil(1.3 * max(means, default=1.0)))
    height = TOP + ROW * len(rows) + 40

    def at(points: float) -> float:
        return LEFT + WIDTH / 2 * (1 + max(-1.0, min(1.0, points / reach)))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
    ]
    for number, words in enumerate(comparisons):
        parts.append(f'<circle class="c{number}" cx="{LEFT + 230 * number}" cy="16" r="4"/>')
        parts.append(f'<text x="{LEFT + 230 * number + 10}" y="20">{escape(words)}</text>')
    bottom = TOP + ROW * len(rows)
    for points in (-reach, -reach / 2, 0.0, reach / 2, reach):
        kind = "zero" if points == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{at(points):.1f}" y1="{TOP - 8}" x2="{at(points):.1f}" y2="{bottom}"/>')
        label = f"{points:+g}" if points else "0"
        parts.append(f'<text class="small" x="{at(points):.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    words = "points; accord is better to the right"
    parts.append(f'<text class="small" x="{at(0)}" y="{bottom + 32}" text-anchor="middle">{words}</text>')
    for place, row in enumerate(rows):
        y = TOP + ROW * place + ROW / 2
        parts.append(f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(row.name)}</text>')
        for number, found in enumerate(row.intervals):
            if found is not None:
                parts += _mark(found, reach, y - 4 + 8 * number, number, at(found.low), at(found.mean), at(found.high))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _mark(found: Interval, reach: float, y: float, number: int, low: float, mean: float, high: float) -> list[str]:
    """Return the line of an interval and the point of its mean."""
    clipped = " clipped" if found.low < -reach or found.high > reach else ""
    return [
        f'<line class="line c{number}{clipped}" x1="{low:.1f}" y1="{y}" x2="{high:.1f}" y2="{y}"/>',
        f'<circle class="c{number}" cx="{mean:.1f}" cy="{y}" r="3.5"/>',
    ]
