"""The sections of the report on labels: who teaches them, what coarse names stand for, how tags go together."""

from __future__ import annotations

from fedaccord.runs import page as parts
from fedaccord.runs import report_figures as draw
from fedaccord.runs.page import Figure, Html, decimal, listed, remark, section, table
from fedaccord.runs.reading import Line, Run

MATRIX = {"matrix_error": "distance from the declared matrix", "matrix_change": "change since the site's last round"}
PAIR = (draw.BLUE, draw.ORANGE)


def coverage(run: Run) -> Html:
    """Return which site can teach which label, with warnings about labels that few teach."""
    federation = run.federation
    sites = {name: (site.view, site.informs) for name, site in federation.sites.items()}
    sentences = draw.coverage_warnings(federation.labels, sites, federation.groups)
    warnings: list[str] = [remark(sentence, "warning") for sentence in sentences]
    found = warnings or ["Every label is taught by at least two sites."]
    notes = [remark(f"Notes on the data: {listed(federation.notes, '; ')}.")] if federation.notes else []
    matrix = draw.coverage(federation.labels, sites, federation.histogram)
    return section("Who can teach which label", *found, *matrix, *notes)


def absent(run: Run) -> Html:
    """Return the labels that no site of a round could teach, with these rounds."""
    rounds: dict[str, list[int]] = {}
    for line in run.of("round"):
        for label in line.absent:
            rounds.setdefault(label, []).append(line.round)
    if not rounds:
        return Html("")
    rows = [(label, len(at), parts.spans(at)) for label in run.federation.labels if (at := rounds.get(label))]
    head = ["Label", f"Rounds, of {len(run.of('round'))}", "Which"]
    return section("Labels absent from rounds", parts.TEXTS["absent"], table(head, rows, numbers={1}))


def correspondences(run: Run, figures: dict[str, Figure]) -> Html:
    """Draw the declared correspondences of coarse sites; equal ones share a figure."""
    declared = [
        (name, list(site.view["correspondence"]), matrix)
        for name, site in run.federation.sites.items()
        if (matrix := run.federation.correspondences.get(name))
    ]
    shown = draw.names_by_class("correspondence", declared, run.federation.labels, figures)
    if not shown:
        return Html("")
    how = "As declared: how often a sample of a class (column) gets each name (row) that the site uses."
    return section("What coarse names stand for", f"{how} The site does not know a class with an empty column.", *shown)


def estimated_correspondences(run: Run, figures: dict[str, Figure]) -> Html:
    """Draw the estimated correspondence matrices, and how they changed over the rounds."""
    found = [(str(line.site), line.names, line.matrix) for line in run.of("correspondence")]
    shown = draw.names_by_class("found", found, run.federation.labels, figures, ", estimated")
    if not shown:
        return Html("")
    how = "As estimated in the last round: how often a sample of a class (column) gets each name (row) of the site."
    curves = {words: curve for name, words in MATRIX.items() if (curve := run.curve("sites", "mean", name))}
    if curves:
        figures["matrix"] = draw.named_curves(curves, PAIR)
        norm = "Frobenius norm over the rounds, mean over sites"
        rows = [(words, decimal(curve[0][1]), decimal(curve[-1][1])) for words, curve in curves.items()]
        ends = table(["Frobenius norm", "First", "Last"], rows, numbers={1, 2})
        shown += [Html(f"<h3>{norm}</h3>"), parts.figure_box("matrix", norm), ends]
    return section("Estimated correspondences of coarse names", how, *shown)


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
    choice = parts.figure_choice("Correlations of", options, "tailored")
    return section("How tags go together", parts.TEXTS["correlations"], *choice)


def _by_block(line: Line) -> tuple[list[str], list[list[float | None]]]:
    """Return the names of the tags sorted by block, and the matrix in that order without its diagonal."""
    order = sorted(range(len(line.names)), key=lambda tag: (line.blocks[tag] if line.blocks else 0, tag))
    names = [f"{line.blocks[tag] + 1} · {line.names[tag]}" if line.blocks else line.names[tag] for tag in order]
    return names, [[None if row == column else line.matrix[row][column] for column in order] for row in order]
