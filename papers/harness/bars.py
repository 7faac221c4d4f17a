"""Verdicts on statements, by `fedaccord.evaluation.judge`.

A statement is `not measured` until every method that it names has run on every seed of the table. A statement on
several comparisons holds if all of them hold and is refuted if one is; with `of="any"` it is the other way round. The
95 % intervals are those of single comparisons, not corrected for their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from fedaccord.evaluation.judge import Judgement, Verdict, judge_at_least, judge_better
from papers.harness.pages import Finding
from papers.harness.statistics import Figures, differences, interval_text

Quantifier = Literal["all", "any"]


def combined_verdict(verdicts: Sequence[Verdict], of: Quantifier = "all") -> Verdict:
    """Return the verdict on a statement that needs all of its comparisons to hold, or any."""
    decides: Verdict = "refuted" if of == "all" else "holds"
    otherwise: Verdict = "holds" if of == "all" else "refuted"
    if decides in verdicts:
        return decides
    return otherwise if verdicts and set(verdicts) == {otherwise} else "undecided"


def judged_finding(
    statement: str,
    judged: Mapping[str, Judgement],
    seeds: int | Mapping[str, int],
    of: Quantifier = "all",
    digits: int = 1,
    note: str = "",
) -> Finding:
    """Judge a statement by named comparisons, and show every interval that decides it.

    It is not measured if a comparison has fewer than `seeds` seeds, which is a number for all or one for each.
    """
    parts = [
        judgement_text(name, judgement, digits) for name, judgement in _deciding(judged, of).items() if _ran(judgement)
    ]
    needed = {name: seeds if isinstance(seeds, int) else seeds[name] for name in judged}
    lacking = [name for name, judgement in judged.items() if _ran(judgement) < needed[name]]
    if lacking and parts:
        parts.append("not on all seeds" + (f": {', '.join(lacking)}" if any(lacking) else ""))
    verdict = None if lacking or not judged else combined_verdict([each.verdict for each in judged.values()], of)
    return Finding(statement, verdict, "; ".join([*parts, note] if note else parts) or "–")


def ahead_of_all(statement: str, ours: Figures, others: Mapping[str, Figures], seeds: int) -> Finding:
    """Judge whether a method is better than all named rivals, by paired differences in points."""
    judged = {name: judge_better(differences(ours, theirs)) for name, theirs in others.items()}
    return judged_finding(statement, judged, seeds)


def reaches(statement: str, values: Figures, least: float, seeds: int) -> Finding:
    """Judge whether a mean, in percent, is at least `least`."""
    percent = [None if value is None else 100 * value for _, value in sorted(values.with_failures().items())]
    return judged_finding(statement, {"mean": judge_at_least(percent, least)}, seeds)


def judgement_text(name: str, judgement: Judgement, digits: int = 1) -> str:
    """Format a comparison: its name, mean difference, 95 % interval, seeds, and pairs without a figure."""
    found = judgement.interval
    seeds = f"{found.n} seeds" if found.n > 1 else "one seed has no interval" if found.n else ""
    missing = f"{judgement.failed} of {found.n + judgement.failed} without a figure" if judgement.failed else ""
    text = ", ".join(part for part in (interval_text(found, digits), seeds, missing) if part)
    return f"{name} {text}" if name else text


def _deciding(judged: Mapping[str, Judgement], of: Quantifier) -> Mapping[str, Judgement]:
    """Return the comparisons that prevent a statement from holding, or else the one that comes closest to it."""
    against = {name: each for name, each in judged.items() if each.verdict != "holds"}
    if of == "any" or len(judged) <= 4:
        return judged
    measured = {name: each for name, each in judged.items() if _ran(each)}
    if against or not measured:
        return against
    closest = min(measured, key=lambda name: measured[name].interval.low)
    return {f"closest: {closest}": measured[closest]}


def _ran(judgement: Judgement) -> int:
    return judgement.interval.n + judgement.failed
