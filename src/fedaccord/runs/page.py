"""What every page of ours is built from: escaped text, numbers in words, tables, cards, and the frame around them.

A plain `str` is text and is escaped wherever it enters the page; only `Html` goes in as it is. So a name from a file
can not become markup by being forgotten. plotly is imported when a page with a figure is put together, not before.
"""

from __future__ import annotations

import contextlib
import html
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedaccord.errors import RunFolderError

Figure = dict[str, Any]

NOTHING = "–"
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


def signed(value: float, decimals: int) -> str:
    """Write a difference with its sign, unless it rounds to zero."""
    size = f"{abs(value):.{decimals}f}"
    return size if float(size) == 0 else ("+" if value > 0 else "−") + size


def signed_points(gain: float) -> str:
    """Write a difference of two shares in percentage points, with its sign unless it rounds to zero."""
    return signed(100 * gain, 1)


def counted(number: int, what: str) -> str:
    """Write a number of things: 1 round, 30 rounds."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def size(number: float) -> str:
    """Write a number of bytes."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


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


def spans(numbers: Sequence[int]) -> str:
    """Write ascending numbers with what follows one another as a span: 1–3, 7."""
    ends: list[list[int]] = []
    for number in numbers:
        if ends and number == ends[-1][1] + 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    return listed([str(first) if first == last else f"{first}–{last}" for first, last in ends])


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


def figure_choice(label: str, options: Mapping[str, str], kind: str = "square") -> tuple[Html, Html]:
    """Return a selector of figures, given as key -> words, and the place where the chosen one is drawn."""
    first = next(iter(options))
    listing = "".join(f'<option value="{key}">{text(words)}</option>' for key, words in options.items())
    choice = f'<label>{text(label)} <select data-for="box-{first}" autocomplete="off">{listing}</select></label>'
    return Html(choice), figure_box(first, label, kind)


def page(title: str, body: Iterable[Html], figures: Mapping[str, Figure]) -> str:
    """Return the whole page: styles, figures and plotly.js (once, and only if there is a figure) are inside."""
    styles = resources.files("fedaccord.runs").joinpath("report.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{styles}</style></head>'
        f"<body><main>{''.join(body)}</main>{_scripts(figures) if figures else ''}</body></html>\n"
    )


def write_page(target: Path, content: str) -> Path:
    """Write a page so that no half of it ever stands there; raises RunFolderError where it cannot be written."""
    if target.is_dir():
        raise RunFolderError(f"cannot write {target}: it is a folder, and a file is to be written")
    half_written = target.with_name(f".{target.name}.tmp")
    try:
        half_written.write_text(content, encoding="utf-8")
        half_written.replace(target)
    except OSError as problem:
        with contextlib.suppress(OSError):  # nothing can be removed from a read-only folder
            half_written.unlink(missing_ok=True)
        raise RunFolderError(f"cannot write {target}: {problem.strerror}") from problem
    return target


def _scripts(figures: Mapping[str, Figure]) -> str:
    from plotly.offline import get_plotlyjs

    # Inside a script element only markup characters could end it: none is left in the data.
    data = json.dumps(figures).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return (
        "<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>"
        f'<script>{get_plotlyjs()}</script><script type="application/json" id="figures">{data}</script>'
        f"<script>{SCRIPT}</script>"
    )
