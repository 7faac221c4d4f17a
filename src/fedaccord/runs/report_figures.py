"""Figures and special tables of the report: tables as HTML, curves and matrices as plotly figures.

plotly is imported when the first figure is drawn, not before.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fedaccord.labels.views.registry import shown_class
from fedaccord.runs import page
from fedaccord.runs.page import NOTHING, Figure, Html, listed, table, text
from fedaccord.runs.reading import Line

Curve = Sequence[tuple[int, float]]  # (round, value)
Teaching = Mapping[str, tuple[Mapping[str, Any], Collection[str]]]  # site -> its described view, the labels it teaches

# The colours of Okabe and Ito, which colour-blind readers can distinguish.
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#7A8794"
OTHERS = ("#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D1F", "#4B4B9F", GREY)
CELL_TEXT_UP_TO = 30  # classes; with more, numbers do not fit into their cells
TITLE_WIDTH = 44  # letters that fit on a telephone
MOST_CONFUSIONS = 20  # of a model with more classes than a matrix can show
DROPS_ONE_BY_ONE = 50  # more are grouped and counted
_CALIBRATION_AXES = ("predicted probability", "observed share")
_STYLE: dict[str, Figure] = json.loads(page.asset("figures.json"))


def coverage(labels: Sequence[str], sites: Teaching, histogram: Mapping[str, Mapping[str, int]]) -> tuple[Html, Html]:
    """Return the legend and the site-by-label coverage matrix, with sample counts if known."""
    rows, keys = [], ""
    for name, (view, taught) in sites.items():
        shown = shown_class(view)
        counts = {label: f"<small>{count}</small>" for label, count in histogram.get(name, {}).items()}
        style = f'style="background:{text(shown.colour)} !important"'
        cells = [f"<b {style}>{text(shown.letter)}{counts.get(x, '')}</b>" if x in taught else "" for x in labels]
        rows.append([name, *map(Html, cells)])
        words = shown.words or str(view.get("kind", ""))
        key = f'<span><b class="key" {style}>{text(shown.letter)}</b>{text(words)}</span>'
        keys += key if taught and key not in keys else ""
    keys += "<span>Numbers count training samples.</span>" if histogram else ""
    head = ["", *(Html(f'<span title="{text(label)}">{text(label)}</span>') for label in labels)]
    return Html(f'<p class="keys">{keys}</p>'), table(head, rows, kind="matrix")


def coverage_warnings(labels: Sequence[str], sites: Teaching, groups: Iterable[Sequence[str]]) -> list[str]:
    """Return warnings about labels that no or only one site teaches, and about labels that cannot be compared."""
    teachers = {label: [site for site, (_, taught) in sites.items() if label in taught] for label in labels}
    nobody = [label for label, names in teachers.items() if not names]
    single = [f"{label} ({names[0]})" for label, names in teachers.items() if len(names) == 1]
    said = [f"No site teaches {listed(nobody)}: no model can learn what nobody shows it."] if nobody else []
    said += [f"Taught by one site only: {listed(single)}."] if single else []
    # Tags are predicted independently and need no connection; labels that no site teaches are reported above.
    compared = {label for view, taught in sites.values() if shown_class(view).one_label for label in taught}
    apart = [f"({listed(group)})" for group in groups if compared.intersection(group)]
    if len(apart) > 1:
        why = "Softmax scores can only be compared within a connected group, so a choice across groups means nothing."
        said.append(f"No site connects these {len(apart)} groups of labels: {' and '.join(apart)}. {why}")
    return said


def drops(dropped: Sequence[tuple[int, Mapping[str, Any]]]) -> Html:
    """Return a table of the dropped replies with their rounds; many are grouped and counted."""
    rows = [(at, *(drop.get(key, NOTHING) for key in ("site", "task", "tensor", "reason"))) for at, drop in dropped]
    grouped = len(rows) > DROPS_ONE_BY_ONE
    if grouped:
        rows = [(times, *row) for row, times in Counter(row[1:] for row in rows).most_common()]
    shown = [(site, number, *rest) for number, site, *rest in rows]
    return table(["Site", "Times" if grouped else "Round", "Task", "Tensor", "Reason"], shown, numbers={1})


def each_site_switch(names: Sequence[str]) -> Html:
    """Return the checkbox that shows each site's curve, with a key to the colours that appears with the curves."""
    chips = [f'<b class="key" style="background:{c}"></b>{text(name)}' for name, c in site_colours(names).items()]
    key = "".join(f"<span>{c}</span>" for c in chips) if len(chips) <= len(OTHERS) else "Point at a line for its site."
    tick = '<input type="checkbox" id="each-site" autocomplete="off"> <label for="each-site">Show each site</label>'
    return Html(f'<div class="switch">{tick}<p class="keys">{key}</p></div>')


def learning_curves(
    overall: Curve, mean: Curve, low: Curve, high: Curve, each: Mapping[str, Curve], share: bool
) -> Figure:
    """Draw a metric: the global model, the mean over sites in a band from `low` to `high`, hidden lines per site."""
    edge, area = {"width": 0, "color": ORANGE}, {"fill": "tonexty", "fillcolor": "rgba(230,159,0,0.18)"}
    traces = [curve_line("weakest site", low, edge), curve_line("strongest site", high, edge, **area)] if low else []
    for name, colour in site_colours(list(each)).items():
        thin = {"width": 1.2, "color": colour}
        traces.append(curve_line(text(name), each[name], thin, meta="site", visible=False))
    dashed = {"width": 2.5, "color": ORANGE, "dash": "dash"}
    solid = {"width": 2.5, "color": BLUE}
    for name, curve, line in (("mean over sites", mean, dashed), ("global model", overall, solid)):
        traces += [curve_line(name, curve, line, showlegend=True)] if curve else []
    return over_rounds(traces, share)


def named_curves(
    curves: Mapping[Any, Curve], colours: Sequence[str], share: bool = False, width: float = 2.5, legend: bool = True
) -> Figure:
    """Draw each curve that has a value in its colour; names are markup, like those of all traces."""
    lines = [
        curve_line(name, curve, {"width": width, "color": colour}, showlegend=legend)
        for (name, curve), colour in zip(curves.items(), colours, strict=False)
        if curve
    ]
    return over_rounds(lines, share)


def over_rounds(traces: Sequence[Figure], share: bool) -> Figure:
    """Return the figure of curves over the rounds; a share is shown in percent."""
    y = {"tickformat": ".0%", "hoverformat": ".1%"} if share else {"hoverformat": ".3f"}
    return figure(traces, xaxis={"title": {"text": "round"}}, yaxis=y)


def calibration(curve: Sequence[Sequence[float]]) -> Figure:
    """Draw a calibration curve, given as rows, mean prediction, observed share and its interval for each bin."""
    rows, predicted, observed, low, high = zip(*curve, strict=True)
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [up - at for up, at in zip(high, observed, strict=True)],
        "arrayminus": [at - down for down, at in zip(low, observed, strict=True)],
        "thickness": 1.4,
    }
    diagonal = {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "showlegend": False, "hoverinfo": "skip"}
    points = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": predicted,
        "y": observed,
        "error_y": bars,
        "text": [f"{number:g}" for number in rows],
        "hovertemplate": "%{text} rows: predicted %{x:.1%}, observed %{y:.1%}<extra></extra>",
        "line": {"color": BLUE, "width": 2},
        "showlegend": False,
    }
    lines = [diagonal | {"line": {"color": GREY, "width": 1, "dash": "dash"}}, points]
    across, up = ({"range": [-0.02, 1.02], "tickformat": ".0%", "title": {"text": name}} for name in _CALIBRATION_AXES)
    return figure(lines, xaxis=across, yaxis=up)


def confusion(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Figure:
    """Draw a confusion matrix: colour is the share of the true class (row), text the number of samples."""
    totals = [sum(row) for row in counts]  # once per row, not per cell
    shares = [[count / total if total else None for count in row] for row, total in zip(counts, totals, strict=True)]
    hover = "true: %{y}<br>predicted: %{x}<br>%{text} samples, %{z:.1%}<extra></extra>"
    trace = _heat_map(names, names, shares, counts, hover)
    across, down = ({"title": {"text": name, "standoff": 12}} for name in ("predicted", "true"))
    return figure([trace], xaxis=_name_axis(names) | across, yaxis=_name_axis(names) | down | {"autorange": "reversed"})


def frequent_confusions(models: Iterable[tuple[str, Line]]) -> Html:
    """Return a table of each model's most frequent confusions, for more classes than a matrix can show."""
    rows = []
    for who, line in models:
        # Versions before 0.2 wrote whole matrices.
        cells = line.cells or [
            [truth, predicted, count]
            for truth, row in enumerate(line.counts)
            for predicted, count in enumerate(row)
            if count
        ]
        wrong = sorted((cell for cell in cells if cell[0] != cell[1]), key=lambda cell: (-cell[2], cell[0], cell[1]))
        rows += [(who, line.names[t], line.names[p], count) for t, p, count in wrong[:MOST_CONFUSIONS]]
    return table(["Model", "True class", "Predicted class", "Samples"], rows, numbers={3})


def matrix_figure(
    names_rows: Sequence[str], names_columns: Sequence[str], values: Sequence[Sequence[float | None]], title: str
) -> Figure:
    """Draw a matrix of shares, or of correlations from -1 to 1, as a heat map with its numbers except zeros.

    Its height grows with the number of rows, so its box must be of the kind `tailored`.
    """
    cells = [[f"{value:.2f}".rstrip("0").rstrip(".") if value else "" for value in row] for row in values]
    trace = _heat_map(names_rows, names_columns, values, cells, "%{y}, %{x}: %{z:.3f}<extra></extra>")
    if any(value is not None and value < 0 for row in values for value in row):
        trace |= _STYLE["correlations"]
    lines = textwrap.wrap(title, TITLE_WIDTH)
    top = 12 + 18 * len(lines)
    return figure(
        [trace],
        xaxis=_name_axis(names_columns),
        yaxis=_name_axis(names_rows) | {"autorange": "reversed"},
        title=_STYLE["title"] | {"text": "<br>".join(map(text, lines))},
        margin={"l": 8, "r": 8, "t": top, "b": 8},
        height=top + 90 + min(34 * len(names_rows), 700),
    )


def _heat_map(
    rows: Sequence[str], columns: Sequence[str], z: Sequence[Any], cells: Sequence[Sequence[Any]], hover: str
) -> Figure:
    few = max(len(rows), len(columns)) <= CELL_TEXT_UP_TO
    names = {"x": [text(name) for name in columns], "y": [text(name) for name in rows]}
    values = {"z": [list(row) for row in z], "text": [list(row) for row in cells], "hovertemplate": hover}
    return _STYLE["heatmap"] | names | values | {"xgap": int(few), "ygap": int(few), "texttemplate": "%{text}" * few}


def _name_axis(names: Sequence[str]) -> Figure:
    """Return an axis of names; long names are cut, and only some of many are shown."""
    ticks = names[:: math.ceil(len(names) / CELL_TEXT_UP_TO) or 1]
    short = [text(name if len(name) <= 14 else name[:13] + "…") for name in ticks]
    return _STYLE["names"] | {"tickvals": [text(name) for name in ticks], "ticktext": short}


def figure(traces: Sequence[Figure], xaxis: Figure, yaxis: Figure, **more: Any) -> Figure:
    """Return a figure of these traces in the common style; `more` are further keys of its layout."""
    import plotly.graph_objects as go  # here, because a run without a report does not need it

    axes = {"xaxis": _STYLE["axis"] | xaxis, "yaxis": _STYLE["axis"] | yaxis}
    return dict(json.loads(go.Figure(data=list(traces), layout=_STYLE["layout"] | axes | more).to_json()))


def site_colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each site; all are grey if there are more sites than colours."""
    return dict(zip(names, OTHERS if len(names) <= len(OTHERS) else [GREY] * len(names), strict=False))


def curve_line(name: str, curve: Curve, line: Figure, **more: Any) -> Figure:
    """Return the trace of one curve over the rounds."""
    mode = "lines" if len(curve) > 2 else "lines+markers"  # a single point has no visible line
    points = {"x": [point[0] for point in curve], "y": [point[1] for point in curve]}
    return _STYLE["curve"] | {"name": name, "mode": mode, "line": line} | points | more


def names_by_class(
    prefix: str,
    sites: Iterable[tuple[str, Sequence[str], Sequence[Sequence[float]]]],
    labels: Sequence[str],
    figures: dict[str, Figure],
    how: str = "",
) -> list[Html]:
    """Draw each site's names against the classes, given as (site, names, matrix); equal matrices share a figure.

    Return the element of the figure, with a selector if there are several; empty without sites.
    """
    alike: dict[str, list[str]] = {}
    for site, names, matrix in sites:
        alike.setdefault(json.dumps([names, matrix]), []).append(site)
    options = {}
    for number, (drawn, users) in enumerate(alike.items()):
        key, who = f"{prefix}-{number}", listed(users, most=4)
        names, matrix = json.loads(drawn)
        figures[key] = matrix_figure(names, labels, matrix, f"Names used by {who}{how}")
        options[key] = who
    if len(options) > 1:
        return list(page.figure_choice("Names of", options, "tailored"))
    return [page.figure_box(key, who, "tailored") for key, who in options.items()]
