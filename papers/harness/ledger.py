"""The chapter "Every claim of the paper": verdicts computed from the results, and what was not run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fedaccord.evaluation.judge import (
    Judgement,
    Verdict,
    judge_at_least,
    judge_at_most,
    judge_better,
    judge_equivalent,
    judge_not_worse,
)
from papers.harness.bars import combined_verdict, judgement_text
from papers.harness.cells import Cell, Results, Row, When
from papers.harness.claims import Calibration, Claim, Comparison, Ledger, Part
from papers.harness.pages import Block, Chapter, Finding, Grid
from papers.harness.statistics import Figures, by_seed, differences, mean

TITLE = "Every claim of the paper"
FigureOf = Callable[[Results, Row], Figures]


@dataclass(frozen=True)
class Evidence:
    """The results of a table, its planned cells, its own figures by name, and words for `{name}` in rows."""

    results: Results
    planned: Mapping[Row, frozenset[int]]
    figures: Mapping[str, FigureOf] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def row(self, place: Iterable[str], part: Part) -> Row:
        """Return a row: the place, then the method."""
        return tuple(word.format(**self.names) for word in (*place, *_parts(part)))

    def values(self, row: Row, figure: str, when: When) -> Figures:
        """Return a figure of a row, one of the table's own or one of the results."""
        if figure in self.figures:
            return self.figures[figure](self.results, row)
        return self.results.values(row, figure, when)


@dataclass(frozen=True)
class _Pair:
    """One comparison at one place: a name, the rows that it needs, and its judgement."""

    name: str
    rows: tuple[Row, ...]
    judge: Callable[[], Judgement]


@dataclass(frozen=True)
class _Judged:
    """What the page says of a claim."""

    verdict: Verdict | None
    text: str  # of the verdict
    figures: str


def planned_seeds(cells: Iterable[Cell]) -> dict[Row, frozenset[int]]:
    """Return the seeds of each row of a table."""
    found: dict[Row, set[int]] = {}
    for cell in cells:
        found.setdefault(cell.row, set()).add(cell.seed)
    return {row: frozenset(seeds) for row, seeds in found.items()}


def claims_chapter(
    ledger: Ledger,
    results: Results,
    cells: Iterable[Cell],
    figures: Mapping[str, FigureOf] | None = None,
    names: Mapping[str, str] | None = None,
) -> Chapter:
    """Return the chapter with every claim of a ledger."""
    evidence = Evidence(results, planned_seeds(cells), figures or {}, names or {})
    judged = [(claim, _judge(claim, evidence)) for claim in ledger.claims]
    rows = [(c.claim, c.place, how_run(c), found.text, found.figures) for c, found in judged]
    head = ("claim", "place", "run, at the default size", "verdict", "mean differences (95 % intervals)")
    return Chapter(TITLE, [*_introduction(ledger, [found.text for _, found in judged]), Grid(head, rows, words=True)])


def needed_rows(ledger: Ledger, names: Mapping[str, str]) -> set[Row]:
    """Return every row that a ledger names."""
    evidence = Evidence(Results(), {}, names=names)
    rows = {row for comparison in ledger.comparisons() for pair in _pairs(comparison, evidence) for row in pair.rows}
    return rows | {evidence.row(calibration.row, []) for calibration in ledger.calibrations()}


def how_run(claim: Claim) -> str:
    """Format how a claim is run, at which size, and why not as published."""
    return ": ".join(part for part in (claim.status, "; ".join(p for p in (claim.size, claim.why) if p)) if part)


def _introduction(ledger: Ledger, verdicts: list[str]) -> list[Block]:
    counts = ", ".join(f"{verdict} {verdicts.count(verdict)}" for verdict in dict.fromkeys(sorted(verdicts)))
    return [
        f"{ledger.paper} {ledger.source} {len(verdicts)} claims: {counts}.",
        "A verdict follows from the 95 % interval of the paired differences over seeds (Student's t), in points unless "
        "stated otherwise: `holds` or `refuted` if the whole interval is on one side, else `undecided`. A claim on "
        "several comparisons holds if all hold and is refuted if one is; intervals are not corrected for their number. "
        "A claim is undecided as long as a baseline is too far below its published figure (`not calibrated`).",
    ]


def _judge(claim: Claim, evidence: Evidence) -> _Judged:
    if claim.status == "not run":
        return _Judged(None, "not run", "–")
    if claim.unjudged:
        return _Judged(None, "not judged", claim.unjudged)
    pairs = [pair for comparison in claim.compare for pair in _pairs(comparison, evidence)]
    rows = {row for pair in pairs for row in pair.rows} | {evidence.row(each.row, []) for each in claim.calibration}
    if not all(row in evidence.planned for row in rows):
        return _Judged(None, "not run at this size", "–")
    missing = sum(not _is_finished(evidence, row) for row in rows)
    if missing:
        return _Judged(None, "not measured", f"{missing} of {len(rows)} rows are not finished")
    found = [(pair.name, pair.judge()) for pair in pairs]
    uncalibrated = [text for each in claim.calibration if (text := _uncalibrated(each, evidence))]
    shown = len(found) > 1 and not uncalibrated
    words = "; ".join(_with_verdict(name, judgement, shown) for name, judgement in found)
    if uncalibrated:
        return _Judged("undecided", "undecided", f"not calibrated: {'; '.join([*uncalibrated, words])}")
    verdict = combined_verdict([judgement.verdict for _, judgement in found], claim.combine)
    Finding(claim.claim, verdict, words)  # raises an error if a verdict has no interval
    return _Judged(verdict, verdict, words)


def _uncalibrated(calibration: Calibration, evidence: Evidence) -> str:
    """Return how far a baseline is below its published figure, if that is too far."""
    row = evidence.row(calibration.row, [])
    reached = calibration.scale * mean(evidence.values(row, calibration.figure, "final"))
    if reached >= calibration.published - calibration.within:
        return ""
    return f"{', '.join(row)} reaches {reached:.1f}, published {calibration.published:g}"


def _with_verdict(name: str, judgement: Judgement, shown: bool) -> str:
    digits = 1 if abs(judgement.mean) >= 1 or judgement.mean == 0 else 3 if abs(judgement.mean) < 0.1 else 2
    text = judgement_text(name, judgement, digits)
    return f"{text}, {judgement.verdict}" if shown else text


def _is_finished(evidence: Evidence, row: Row) -> bool:
    done = evidence.results.cells.get(row, {})
    failed = evidence.results.failed
    return all(seed in done or "/".join((*row, f"seed-{seed}")) in failed for seed in evidence.planned[row])


def _pairs(comparison: Comparison, evidence: Evidence) -> Iterator[_Pair]:
    for place in comparison.places:
        where = [part for part in place if not all(part in other for other in comparison.places)]
        others: list[Part | None] = [*comparison.against] or [None]
        for other in others:
            yield _pair(comparison, evidence, place, where, other)


def _pair(comparison: Comparison, evidence: Evidence, place: list[str], where: list[str], other: Part | None) -> _Pair:
    def side(part: Part, minus: Part | None, when: When) -> Figures:
        values = evidence.values(evidence.row(place, part), comparison.figure, when)
        if minus is None:
            return values
        less = evidence.values(evidence.row(place, minus), comparison.figure, when)
        return by_seed(lambda a, b: a - b, values, less)

    def judge() -> Judgement:
        first = side(comparison.first, comparison.first_minus, comparison.when)
        if other is None:
            return _verdict_of(comparison, [_scaled(v, comparison.scale) for v in first.with_failures().values()])
        second = side(other, comparison.against_minus, comparison.against_when or comparison.when)
        return _verdict_of(comparison, differences(first, second, comparison.scale, not comparison.less_is_better))

    used = (comparison.first, comparison.first_minus, other, comparison.against_minus)
    rows = tuple(evidence.row(place, part) for part in used if part is not None)
    return _Pair(_name(comparison, where, other).format(**evidence.names), rows, judge)


def _name(comparison: Comparison, where: list[str], other: Part | None) -> str:
    """Return the name of a comparison, as in `5 labels: A - B`; words that both sides have stand in front."""
    first, second = _parts(comparison.first), [] if other is None else _parts(other)
    common = [word for word in first if word in second and first != second]
    sides = [", ".join(word for word in side if word not in common) for side in (first, second) if side]
    if first == second:  # at two times
        sides = [f"{first[-1]}, {comparison.when}", f"{comparison.against_when or comparison.when}"]
    change = ["change"] if comparison.first_minus is not None else []
    place = ", ".join([*where, *common, *change])
    return f"{place}: {' - '.join(sides)}" if place else " - ".join(sides)


def _verdict_of(comparison: Comparison, gaps: list[float | None]) -> Judgement:
    if comparison.margin is not None:
        within = judge_not_worse if comparison.judge == "not worse" else judge_equivalent
        return within(gaps, comparison.margin)
    if comparison.bound is not None:
        against = judge_at_least if comparison.judge == "at least" else judge_at_most
        return against(gaps, comparison.bound)
    return judge_better(gaps)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else scale * value


def _parts(part: Part) -> list[str]:
    return [part] if isinstance(part, str) else part
