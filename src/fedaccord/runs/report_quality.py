"""The sections of the report that say how good the model is: figures with intervals, calibration, gains."""

from __future__ import annotations

from collections.abc import Mapping

from fedaccord.evaluation.differences import Gain
from fedaccord.evaluation.intervals import Estimate
from fedaccord.evaluation.quality import FEWEST_ROWS, GUESS, OVER_GUESS
from fedaccord.runs import page as parts
from fedaccord.runs import report_figures as draw
from fedaccord.runs.gains import guessing
from fedaccord.runs.page import NOTHING, Figure, Html, percent, remark, section, signed, table
from fedaccord.runs.reading import Quality, Run, Summary
from fedaccord.runs.verdict import in_words

ERRORS = ("brier", "ece")  # written as decimals
MORE = ("balanced_accuracy", "macro_f1", "auroc", *ERRORS)
GLOBAL = "Global model"


def quality(run: Run, figures: dict[str, Figure]) -> Html:
    """Return the figures of the global model and of each site with their intervals, and the calibration curves."""
    title, examined = "How good the model is", run.summary.quality
    found = ({GLOBAL: examined.overall} if examined.overall is not None else {}) | examined.sites
    if not found:
        later = "The model is examined on test rows at the end of the run."
        return section(title, later if run.progress else "The model was not examined on test rows in this run.")
    measured = {who: each for who, each in found.items() if each.measures}
    more = [name for name in MORE if any(name in each.measures for each in measured.values())]
    head = ["", "Test rows", "First figure", "Guessing", "Over guessing, points", "Reading"]
    head += [parts.heading(parts.measure_name(name)) for name in more]
    rows = [[who, each.rows, *_first(each), *(_cell(each, name) for name in more)] for who, each in found.items()]
    resamples = max((each.resamples for each in measured.values()), default=0)
    notes = [remark(parts.TEXTS["quality"].format(resamples=resamples))]
    notes += [remark(f"Not measured: {'; '.join(_missing(found))}.")] if len(measured) < len(found) else []
    numbers = {1, 2, 3, 4, *range(6, len(head))}
    return section(title, table(head, rows, numbers=numbers, kind="intervals"), *notes, *_calibration(found, figures))


def _first(each: Quality) -> list[str]:
    first = each.estimate(each.head)
    if first is None:
        return [NOTHING, NOTHING, NOTHING, in_words("unmeasured")]
    name = parts.measure_name(each.head)
    over = each.estimate(OVER_GUESS)
    shown = Html(f'<span class="{guessing(each)}">{in_words(guessing(each), each.rows)}</span>')
    return [
        Html(f'{_interval(first)}<small class="name">{parts.text(name)}</small>'),
        _cell(each, GUESS),
        NOTHING if over is None else points(over),
        shown,
    ]


def _missing(found: Mapping[str, Quality]) -> list[str]:
    """Return why sites have no figures."""
    why = {
        who: f"fewer than {FEWEST_ROWS} annotated test rows" if each.rows < FEWEST_ROWS else "test rows of one class"
        for who, each in found.items()
        if not each.measures
    }
    return [f"{who} ({reason})" for who, reason in why.items()]


def _cell(each: Quality, name: str) -> str:
    estimate = each.estimate(name)
    return NOTHING if estimate is None else _interval(estimate, name in ERRORS)


def _interval(estimate: Estimate, is_error: bool = False) -> Html:
    """Format a figure and its interval: 84.5% (79.1–88.9), or 0.123 (0.100–0.150)."""
    scale, decimals = (1, 3) if is_error else (100, 1)
    value = f"{estimate.value:.3f}" if is_error else percent(estimate.value)
    if estimate.low is None or estimate.high is None:
        return Html(value)
    low, high = (f"{scale * end:.{decimals}f}" for end in (estimate.low, estimate.high))
    return Html(f"{value} <small>({low}–{high})</small>")


def points(estimate: Estimate) -> Html:
    """Format a difference of shares in points with its interval: +3.3 (−1.0 to +7.5)."""
    value = signed(100 * estimate.value, 1)
    if estimate.low is None or estimate.high is None:
        return Html(value)
    low, high = (signed(100 * end, 1) for end in (estimate.low, estimate.high))
    return Html(f"{value} <small>({low} to {high})</small>")


def _calibration(found: Mapping[str, Quality], figures: dict[str, Figure]) -> list[Html]:
    options = {}
    for number, (who, each) in enumerate(found.items()):
        if each.calibration:
            key = f"calibration-{number}"
            figures[key] = draw.calibration(each.calibration)
            options[key] = who
    if not options:
        return []
    heading = Html('<h3 class="later">Calibration</h3>')
    return [heading, remark(parts.TEXTS["calibration"]), *parts.figure_choice("Curve of", options, "calibration")]


def gains(alone: Summary, found: Mapping[str, Gain]) -> Html:
    """Return what federation brought each site, the largest gain first."""
    title = "What federation brought each site"
    if not found:
        return section(title, f"No site has a figure both in this run and in '{alone.name}'.")
    ranked = sorted(found.items(), key=lambda pair: pair[1].alone - pair[1].together)
    rows = [_gain_row(site, gain) for site, gain in ranked]
    words = [_reading(gain) for _, gain in ranked]
    mean = signed(100 * sum(gain.together - gain.alone for gain in found.values()) / len(found), 1)
    better, worse, unclear = (words.count(which) for which in ("better", "worse", "unclear"))
    sentence = f"Together, {better} of {len(found)} sites do better than alone, {worse} worse"
    sentence += f", {unclear} undecided" if unclear else ""
    differences = [gain.difference for gain in found.values() if gain.difference is not None]
    source = f"Alone: run '{alone.name}', method {alone.method}, seed {alone.seed}."
    how = ""
    if differences:
        paired = "paired: both models answered the same resampled test rows"
        unpaired = "not paired, and so wider than needed: sites on other machines keep their resamples"
        how = f" In brackets: the 95 % interval ({paired if all(d.paired for d in differences) else unpaired})."
    head = ["Site", "Figure", "Alone", "Together", "Gain, points", "Reading"]
    body = table(head, rows, numbers={2, 3, 4}, kind="intervals")
    return section(title, f"{sentence}: {mean} points on average.", body, remark(f"Last round. {source}{how}"))


def _reading(gain: Gain) -> str:
    if gain.difference is not None:
        return gain.difference.standing
    shown = signed(100 * (gain.together - gain.alone), 1)
    return {"+": "better", "−": "worse"}.get(shown[0], "same")


def gain_cells(gain: Gain) -> list[Html]:
    """Return the cells of a site's gain: the difference in points with its interval, and its reading."""
    which, difference = _reading(gain), gain.difference
    shown = points(Estimate(gain.together - gain.alone) if difference is None else difference.estimate)
    words = which if difference is None else in_words(difference.standing, difference.rows)
    return [Html(f'<span class="{which}">{cell}</span>') for cell in (shown, words)]


def _gain_row(site: str, gain: Gain) -> list[str]:
    return [site, parts.measure_name(gain.measure), percent(gain.alone), percent(gain.together), *gain_cells(gain)]
