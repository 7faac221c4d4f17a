"""The report's parts on what the server's own steps measured, and on what sites take coarse names to stand for."""

from __future__ import annotations

from fedaccord.runs import page as parts
from fedaccord.runs import report_figures as draw
from fedaccord.runs.page import Figure, Html, decimal, section, table
from fedaccord.runs.reading import Run

SHARES = {"confident": "confident samples of the sites", "server_accuracy": "the server's own samples, fitted"}
RETURNS = {"score": "mean score of the sites", "representation_accuracy": "the server's own model, held-out samples"}
MATRIX = {"matrix_error": "distance from the declared matrix", "matrix_change": "change since the site's last round"}


def confidence(run: Run, figures: dict[str, Figure]) -> Html:
    """Draw the share of confident samples and how well the server fits its own, over the rounds."""
    said = (
        "Confident samples are those whose pseudo-label is likelier than the threshold: without any, the sites teach "
        "nothing. The server's accuracy is on the samples that it trains on."
    )
    return _measured("confidence", "Pseudo-labels", said, SHARES, run, figures)


def returns(run: Run, figures: dict[str, Figure]) -> Html:
    """Draw how far pFedMo moves what sites get back, and how good the model is that it moves it to, over the rounds."""
    said = (
        "A site's score says how well its model agrees with the server's own: by so much of the way (times `pi`) what "
        "it gets back is moved there. The server's model is judged on public samples that it does not learn from."
    )
    return _measured("returns", "Personalised returns", said, RETURNS, run, figures)


def _measured(key: str, title: str, said: str, names: dict[str, str], run: Run, figures: dict[str, Figure]) -> Html:
    """Draw shares that the server's steps measured, over the rounds; nothing where there are none."""
    curves = {
        words: [(line.round, line.figures[name]) for line in run.of("round") if name in line.figures]
        for name, words in names.items()
    }
    if not any(curves.values()):
        return Html("")
    figures[key] = _curves(curves, share=True)
    return section(title, said, parts.figure_box(key, "Shares over the rounds"))


def found_correspondences(run: Run, figures: dict[str, Figure]) -> Html:
    """Draw the matrices that were found out, and how they moved over the rounds."""
    found = [(str(line.site), line.names, line.matrix) for line in run.of("correspondence")]
    shown = draw.names_by_class("found", found, run.federation.labels, figures, ", as found out")
    if not shown:
        return Html("")
    said = "As estimated in the last round: how often a sample of a class (column) gets each name (row) of the site."
    curves = {
        words: [(line.round, line.mean[name]) for line in run.of("sites") if name in line.mean]
        for name, words in MATRIX.items()
    }
    if any(curves.values()):
        figures["matrix"] = _curves(curves, share=False)
        norm = "Frobenius norm over the rounds, mean over sites"
        shown += [Html(f"<h3>{norm}</h3>"), parts.figure_box("matrix", norm), _ends(curves)]
    return section("What coarse names were found to stand for", said, *shown)


def _ends(curves: dict[str, list[tuple[int, float]]]) -> Html:
    rows = [(words, decimal(c[0][1]), decimal(c[-1][1])) for words, c in curves.items() if c]
    return table(["Frobenius norm", "First", "Last"], rows, numbers={1, 2})


def _curves(curves: dict[str, list[tuple[int, float]]], share: bool) -> Figure:
    lines = []
    for (words, curve), colour in zip(curves.items(), (draw.BLUE, draw.ORANGE), strict=False):
        if curve:
            lines.append(draw.curve_line(words, curve, {"width": 2.5, "color": colour}, showlegend=True))
    return draw.over_rounds(lines, share)
