"""The page of a table, rendered as HTML and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaccord.evaluation.judge import Verdict
from fedaccord.runs import page as html

INTERVAL = re.compile(r"[-+]\d[\d.]* to [-+]\d")  # stands beside every verdict that is not `undecided`


@dataclass(frozen=True)
class Grid:
    """A table of text; the first column names the row, the others hold figures, or text if `words`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False


@dataclass(frozen=True)
class Curve:
    """One line of a chart, with optional error bars."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None


@dataclass(frozen=True)
class Chart:
    """Curves over a common axis; only on the HTML page."""

    title: str
    x_title: str
    y_title: str
    curves: Sequence[Curve]


@dataclass(frozen=True)
class Finding:
    """A statement of the paper or a criterion of ours, the verdict on it, and the intervals that decide it."""

    statement: str
    verdict: Verdict | None  # None: not measured
    figures: str

    def __post_init__(self) -> None:
        if self.verdict in ("holds", "refuted") and not INTERVAL.search(self.figures):
            raise ValueError(f"the verdict '{self.verdict}' on '{self.statement}' has no interval: {self.figures}")


@dataclass(frozen=True)
class Picture:
    """A drawing as SVG; on the Markdown page it is a file beside the page."""

    file: str
    title: str
    svg: str


Block = str | Grid | Chart | Picture


@dataclass(frozen=True)
class Chapter:
    """A titled part of a page."""

    title: str
    blocks: Sequence[Block]


def findings_grid(findings: Iterable[Finding]) -> Grid:
    """Return findings as a table."""
    rows = [(f.statement, f.verdict or "not measured", f.figures) for f in findings]
    return Grid(("statement", "verdict", "mean differences (95 % intervals)"), rows, words=True)


def to_markdown(title: str, chapters: Iterable[Chapter]) -> str:
    """Return the page as Markdown, without charts."""
    lines = [f"# {title}"]
    for chapter in chapters:
        lines += ["", f"## {chapter.title}"]
        for block in chapter.blocks:
            if isinstance(block, str):
                lines += ["", block]
            elif isinstance(block, Picture):
                lines += ["", f"![{block.title}]({block.file})"]
            elif isinstance(block, Grid):
                lines += ["", _row(block.head), _row(["---"] * len(block.head)), *map(_row, block.rows)]
    return "\n".join(lines) + "\n"


def pictures(chapters: Iterable[Chapter]) -> list[Picture]:
    """Return the pictures of all chapters."""
    return [block for chapter in chapters for block in chapter.blocks if isinstance(block, Picture)]


def to_html(title: str, chapters: Iterable[Chapter]) -> str:
    """Return the page as one self-contained HTML document."""
    figures: dict[str, html.Figure] = {}
    body = [html.Html(f"<header><h1>{html.text(title)}</h1></header>")]
    for chapter in chapters:
        body.append(html.section(chapter.title, *(_block(block, figures) for block in chapter.blocks)))
    return html.page(title, body, figures)


def _block(block: Block, figures: dict[str, html.Figure]) -> str:
    if isinstance(block, str):
        return html.Html(f"<p>{_with_code(block)}</p>")
    if isinstance(block, Picture):
        return html.Html(f"<figure>{block.svg}</figure>")
    if isinstance(block, Grid):
        numbers = () if block.words else range(1, len(block.head))
        return html.table(block.head, block.rows, numbers)
    key = f"chart-{len(figures)}"
    figures[key] = _chart_figure(block)
    return html.figure_box(key, block.title, "tailored")  # its layout sets the height


def _chart_figure(chart: Chart) -> dict[str, Any]:
    def trace(curve: Curve) -> dict[str, Any]:
        line: dict[str, Any] = {"type": "scatter", "mode": "lines+markers", "name": curve.name}
        line |= {"x": [*curve.x], "y": [*curve.y]}
        if curve.spread is not None:
            line["error_y"] = {"type": "data", "array": [*curve.spread], "thickness": 1, "width": 3}
        return line

    layout: Mapping[str, Any] = {
        "title": {"text": chart.title},
        "xaxis": {"title": {"text": chart.x_title}},
        "yaxis": {"title": {"text": chart.y_title}},
        "legend": {"orientation": "h", "y": -0.25, "yanchor": "top"},  # below the axis' title
        "margin": {"b": 110},
        "height": 460,
    }
    return {"data": [trace(curve) for curve in chart.curves], "layout": dict(layout)}


def _with_code(text: str) -> str:
    """Return text as HTML, with text between backticks as code."""
    parts = [html.text(part) for part in text.split("`")]
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
