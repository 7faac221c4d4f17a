"""The verdict on a run, in words: better than guessing, and better than training alone, as far as intervals say.

Pure functions of figures with intervals. A site is better if the 95 % interval of the difference lies above zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedaccord.evaluation.intervals import Estimate, percentile_interval, share_difference
from fedaccord.lazy import Array
from fedaccord.runs.page import listed
from fedaccord.runs.reading import NO_VERDICT

Standing = Literal["better", "worse", "unclear", "unmeasured"]
FEWEST_ROWS = 10  # test rows for a verdict; the bootstrap of fewer rows is too sure of itself
MOST_NAMES = 6
SHARES_OF_ROWS = ("accuracy", "in_set")


@dataclass(frozen=True)
class Difference:
    """The difference of two models on a site's test rows, with its interval; paired if both answered the same rows."""

    measure: str
    estimate: Estimate
    rows: int
    paired: bool

    @property
    def standing(self) -> Standing:
        """Whether the interval shows a better or a worse model."""
        return standing(self.estimate, self.rows)


def standing(difference: Estimate | None, rows: int) -> Standing:
    """Return whether a difference is better or worse, by its interval; few rows allow no verdict."""
    if difference is None:
        return "unmeasured"
    if difference.low is None or difference.high is None or rows < FEWEST_ROWS:
        return "unclear"
    return "better" if difference.low > 0 else "worse" if difference.high < 0 else "unclear"


def paired_difference(measure: str, new: Array, old: Array, value: float, rows: int) -> Estimate:
    """Return a difference with its interval from the figures of both models on the same resamples of `rows` rows."""
    if measure in SHARES_OF_ROWS:
        return share_difference(value, rows, new - old)
    return percentile_interval(value, new - old)


def unpaired_difference(new: Estimate, old: Estimate) -> Estimate:
    """Return a difference with an interval from the two intervals, as if the test rows were different ones.

    The distances of the ends from the figures add up like standard deviations (Newcombe's square-and-add). If both
    models answered the same rows, the interval is wider than it needs to be.
    """
    value = new.value - old.value
    if new.low is None or new.high is None or old.low is None or old.high is None:
        return Estimate(value)
    below = math.hypot(new.value - new.low, old.high - old.value)
    above = math.hypot(new.high - new.value, old.value - old.low)
    return Estimate(value, value - below, value + above)


def verdict(
    guessing: Mapping[str, Standing], overall: Standing | None = None, alone: Mapping[str, Standing] | None = None
) -> str:
    """Return the verdict on a run from the standing of each site, and of the global model if it was measured.

    `alone` compares with each site training alone; None if nothing was compared.
    """
    said = [_sentence("guessing", guessing)] if guessing else []
    if overall is not None:
        said.append(_GLOBAL[overall])
    if not said:
        return NO_VERDICT
    if alone is not None:
        said.append(_sentence("training alone", alone) if alone else "No site can be compared with training alone.")
    return " ".join(said)


_GLOBAL: dict[Standing, str] = {
    "better": "The global model is better than guessing.",
    "worse": "The global model is worse than guessing.",
    "unclear": "The global model cannot be told apart from guessing.",
    "unmeasured": "The global model could not be compared with guessing.",
}
_REST: dict[Standing, str] = {
    "worse": "worse at {}",
    "unclear": "the intervals do not allow to say at {}",
    "unmeasured": "not measured at {}",
}


def _sentence(than: str, standings: Mapping[str, Standing]) -> str:
    """Return where the model is better, and where it is not."""
    by_standing = {which: [site for site, s in standings.items() if s == which] for which in ("better", *_REST)}
    total, better = len(standings), by_standing["better"]
    if len(better) == total:
        everywhere = {1: "its only site", 2: "both sites"}.get(total, f"all {total} sites")
        return f"Better than {than} at {everywhere}."
    if len(by_standing["unmeasured"]) == total:
        return f"No site has enough test rows to compare the model with {than}."
    where = f"{len(better)} of {total} sites ({_names(better)})" if better else "no site for sure"
    rest = [words.format(_names(by_standing[which])) for which, words in _REST.items() if by_standing[which]]
    return f"Better than {than} at {where}; {'; '.join(rest)}."


def _names(sites: Sequence[str]) -> str:
    return listed(sites, most=MOST_NAMES)
