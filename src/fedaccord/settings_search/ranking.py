"""Rank settings by their figures on rows kept apart: the best mean over seeds is chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaccord.errors import UserError, did_you_mean
from fedaccord.evaluation.judge import Interval, Judgement, judge_better, mean_interval, paired_differences
from fedaccord.settings_search.grid import Setting
from fedaccord.stopping import figure, gain, metric_names

SERVER = "the server"
SCOPES = ("global", "sites.mean")
Results = Mapping[int, Mapping[str, Any]]  # seed -> what a cell measured


@dataclass(frozen=True)
class Ranked:
    """A setting with its figure for each seed; None with a reason for a seed that failed."""

    setting: Setting
    values: dict[int, float | None]
    failures: list[str]
    dropped: int  # replies of sites, over all seeds

    @property
    def interval(self) -> Interval:
        """The mean over the seeds that have a figure, and its 95 % interval."""
        return mean_interval([value for value in self.values.values() if value is not None])


def rank(
    settings: Sequence[Setting], results: Sequence[Results], failed: Sequence[Mapping[int, str]], by: str
) -> list[Ranked]:
    """Sort settings by their mean figure, the best first; settings with a failed seed come last.

    `by` is a metric that is averaged over the sites that measured it and the server, such as `nll`, or one with its
    scope, such as `global.accuracy`. Equal settings keep their order, the file's own before all others.
    """
    measured = [result["figures"] for by_seed in results for result in by_seed.values()]
    if measured and not any(_has(figures, by) for figures in measured):
        names = {name for figures in measured for name in metric_names(figures)}
        bare = sorted({name.rpartition(".")[2] for name in names if name.startswith(("global.", "sites.mean."))})
        raise UserError(f"--by {by}: nobody measured it; {did_you_mean(by, [*bare, *sorted(names)])}")
    found = []
    for setting, by_seed, reasons in zip(settings, results, failed, strict=True):
        values: dict[int, float | None] = {}
        failures = [f"seed {seed}: {reason}" for seed, reason in reasons.items()]
        for seed in sorted({*by_seed, *reasons}):
            values[seed], missing = None, ""
            if seed in by_seed:
                rivals = [other[seed] for other in results if seed in other]
                values[seed], missing = _value(by_seed[seed], rivals, by)
            failures += [f"seed {seed}: {missing}"] if missing else []
        dropped = sum(result["dropped"] for result in by_seed.values())
        found.append(Ranked(setting, values, failures, dropped))
    return sorted(found, key=lambda row: (bool(row.failures), -_worth(row, by), not row.setting.is_own))


def against_own(ranked: Sequence[Ranked], by: str) -> Judgement | None:
    """Judge whether the chosen setting is better than the file's own; None if it is that, or the file has none."""
    own = next((row for row in ranked if row.setting.is_own), None)
    if own is None or own is ranked[0]:
        return None
    best, other = (_gains(row, by) for row in (ranked[0], own))
    return judge_better(paired_differences(best, other))


def at_an_edge(ranked: Sequence[Ranked], keys: Sequence[str]) -> list[str]:
    """Return the keys whose chosen value is the smallest or largest of at least three numbers that were tried."""
    found = []
    for key in keys:
        tried = {number for row in ranked if (number := _number(row.setting.values.get(key))) is not None}
        chosen = _number(ranked[0].setting.values.get(key))
        if chosen is not None and len(tried) > 2 and chosen in (min(tried), max(tried)):
            found.append(key)
    return found


def _value(result: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]], by: str) -> tuple[float | None, str]:
    """Return a cell's figure, or None and the reason; all cells of a seed are judged by the same sites."""
    if "." in by:
        value = figure(result["figures"], by)
        return value, "" if value is not None else f"no {by}"
    # A site whose figure is not finite reports none. Leaving it out of the mean would reward the setting.
    sites = {site for rival in rivals for site, metrics in _each(rival).items() if by in metrics}
    by_server = all(rival["server_judges"] and by in rival["figures"]["global"] for rival in rivals)
    values = {site: _each(result).get(site, {}).get(by) for site in sorted(sites)}
    values |= {SERVER: result["figures"]["global"][by]} if by_server else {}
    measured = [value for value in values.values() if value is not None]
    if len(measured) < len(values) or not values:
        missing = [site for site, value in values.items() if value is None]
        return None, f"no {by} at {', '.join(missing) or 'any site'}"
    return math.fsum(measured) / len(measured), ""


def _each(result: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    each: Mapping[str, Mapping[str, float]] = result["figures"]["sites"]["each"]
    return each


def _has(figures: dict[str, Any], by: str) -> bool:
    return by in metric_names(figures) or any(f"{scope}.{by}" in metric_names(figures) for scope in SCOPES)


def _gains(row: Ranked, by: str) -> dict[int, float | None]:
    return {seed: None if value is None else gain(by, value) for seed, value in row.values.items()}


def _worth(row: Ranked, by: str) -> float:
    gains = [value for value in _gains(row, by).values() if value is not None]
    return math.fsum(gains) / len(gains) if gains else -math.inf


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
