"""The statement over sites: how many are worse off with `accord` than alone, beyond what chance gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scipy.stats import binomtest

from fedaccord.evaluation.judge import Interval, mean_interval
from papers.accord.cells import Scale, apart_row, chosen_rate
from papers.accord.compared import POINTS
from papers.accord.contestants import ACCORD, ALONE, LOCAL, contestants
from papers.accord.sets import SETS
from papers.harness.cells import Results

CHANCE = 0.025  # of an interval that lies below zero although nothing is lost


@dataclass(frozen=True)
class SiteDifference:
    """The difference of accord to the better way of training alone at a site, in points over the seeds."""

    name: str  # of the set
    site: str
    interval: Interval

    @property
    def loses(self) -> bool:
        """Whether the 95 % interval lies below zero."""
        return self.interval.n > 1 and self.interval.high < 0


@dataclass(frozen=True)
class SiteStatement:
    """All sites of all sets, those that lose, and the chance of at least as many if no site did."""

    sites: list[SiteDifference]

    @property
    def losing(self) -> list[SiteDifference]:
        """The sites whose interval lies below zero, the largest loss first."""
        return sorted((each for each in self.sites if each.loses), key=lambda each: each.interval.mean)

    @property
    def p_value(self) -> float:
        """The probability of at least this number of losing sites by chance alone (one-sided binomial test)."""
        return float(binomtest(len(self.losing), len(self.sites), CHANCE, alternative="greater").pvalue)


def site_statement(results: Results, scale: Scale) -> SiteStatement:
    """Compare accord with training alone at every site that has figures with at least two seeds."""
    return SiteStatement([each for name in SETS for each in _sites(results, scale, name) if each.interval.n > 1])


def _sites(results: Results, scale: Scale, name: str) -> Iterator[SiteDifference]:
    metric, gaps = SETS[name].metric, dict[str, list[float]]()
    found = results.cells.get((name, ACCORD), {})
    for seed in sorted(found):
        alone = {way: results.cells.get((name, way), {}).get(seed) for way in ALONE}
        ways = better_ways(_apart(results, scale, name, seed))
        for site, figures in _each(found[seed]).items():
            rival = alone[ways.get(site, LOCAL)]
            theirs = None if rival is None else _each(rival).get(site, {}).get(metric)
            if metric in figures and theirs is not None:
                gaps.setdefault(site, []).append(POINTS * (figures[metric] - theirs))
    for site, differences in gaps.items():
        yield SiteDifference(name, site, mean_interval(differences))


def better_ways(apart: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, str]:
    """Return for each site the way with the lowest loss on its rows apart, from way -> site -> metrics.

    A site that some way has no loss at is left out.
    """
    sites = set.intersection(*(set(each) for each in apart.values())) if apart else set()
    judged = [site for site in sites if all("nll" in each[site] for each in apart.values())]
    return {site: min(apart, key=lambda way: apart[way][site]["nll"]) for site in judged}


def _apart(results: Results, scale: Scale, name: str, seed: int) -> dict[str, Mapping[str, Mapping[str, float]]]:
    found = {}
    for contestant in contestants(SETS[name]):
        rate = chosen_rate(results, scale, name, contestant) if contestant.name in ALONE else None
        if rate is not None:
            cell = results.cells.get(apart_row(name, contestant.name, rate), {}).get(seed)
            if cell is not None:
                found[contestant.name] = cell["figures"]["sites"]["each"]
    return found


def _each(result: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    each: Mapping[str, Mapping[str, float]] = result["final"]["sites"]["each"]
    return each
