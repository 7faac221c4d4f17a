"""The report's part on fairness: how a group was treated, and whom a defence left out, wrongly above all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedaccord.evaluation.groups import CANDIDATE, TRUE_GROUPS
from fedaccord.federation.defence import CONFIDENCE, EXCLUDED, SCORE
from fedaccord.runs import page as parts
from fedaccord.runs import report_figures as draw
from fedaccord.runs.page import NOTHING, Figure, Html, decimal, percent, remark, section, table, text
from fedaccord.runs.reading import Line, Metrics, Run

GAPS = {"eod": "equal opportunity difference", "spd": "statistical parity difference"}


def treatment(run: Run, figures: dict[str, Figure]) -> Html:
    """Show how the model treats the group in question, by true and by candidate groups, with the cells behind it."""
    asked, lines = run.summary.fairness, run.of("global")
    who, measured = "the global model", [(line.round, line.metrics) for line in lines]
    over_sites = not any(_has_groups(metrics) for _, metrics in measured)
    if over_sites:
        measured = [(line.round, line.pooled) for line in run.of("sites")]
    measured = [(at, metrics) for at, metrics in measured if _has_groups(metrics)]
    if not asked or not measured:
        return Html("")
    group, label, (at, last) = asked.get("group", ""), asked.get("label", ""), measured[-1]
    each_site = [line.metrics for line in run.of("site") if line.round == at] if over_sites else []
    if over_sites:
        counted = sum(_has_groups(metrics) for metrics in each_site)
        who = f"the test rows of {counted} of {len(each_site)} sites together, each judged by the site's own model"
    said = (
        f"Of {who}, last round: how rates of the label '{label}' differ between the others and '{group}'. Below zero, "
        "the group is given the label more often. A rate of few people says little, of none nothing."
    )
    head = [
        "Groups",
        "EOD",
        "SPD",
        f"Accuracy, {group}",
        "Accuracy, others",
        f"{group}",
        f"{group}, {label}",
        "Others",
        f"Others, {label}",
    ]
    readings = {"": _known_by(last), CANDIDATE: "by candidate groups"}
    rows = [[words, *_row(last, ending, each_site)] for ending, words in readings.items()]
    each = {name.removeprefix("accuracy."): value for name, value in last.items() if name.startswith("accuracy.")}
    shown = [table(head, rows, numbers=range(1, len(head)))]
    if each:
        rows = [[name, percent(value), _people(last, f"rows.{name}", each_site)] for name, value in each.items()]
        shown.append(table(["Group", "Accuracy", "Rows"], rows, {1, 2}))
    curves = {words: [(at, m[name]) for at, m in measured if name in m] for name, words in GAPS.items()}
    figures["treatment"] = draw.over_rounds(
        [
            draw.curve_line(words, curve, {"width": 2.5, "color": colour}, showlegend=True)
            for (words, curve), colour in zip(curves.items(), (draw.BLUE, draw.ORANGE), strict=True)
        ],
        share=False,
    )
    return section("How a group is treated", said, *shown, parts.figure_box("treatment", "Differences over the rounds"))


def exclusion_cards(run: Run) -> list[Html]:
    """Return what a report on a defended run has to say before anything else: how often it left sites out, wrongly."""
    out, hostile = _by_site(_judged(run), EXCLUDED), set(run.summary.hostile)
    if not out:
        return []
    honest = _share([value for site, curve in out.items() if site not in hostile for _, value in curve])
    who = "Honest sites left out" if hostile else "Sites left out"
    return [parts.card(who, percent(honest), "of their rounds, by the defence")]


def exclusions(run: Run, figures: dict[str, Figure]) -> Html:
    """Show whom the defence left out and when: first, where a study knows, how often it was wrong."""
    rounds = _judged(run)
    if not rounds:
        return Html("")
    out = _by_site(rounds, EXCLUDED)
    hostile = set(run.summary.hostile)
    shown: list[str] = []
    if run.summary.hostile:
        wrong = _share([value for site, curve in out.items() if site not in hostile for _, value in curve])
        right = _share([value for site, curve in out.items() if site in hostile for _, value in curve])
        shown.append(
            f"Honest sites were left out of {percent(wrong)} of their rounds, and lost their say; hostile sites of "
            f"{percent(right)}. That some are hostile is known here because this is a study."
        )
    else:
        every = _share([value for curve in out.values() for _, value in curve])
        shown.append(
            f"Sites were left out of {percent(every)} of their rounds. Nobody can say here who of them was honest: one "
            "whose people truly differ may look like one that cheats."
        )
    trust = _by_site(rounds, CONFIDENCE)
    rows = []
    for site, curve in out.items():
        at = [number for number, value in curve if value]
        kind = ("hostile" if site in hostile else "honest") if hostile else NOTHING
        last = decimal(trust[site][-1][1]) if site in trust else NOTHING
        rows.append((site, kind, percent(len(at) / len(curve)), parts.spans(at) if at else NOTHING, last))
    shown.append(table(["Site", "In truth", "Left out", "Rounds", "Confidence, last"], rows, numbers={2, 4}))
    key, words, curves = (CONFIDENCE, "Confidence", trust) if trust else (SCORE, "Score", _by_site(rounds, SCORE))
    figures["defence"] = _lines(curves, hostile)
    shown += [Html(f"<h3>{words} over the rounds</h3>"), parts.figure_box("defence", f"{words} over the rounds")]
    if hostile:
        shown.append(remark("Hostile sites are drawn in orange."))
    return section("Whom the defence left out", *shown)


def _judged(run: Run) -> list[Line]:
    """Return the rounds in which a defence judged sites."""
    return [line for line in run.of("round") if any(name.startswith(f"{EXCLUDED}/") for name in line.figures)]


def _lines(curves: Mapping[str, list[tuple[int, float]]], hostile: set[str]) -> Figure:
    lines = []
    for site, curve in curves.items():
        colour = draw.ORANGE if site in hostile else draw.BLUE
        lines.append(draw.curve_line(text(site), curve, {"width": 1.5, "color": colour}))
    return draw.over_rounds(lines, share=False)


def _by_site(rounds: Sequence[Line], prefix: str) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for line in rounds:
        for name, value in line.figures.items():
            kind, _, site = name.partition("/")
            if kind == prefix and site and value is not None:
                found.setdefault(site, []).append((line.round, value))
    return dict(sorted(found.items()))


def _row(metrics: Metrics, ending: str, sites: Sequence[Metrics]) -> list[str]:
    gaps = [decimal(metrics.get(name + ending)) for name in GAPS]
    shares = [percent(metrics.get(name + ending)) for name in ("accuracy_group", "accuracy_others")]
    cells = ("members", "members_with_label", "others", "others_with_label")
    return gaps + shares + [_people(metrics, name + ending, sites) for name in cells]


def _people(metrics: Metrics, cell: str, sites: Sequence[Metrics]) -> str:
    """Write how many people are in a cell and, where sites were added up, at how many of them there are any."""
    number = f"{metrics.get(cell) or 0:.0f}"
    return f"{number}, at {sum(bool(each.get(cell)) for each in sites)} of {len(sites)} sites" if sites else number


def _known_by(metrics: Metrics) -> str:
    """Say what is taken for a row's group where it is one group only."""
    share = metrics.get(TRUE_GROUPS, 1.0)
    if share == 1:
        return "by true groups"
    return "by groups that are certain" if share == 0 else "by true groups, at some sites by those that are certain"


def _has_groups(metrics: Metrics) -> bool:
    return "members" in metrics or "members_candidate" in metrics


def _share(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
