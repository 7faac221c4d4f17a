"""How the comparison draws contestants: a colour and a stroke for each, curves with their spread over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedaccord.runs.page import Figure, Html, text
from fedaccord.runs.report_figures import BLUE, GREY, ORANGE, OTHERS, curve_line, over_rounds

COLOURS = (BLUE, ORANGE, *(colour for colour in OTHERS if colour != GREY))
STROKES = {"solid": "solid", "dash": "dashed", "dot": "dotted"}  # plotly's word -> the word of style sheets


@dataclass(frozen=True)
class Stroke:
    """How a contestant's line looks everywhere on the page."""

    colour: str
    dash: str

    @property
    def shade(self) -> str:
        """The colour of the area around the line."""
        red, green, blue = (int(self.colour[at : at + 2], 16) for at in (1, 3, 5))
        return f"rgba({red},{green},{blue},0.14)"


def strokes(labels: Iterable[str]) -> dict[str, Stroke]:
    """Give each contestant its look; colours come again with another stroke, so that 24 can be told apart."""
    looks = [Stroke(colour, dash) for dash in STROKES for colour in COLOURS]
    return {label: looks[at % len(looks)] for at, label in enumerate(labels)}


def key(looks: Mapping[str, Stroke], seeds: Mapping[str, str]) -> Html:
    """Return the key to the lines, with the number of seeds behind each."""
    chips = [
        f'<span><b class="stroke" style="border-top:3px {STROKES[look.dash]} {look.colour}"></b>'
        f"{text(label)}, {text(seeds[label])}</span>"
        for label, look in looks.items()
    ]
    return Html(f'<p class="keys">{"".join(chips)}</p>')


def seed_curves(
    curves: Mapping[str, Sequence[Mapping[int, float]]], looks: Mapping[str, Stroke], share: bool
) -> Figure:
    """Draw each contestant's mean over its seeds, shaded from the lowest to the highest seed.

    Only rounds that all its seeds have measured: a mean over changing seeds would show steps that no run made.
    """
    traces = []
    for label, runs in curves.items():
        rounds = sorted(set.intersection(*(set(run) for run in runs)))
        look, name = looks[label], text(label)
        each = [(at, [run[at] for run in runs]) for at in rounds]
        if len(runs) > 1:
            hidden = {"mode": "lines", "meta": "spread", "hoverinfo": "skip", "hovertemplate": None}
            edge = {"width": 0, "color": look.colour}
            low, high = ([(at, end(values)) for at, values in each] for end in (min, max))
            traces.append(curve_line(name, low, edge, **hidden))
            traces.append(curve_line(name, high, edge, fill="tonexty", fillcolor=look.shade, **hidden))
        mean = [(at, statistics.fmean(values)) for at, values in each]
        line = {"width": 2.5, "color": look.colour, "dash": look.dash}
        traces.append(curve_line(name, mean, line, hoverlabel={"namelength": -1}))
    return over_rounds(traces, share)
