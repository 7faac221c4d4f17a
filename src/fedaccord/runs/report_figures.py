"""How the report draws things: numbers, tables and bars as HTML, curves and matrices as plotly figures.

A plain `str` is text and is escaped wherever it enters the page; only `Html` goes in as it is. So a name from a file
can not become markup by being forgotten. plotly is imported when the first figure is drawn, not before.
"""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

Curve = Sequence[tuple[int, float]]
Band = Sequence[tuple[int, float, float]]
Figure = dict[str, Any]
Teaching = Mapping[str, tuple[str, Collection[str]]]  # site -> the kind of its view, the labels it teaches

NOTHING = "–"
KINDS = {"exact": ("E", "labels exactly"), "candidates": ("C", "candidate sets"), "coarse": ("G", "labels in groups"),
         "tags": ("T", "several tags per sample"), "unlabelled": ("", "no labels")}  # fmt: skip
# Okabe and Ito's colours: told apart by colour-blind readers, too.
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#7A8794"
OTHERS = ("#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D1F", "#4B4B9F", GREY)
CELL_TEXT_UP_TO = 30  # classes; beyond, numbers would not fit their cells
DROPS_ONE_BY_ONE = 50  # more are grouped and counted
TALL_FROM = 25  # rows; a longer table scrolls in its own box

# The browser enforces what we promise: nothing is fetched from anywhere.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
SCRIPT = """
const figures = JSON.parse(document.getElementById("figures").textContent);
const config = {displayModeBar: false, responsive: true};
const draw = (box, key) => Plotly.react(box, figures[key].data, figures[key].layout, config);
const boxes = [...document.querySelectorAll("[data-figure]")];
boxes.forEach(box => draw(box, box.dataset.figure));
document.querySelectorAll("select[data-for]").forEach(list =>
  list.addEventListener("change", () => draw(document.getElementById(list.dataset.for), list.value)));
document.getElementById("each-site")?.addEventListener("change", event => boxes.forEach(box => {
  const lines = box.data.flatMap((trace, at) => trace.meta === "site" ? [at] : []);
  if (lines.length) Plotly.restyle(box, {visible: event.target.checked}, lines);
}));
"""


class Html(str):
    """Markup that is ready to stand in the page; any other `str` is escaped first."""


def text(value: object) -> Html:
    """Return the value as markup: unchanged if it is `Html`, escaped otherwise."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def percent(value: float | None) -> str:
    """Write a share with one decimal: 0.8412 -> 84.1%."""
    return NOTHING if value is None else f"{100 * value:.1f}%"


def decimal(value: float | None) -> str:
    """Write a figure that is not a share: 0.4123 -> 0.412."""
    return NOTHING if value is None else f"{value:.3f}"


def signed_points(gain: float) -> str:
    """Write a difference of two shares in percentage points, with its sign unless it rounds to zero."""
    points = f"{abs(100 * gain):.1f}"
    return points if points == "0.0" else ("+" if gain > 0 else "−") + points


def counted(number: int, what: str) -> str:
    """Write a number of things: 1 round, 30 rounds."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def duration(seconds: float) -> str:
    """Write a time span as a person would say it."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def listed(names: Sequence[str], between: str = ", ", most: int = 15) -> str:
    """Write names as one list, cut after `most` of them with the number of those left out."""
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def view_in_words(view: Mapping[str, Any], taught: int, labels: int) -> str:
    """Say how a site labels, in words that need no knowledge of the field."""
    kind, groups = str(view.get("kind", "exact")), view.get("correspondence")
    if kind == "coarse" and isinstance(groups, Mapping):
        return f"labels in {counted(len(groups), 'group')}"
    words = KINDS.get(kind, ("", kind))[1]
    if not 0 < taught < labels:
        return words
    return ("labels" if kind == "exact" else words + ",") + f" {taught} of {labels} classes"


def section(title: str, *parts: str) -> Html:
    """Return a titled part of the page; a plain string among the parts is a paragraph."""
    body = "".join(part if isinstance(part, Html) else f"<p>{text(part)}</p>" for part in parts)
    return Html(f"<section><h2>{text(title)}</h2>{body}</section>")


def remark(sentence: str, kind: str = "note") -> Html:
    """Return a small sentence under a table, or one marked by the kind `warning`."""
    return Html(f'<p class="{kind}">{text(sentence)}</p>')


def table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Collection[int] = (), kind: str = "") -> Html:
    """Return a table that scrolls inside its own box; the columns in `numbers` are aligned to the right."""
    side = [' class="number"' if column in numbers else "" for column in range(len(head))]
    names = "".join(f'<th scope="col"{s}>{text(name)}</th>' for s, name in zip(side, head, strict=True))
    cells = ["".join(f"<td{s}>{text(cell)}</td>" for s, cell in zip(side, row, strict=True)) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return Html(
        f'<div class="box{" tall" if len(cells) > TALL_FROM else ""}" tabindex="0"><table class="{kind}">'
        f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def coverage(labels: Sequence[str], sites: Teaching, histogram: Mapping[str, Mapping[str, int]]) -> tuple[Html, Html]:
    """Return the key and the matrix of who can teach which label, with numbers of samples where they are known."""
    rows = []
    for name, (kind, taught) in sites.items():
        counts = {label: f"<small>{count}</small>" for label, count in histogram.get(name, {}).items()}
        colour, letter = (kind, KINDS[kind][0]) if kind in KINDS else ("other", "?")
        cells = [f'<b class="{colour}">{letter}{counts.get(x, "")}</b>' if x in taught else "" for x in labels]
        rows.append([name, *map(Html, cells)])
    kinds = {kind: KINDS[kind] for kind, taught in sites.values() if taught and kind in KINDS}
    keys = "".join(f'<span><b class="key {kind}">{letter}</b>{words}</span>' for kind, (letter, words) in kinds.items())
    keys += "<span>Numbers count training samples.</span>" if histogram else ""
    head = ["", *(Html(f'<span title="{text(label)}">{text(label)}</span>') for label in labels)]
    return Html(f'<p class="keys">{keys}</p>'), table(head, rows, kind="matrix")


def coverage_warnings(labels: Sequence[str], sites: Teaching, groups: Iterable[Sequence[str]]) -> list[str]:
    """Say what nobody teaches, what hangs on one site, and which labels no method can compare."""
    teachers = {label: [site for site, (_, taught) in sites.items() if label in taught] for label in labels}
    nobody = [label for label, names in teachers.items() if not names]
    single = [f"{label} ({names[0]})" for label, names in teachers.items() if len(names) == 1]
    said = [f"No site teaches {listed(nobody)}: no model can learn what nobody shows it."] if nobody else []
    said += [f"Taught by one site only: {listed(single)}."] if single else []
    # Tags are decided one by one and need no connection; a label nobody teaches has its own sentence.
    compared = {label for kind, taught in sites.values() if kind != "tags" for label in taught}
    apart = [f"({listed(group)})" for group in groups if compared.intersection(group)]
    if len(apart) > 1:
        why = "Softmax scores can only be compared within a connected group, so a choice across groups means nothing."
        said.append(f"No site connects these {len(apart)} groups of labels: {' and '.join(apart)}. {why}")
    return said


def gains(accuracies: Mapping[str, tuple[float, float]]) -> tuple[str, Html]:
    """Return a sentence and a table on what each site's accuracy became, alone -> together, largest gain first."""
    gain = {site: together - alone for site, (alone, together) in accuracies.items()}
    ranked = sorted(gain, key=lambda site: -gain[site])
    word = {site: {"+": "better", "−": "worse"}.get(signed_points(gain[site])[0], "same") for site in ranked}
    last = {"better": ", gains least", "worse": ", loses most"}
    ends = {ranked[-1]: last, ranked[0]: {"better": ", gains most"}} if len(ranked) > 1 else {}
    rows = []
    for site in ranked:
        reading = word[site] + ends.get(site, {}).get(word[site], "")
        shown = [Html(f'<span class="{word[site]}">{cell}</span>') for cell in (signed_points(gain[site]), reading)]
        rows.append([site, *map(percent, accuracies[site]), *shown])
    better, worse = (list(word.values()).count(which) for which in ("better", "worse"))
    mean = signed_points(sum(gain.values()) / len(gain))
    sentence = f"Together, {better} of {len(gain)} sites do better than alone, {worse} worse: {mean} points on average."
    return sentence, table(["Site", "Alone", "Together", "Gain, points", "Reading"], rows, numbers={1, 2, 3})


def drops(dropped: Sequence[tuple[int, Mapping[str, str]]]) -> Html:
    """Return the dropped replies, each with its round; grouped and counted when they are many."""
    rows = [(at, *(drop.get(key, NOTHING) for key in ("site", "task", "tensor", "reason"))) for at, drop in dropped]
    grouped = len(rows) > DROPS_ONE_BY_ONE
    if grouped:
        rows = [(times, *row) for row, times in Counter(row[1:] for row in rows).most_common()]
    shown = [(site, number, *rest) for number, site, *rest in rows]
    return table(["Site", "Times" if grouped else "Round", "Task", "Tensor", "Reason"], shown, numbers={1})


def each_site_switch(names: Sequence[str]) -> Html:
    """Return the tick that shows each site's curve, with a key to the colours that appears with them."""
    chips = [f'<b class="key" style="background:{c}"></b>{text(name)}' for name, c in _site_colours(names).items()]
    key = "".join(f"<span>{c}</span>" for c in chips) if len(chips) <= len(OTHERS) else "Point at a line for its site."
    tick = '<input type="checkbox" id="each-site" autocomplete="off"> <label for="each-site">Show each site</label>'
    return Html(f'<div class="switch">{tick}<p class="keys">{key}</p></div>')


def share_bar(share: float | None) -> Html:
    """Return a horizontal bar as long as the share."""
    return Html(f'<div class="bar"><i style="width:{100 * min(max(share or 0.0, 0.0), 1.0):.1f}%"></i></div>')


def card(label: str, figure: str, below: str, kind: str = "") -> Html:
    """Return one headline figure."""
    inside = f"<h3>{text(label)}</h3><strong>{text(figure)}</strong><p>{text(below)}</p>"
    return Html(f'<div class="card {kind}">{inside}</div>')


def figure_box(key: str, label: str, kind: str = "") -> Html:
    """Return the place where the figure of that key is drawn; a selector finds it by `box-` and the key."""
    spoken = f'role="img" aria-label="{text(label)}"'
    return Html(f'<div id="box-{key}" class="figure {kind}" data-figure="{key}" {spoken}></div>')


def figure_choice(label: str, options: Mapping[str, str]) -> tuple[Html, Html]:
    """Return a selector of figures, given as key -> words, and the place where the chosen one is drawn."""
    first = next(iter(options))
    listing = "".join(f'<option value="{key}">{text(words)}</option>' for key, words in options.items())
    choice = f'<label>{text(label)} <select data-for="box-{first}" autocomplete="off">{listing}</select></label>'
    return Html(choice), figure_box(first, label, "square")


def page(title: str, body: Iterable[Html], figures: Mapping[str, Figure]) -> str:
    """Return the whole page: styles, figures and plotly.js (once, and only if there is a figure) are inside."""
    styles = resources.files("fedaccord.runs").joinpath("report.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{styles}</style></head>'
        f"<body><main>{''.join(body)}</main>{_scripts(figures) if figures else ''}</body></html>\n"
    )


def learning_curves(overall: Curve, mean: Curve, band: Band, each: Mapping[str, Curve], share: bool) -> Figure:
    """Draw a metric over the rounds: the global model, the mean over sites in its band, hidden lines per site."""
    low, high = [(r, value) for r, value, _ in band], [(r, value) for r, _, value in band]
    edge = {"width": 0, "color": ORANGE}
    area = {"fill": "tonexty", "fillcolor": "rgba(230,159,0,0.18)"}
    traces = [_line("weakest site", low, edge), _line("strongest site", high, edge, **area)] if band else []
    for name, colour in _site_colours(list(each)).items():
        thin = {"width": 1.2, "color": colour}
        traces.append(_line(text(name), each[name], thin, meta="site", visible=False))
    if mean:
        traces.append(_line("mean over sites", mean, {"width": 2.5, "color": ORANGE, "dash": "dash"}, showlegend=True))
    if overall:
        traces.append(_line("global model", overall, {"width": 2.5, "color": BLUE}, showlegend=True))
    y = {"tickformat": ".0%", "hoverformat": ".1%"} if share else {"hoverformat": ".3f"}
    return _figure(traces, xaxis={"title": {"text": "round"}}, yaxis=y)


def confusion(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Figure:
    """Draw a confusion matrix: colour is the share of the true class (row), text the number of samples."""
    shares = [[count / sum(row) if sum(row) else None for count in row] for row in counts]
    few, ticks = len(names) <= CELL_TEXT_UP_TO, names[:: math.ceil(len(names) / CELL_TEXT_UP_TO) or 1]
    short = [text(name if len(name) <= 14 else name[:13] + "…") for name in ticks]
    axis = {"type": "category", "tickvals": [text(name) for name in ticks], "ticktext": short, "showgrid": False}
    trace = {
        "type": "heatmap", "z": shares, "x": [text(name) for name in names], "y": [text(name) for name in names],
        "zmin": 0, "zmax": 1, "colorscale": [[0, "#F6F8FA"], [0.5, "#7FB8D8"], [1, "#00507D"]], "showscale": False,
        "xgap": int(few), "ygap": int(few), "text": [list(row) for row in counts],
        "hovertemplate": "true: %{y}<br>predicted: %{x}<br>%{text} samples, %{z:.1%}<extra></extra>",
        "texttemplate": "%{text}" if few else "",
    }  # fmt: skip
    across, down = ({"title": {"text": name, "standoff": 12}} for name in ("predicted", "true"))
    return _figure([trace], xaxis=axis | across, yaxis=axis | down | {"autorange": "reversed"})


def _figure(traces: Sequence[Figure], xaxis: Figure, yaxis: Figure) -> Figure:
    import plotly.graph_objects as go  # here, so that a run without a report does not pay for it

    axis = {"gridcolor": "#E4E8EC", "zeroline": False, "automargin": True, "ticks": "", "ticklabelstandoff": 6,
            "fixedrange": True}  # so that a swipe scrolls the page  # fmt: skip
    layout = {
        "template": {},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#1F2933"},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": axis | xaxis,
        "yaxis": axis | yaxis,
    }
    return dict(json.loads(go.Figure(data=list(traces), layout=layout).to_json()))


def _site_colours(names: Sequence[str]) -> dict[str, str]:
    return dict(zip(names, OTHERS if len(names) <= len(OTHERS) else [GREY] * len(names), strict=False))


def _line(name: str, curve: Curve, line: Figure, **more: Any) -> Figure:
    mode = "lines" if len(curve) > 2 else "lines+markers"  # a single evaluated round has no line to see
    points = {"x": [point[0] for point in curve], "y": [point[1] for point in curve]}
    said = {"name": name, "hovertemplate": "round %{x}: %{y}", "showlegend": False}
    return {"type": "scatter", "mode": mode, "line": line} | said | points | more


def _scripts(figures: Mapping[str, Figure]) -> str:
    from plotly.offline import get_plotlyjs

    # Inside a script element only markup characters could end it: none is left in the data.
    data = json.dumps(figures).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return (
        "<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>"
        f'<script>{get_plotlyjs()}</script><script type="application/json" id="figures">{data}</script>'
        f"<script>{SCRIPT}</script>"
    )
