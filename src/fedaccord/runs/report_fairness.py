"""Sections of the report on fairness: the treatment of a group, and the sites that a defence excluded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedaccord.evaluation.groups import CANDIDATE, TRUE_GROUPS
from fedaccord.federation.defence import CONFIDENCE, EXCLUDED, SCORE
from fedaccord.runs import page as parts
from fedaccord.runs import report_figures as draw
from fedaccord.runs.page import NOTHING, Figure, Html, decimal, percent, remark, section, table, text
from fedaccord.runs.reading import Line, Metrics, Run

GAPS = {"eod": "equal opportunity difference", "spd": "statistical parity difference"}


def treatment(run: Run, figures: dict[str, Figure]) -> Html:
    """Show how the model treats the group in question, by true and by candidate groups, with the numbers of people."""
    who, measured = "the global model", [(line.round, line.metrics) for line in run.of("global")]
    over_sites = not any(_has_groups(metrics) for _, metrics in measured)
    if over_sites:
        measured = [(line.round, line.pooled) for line in run.of("sites")]
    measured = [(at, metrics) for at, metrics in measured if _has_groups(metrics)]
    asked = run.summary.fairness
    if not asked or not measured:
        return Html("")
    group, label, (at, last) = asked.get("group", ""), asked.get("label", ""), measured[-1]
    each_site = [line.metrics for line in run.of("site") if line.round == at] if over_sites else []
    if over_sites:
        with_groups = sum(_has_groups(metrics) for metrics in each_site)
        who = f"the test rows of {with_groups} of {len(each_site)} sites together, each evaluated with the site's model"
    meaning = parts.TEXTS["treatment"].format(who=who, label=label, group=group)
    head = ["Groups", "EOD", "SPD", f"Accuracy, {group}", "Accuracy, others", group, f"{group}, {label}"]
    head += ["Others", f"Others, {label}"]
    readings = {"": _known_by(last), CANDIDATE: "by candidate groups"}
    rows = [[words, *_row(last, ending, each_site)] for ending, words in readings.items()]
    shown = [table(head, rows, numbers=range(1, len(head)))]
    each = {name.removeprefix("accuracy."): value for name, value in last.items() if name.startswith("accuracy.")}
    if each:
        rows = [[name, percent(value), _people(last, f"rows.{name}", each_site)] for name, value in each.items()]
        shown.append(table(["Group", "Accuracy", "Rows"], rows, {1, 2}))
    curves = {words: [(at, m[name]) for at, m in measured if name in m] for name, words in GAPS.items()}
    figures["treatment"] = draw.named_curves(curves, (draw.BLUE, draw.ORANGE))
    shown.append(parts.figure_box("treatment", "Differences over the rounds"))
    return section("How a group is treated", meaning, *shown)


def exclusion_cards(run: Run) -> list[Html]:
    """Return the first card of a defended run: how often the defence excluded sites, honest ones if they are known."""
    out, hostile = _by_site(_judged(run), EXCLUDED), set(run.summary.hostile)
    if not out:
        return []
    who = "Honest sites left out" if hostile else "Sites left out"
    return [parts.card(who, _excluded(out, out.keys() - hostile), "of their rounds, by the defence")]


def exclusions(run: Run, figures: dict[str, Figure]) -> Html:
    """Show which sites the defence excluded and when, and in a study how often it was wrong."""
    rounds = _judged(run)
    if not rounds:
        return Html("")
    out, trust, hostile = _by_site(rounds, EXCLUDED), _by_site(rounds, CONFIDENCE), set(run.summary.hostile)
    sentence = parts.TEXTS["excluded_in_study" if hostile else "excluded"].format(
        honest=_excluded(out, out.keys() - hostile), hostile=_excluded(out, hostile)
    )
    rows = []
    for site, curve in out.items():
        at = [number for number, value in curve if value]
        kind = ("hostile" if site in hostile else "honest") if hostile else NOTHING
        last = decimal(trust[site][-1][1]) if site in trust else NOTHING
        rows.append((site, kind, percent(len(at) / len(curve)), parts.spans(at) if at else NOTHING, last))
    found = table(["Site", "In truth", "Left out", "Rounds", "Confidence, last"], rows, numbers={2, 4})
    title = f"{'Confidence' if trust else 'Score'} over the rounds"
    curves = trust or _by_site(rounds, SCORE)
    named = {text(site): curve for site, curve in curves.items()}
    colours = [draw.ORANGE if site in hostile else draw.BLUE for site in curves]
    figures["defence"] = draw.named_curves(named, colours, width=1.5, legend=False)
    shown = [sentence, found, Html(f"<h3>{title}</h3>"), parts.figure_box("defence", title)]
    shown += [remark("Hostile sites are drawn in orange.")] if hostile else []
    return section("Whom the defence left out", *shown)


def _judged(run: Run) -> list[Line]:
    """Return the rounds in which a defence judged sites."""
    return [line for line in run.of("round") if any(name.startswith(f"{EXCLUDED}/") for name in line.figures)]


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
    """Format the number of people in a cell and, if it is a sum over sites, the number of sites that have any."""
    number = f"{metrics.get(cell) or 0:.0f}"
    return f"{number}, at {sum(bool(each.get(cell)) for each in sites)} of {len(sites)} sites" if sites else number


def _known_by(metrics: Metrics) -> str:
    """Return how the group of a row is known: as its true group, or because only one is possible."""
    share = metrics.get(TRUE_GROUPS, 1.0)
    if share == 1:
        return "by true groups"
    return "by groups that are certain" if share == 0 else "by true groups, at some sites by those that are certain"


def _has_groups(metrics: Metrics) -> bool:
    return "members" in metrics or "members_candidate" in metrics


def _excluded(out: Mapping[str, list[tuple[int, float]]], sites: Iterable[str]) -> str:
    """Return the share of their rounds in which sites were excluded, in percent."""
    values = [value for site in sites for _, value in out.get(site, [])]
    return percent(sum(values) / len(values) if values else None)
