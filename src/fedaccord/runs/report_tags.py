"""The report's part on several labels at once: how tags go together, where sites differ, and who agrees with whom."""

from __future__ import annotations

from fedaccord.runs import page as parts
from fedaccord.runs import report_figures as draw
from fedaccord.runs.page import Figure, Html, percent, remark, section
from fedaccord.runs.reading import Line, Run

QUALITY, SHARE = "quality/", "alignment_share"


def correlations(run: Run, figures: dict[str, Figure]) -> Html:
    """Draw what all sites agree on, and each site's own correlations, tags of one block beside each other."""
    options = {}
    for number, line in enumerate(run.of("correlation")):
        key, who = f"tags-{number}", "all sites agree on" if line.site is None else f"site {line.site} has"
        names, matrix = _by_block(line)
        figures[key] = draw.matrix_figure(names, names, matrix, f"Correlations that {who}")
        options[key] = "all sites" if line.site is None else str(line.site)
    if not options:
        return Html("")
    said = (
        "How tags go together, from -1 (never at once) to 1 (always at once), as the sites told it in the last round. "
        "A number before a tag is its block. Of many tags those with the strongest correlations are shown."
    )
    return section("How tags go together", said, *parts.figure_choice("Correlations of", options, "tailored"))


def agreement(run: Run, figures: dict[str, Figure]) -> Html:
    """Draw how much each site agreed with the others over the rounds, and say what the alignment cost."""
    rounds = run.of("round")
    sites = sorted({name for line in rounds for name in line.figures if name.startswith(QUALITY)})
    shares = [line.figures[SHARE] for line in rounds if SHARE in line.figures]
    body: list[str] = []
    if shares:
        mean = percent(sum(shares) / len(shares))
        body.append(remark(f"Drawing sites to each other took {mean} of their training time."))
    if sites:
        colours = draw.site_colours(sites)
        lines = []
        for name in sites:
            curve = [(line.round, line.figures[name]) for line in rounds if name in line.figures]
            line = {"width": 1.8, "color": colours[name]}
            lines.append(draw.curve_line(name.removeprefix(QUALITY), curve, line, showlegend=len(sites) <= 12))
        figures["quality"] = draw.over_rounds(lines, share=False)
        said = "Quality is near 1 where a site's model has the correlations that the other sites agree on."
        body = [said, parts.figure_box("quality", "Quality of each site over the rounds"), *body]
    return section("Agreement of the sites", *body) if body else Html("")


def _by_block(line: Line) -> tuple[list[str], list[list[float | None]]]:
    """Return the tags' names in the order of their blocks, and the matrix in that order, without its diagonal."""
    order = sorted(range(len(line.names)), key=lambda tag: (line.blocks[tag] if line.blocks else 0, tag))
    names = [f"{line.blocks[tag] + 1} · {line.names[tag]}" if line.blocks else line.names[tag] for tag in order]
    return names, [[None if row == column else line.matrix[row][column] for column in order] for row in order]
