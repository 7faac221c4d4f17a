"""Sections of the report on figures that only some methods measure."""

from __future__ import annotations

from fedaccord.runs import report_figures as draw
from fedaccord.runs.page import (
    TEXTS,
    Figure,
    Html,
    decimal,
    figure_box,
    figure_choice,
    percent,
    remark,
    section,
    table,
    text,
)
from fedaccord.runs.reading import Line, Run

MATRIX = {"matrix_error": "distance from the declared matrix", "matrix_change": "change since the site's last round"}
PAIR = (draw.BLUE, draw.ORANGE)
QUALITY, ALIGNMENT = "quality/", "alignment_share"


def shares(run: Run, figures: dict[str, Figure]) -> list[Html]:
    """Draw the shares that steps on the server measured, one section per method that has any."""
    shown = []
    for key, words in TEXTS["shares"].items():
        curves = {label: run.curve("round", "figures", name) for name, label in words["curves"].items()}
        if any(curves.values()):
            figures[key] = draw.named_curves(curves, PAIR, share=True)
            shown.append(section(words["title"], words["reading"], figure_box(key, "Shares over the rounds")))
    return shown


def estimated_correspondences(run: Run, figures: dict[str, Figure]) -> Html:
    """Draw the estimated correspondence matrices, and how they changed over the rounds."""
    found = [(str(line.site), line.names, line.matrix) for line in run.of("correspondence")]
    shown = draw.names_by_class("found", found, run.federation.labels, figures, ", as found out")
    if not shown:
        return Html("")
    how = "As estimated in the last round: how often a sample of a class (column) gets each name (row) of the site."
    curves = {words: curve for name, words in MATRIX.items() if (curve := run.curve("sites", "mean", name))}
    if curves:
        figures["matrix"] = draw.named_curves(curves, PAIR)
        norm = "Frobenius norm over the rounds, mean over sites"
        rows = [(words, decimal(curve[0][1]), decimal(curve[-1][1])) for words, curve in curves.items()]
        ends = table(["Frobenius norm", "First", "Last"], rows, numbers={1, 2})
        shown += [Html(f"<h3>{norm}</h3>"), figure_box("matrix", norm), ends]
    return section("What coarse names were found to stand for", how, *shown)


def correlations(run: Run, figures: dict[str, Figure]) -> Html:
    """Draw the correlations of tags that the sites agree on, and each site's own, sorted by block."""
    options = {}
    for number, line in enumerate(run.of("correlation")):
        key, who = f"tags-{number}", "all sites agree on" if line.site is None else f"site {line.site} has"
        names, matrix = _by_block(line)
        figures[key] = draw.matrix_figure(names, names, matrix, f"Correlations that {who}")
        options[key] = "all sites" if line.site is None else str(line.site)
    if not options:
        return Html("")
    choice = figure_choice("Correlations of", options, "tailored")
    return section("How tags go together", TEXTS["correlations"], *choice)


def agreement(run: Run, figures: dict[str, Figure]) -> Html:
    """Draw how well each site agreed with the others over the rounds, and report the cost of the alignment."""
    names = sorted({name for line in run.of("round") for name in line.figures if name.startswith(QUALITY)})
    costs = [share for _, share in run.curve("round", "figures", ALIGNMENT)]
    body: list[str] = []
    if names:
        curves = {text(name.removeprefix(QUALITY)): run.curve("round", "figures", name) for name in names}
        colours = list(draw.site_colours(names).values())
        figures["quality"] = draw.named_curves(curves, colours, width=1.8, legend=len(names) <= 12)
        body.append("Quality is near 1 if a site's model has the correlations that the other sites agree on.")
        body.append(figure_box("quality", "Quality of each site over the rounds"))
    if costs:
        body.append(remark(f"Aligning the sites took {percent(sum(costs) / len(costs))} of their training time."))
    return section("Agreement of the sites", *body) if body else Html("")


def _by_block(line: Line) -> tuple[list[str], list[list[float | None]]]:
    """Return the names of the tags sorted by block, and the matrix in that order without its diagonal."""
    order = sorted(range(len(line.names)), key=lambda tag: (line.blocks[tag] if line.blocks else 0, tag))
    names = [f"{line.blocks[tag] + 1} · {line.names[tag]}" if line.blocks else line.names[tag] for tag in order]
    return names, [[None if row == column else line.matrix[row][column] for column in order] for row in order]
