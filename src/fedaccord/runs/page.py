"""Building blocks of all pages: escaped text, formatted numbers, tables, cards and the frame around them.

A plain `str` is escaped wherever it enters a page and only `Html` is inserted unchanged, so a name from a file cannot
become markup by mistake. `plotly/` holds plotly.js; its README says which version, and where it comes from.
"""

from __future__ import annotations

import base64
import html
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from itertools import groupby
from string import Template
from typing import Any

Figure = dict[str, Any]


def asset(name: str) -> str:
    """Return the content of a text file of this package."""
    return resources.files("fedaccord.runs").joinpath(name).read_text(encoding="utf-8")


TEXTS: dict[str, Any] = tomllib.loads(asset("texts.toml"))
"""How to read the sections of the pages; {names} are to be filled in."""
NOTHING = "–"
BEST_IS_OPTIMISTIC = "The best round is picked by its test figure, so it is optimistic: quote the last round."
TALL_FROM = 25  # rows; a longer table scrolls in its own box


class Html(str):
    """Markup that is inserted unchanged; any other `str` is escaped first."""


def text(value: object) -> Html:
    """Return the value as markup: unchanged if it is `Html`, escaped otherwise."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def percent(value: float | None) -> str:
    """Format a share with one decimal: 0.8412 -> 84.1%."""
    return NOTHING if value is None else f"{100 * value:.1f}%"


def decimal(value: float | None) -> str:
    """Format a number with three decimals: 0.4123 -> 0.412."""
    return NOTHING if value is None else f"{value:.3f}"


def signed(value: float, decimals: int) -> str:
    """Format a difference with its sign, unless it rounds to zero."""
    size = f"{abs(value):.{decimals}f}"
    return size if float(size) == 0 else ("+" if value > 0 else "−") + size


def counted(number: int, what: str) -> str:
    """Format a count: 1 round, 30 rounds."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def size(number: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def duration(seconds: float) -> str:
    """Format a number of seconds as seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def listed(names: Sequence[str], between: str = ", ", most: int = 15) -> str:
    """Join names into a list of at most `most`, followed by the number of the others."""
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def spans(numbers: Sequence[int]) -> str:
    """Format ascending numbers, with consecutive ones as a span: 1–3, 7."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return listed([str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs])


def measure_name(metric: str) -> str:
    """Return the name of a figure on pages and in the terminal."""
    return str(TEXTS["measures"].get(metric, metric))


def heading(words: str) -> str:
    """Return words with a capital first letter; mAP stays mAP."""
    return words if words[1:2].isupper() else words[:1].upper() + words[1:]


def section(title: str, *parts: str) -> Html:
    """Return a titled section; a plain string among its parts becomes a paragraph."""
    body = "".join(part if isinstance(part, Html) else f"<p>{text(part)}</p>" for part in parts)
    return Html(f"<section><h2>{text(title)}</h2>{body}</section>")


def remark(sentence: str, kind: str = "note") -> Html:
    """Return a sentence in small print, or a highlighted one with the kind `warning`."""
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
    """Return a horizontal bar whose length is the share."""
    return Html(f'<div class="bar"><i style="width:{100 * min(max(share or 0.0, 0.0), 1.0):.1f}%"></i></div>')


def card(label: str, figure: str, below: str, kind: str = "") -> Html:
    """Return one headline figure."""
    inside = f"<h3>{text(label)}</h3><strong>{text(figure)}</strong><p>{text(below)}</p>"
    return Html(f'<div class="card {kind}">{inside}</div>')


def figure_box(key: str, label: str, kind: str = "") -> Html:
    """Return the element in which the figure with that key is drawn; its id is `box-` and the key."""
    spoken = f'role="img" aria-label="{text(label)}"'
    return Html(f'<div id="box-{key}" class="figure {kind}" data-figure="{key}" {spoken}></div>')


def figure_choice(label: str, options: Mapping[str, str], kind: str = "square") -> tuple[Html, Html]:
    """Return a selector of figures, given as key -> description, and the element in which the selected one is drawn."""
    first = next(iter(options))
    listing = "".join(f'<option value="{key}">{text(words)}</option>' for key, words in options.items())
    choice = f'<label>{text(label)} <select data-for="box-{first}" autocomplete="off">{listing}</select></label>'
    return Html(choice), figure_box(first, label, kind)


def page(title: str, body: Iterable[Html], figures: Mapping[str, Figure], version: str = "") -> str:
    """Return a complete page that loads nothing: styles are inside, and plotly.js once if there is a figure.

    A page with a `version` asks the server that it came from for newer ones, and replaces its content.
    """
    scripts = _scripts(figures) if figures or version else ""
    if version:
        scripts += Template(asset("live.html").rstrip()).substitute(version=json.dumps(version))
    parts = {"title": text(title), "styles": asset("report.css"), "body": "".join(body), "scripts": scripts}
    parts["connect"] = " connect-src 'self';" if version else ""
    return Template(asset("page.html")).substitute(parts)


def _scripts(figures: Mapping[str, Figure]) -> str:
    packed = resources.files("fedaccord.runs").joinpath("plotly/plotly-cartesian.min.js.gz").read_bytes()
    # Escaped, because a tag inside the data could end the script element.
    data = json.dumps(figures).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Template(asset("figures.html").rstrip()).substitute(plotly=base64.b64encode(packed).decode(), figures=data)
