"""The gain of each site by federation, from a run beside one in which each site trains alone, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaccord.evaluation.quality import OVER_GUESS
from fedaccord.labels.headlines import shown_headlines
from fedaccord.labels.views.registry import shown_class
from fedaccord.lazy import Array
from fedaccord.runs.reading import Federation, Metrics, Quality, Run, Summary, read_resamples, read_summary
from fedaccord.runs.verdict import Difference, Standing, paired_difference, standing, unpaired_difference, verdict


@dataclass(frozen=True)
class Gain:
    """A site's first figure alone and together; the difference has an interval if both runs were examined."""

    measure: str
    alone: float
    together: float
    difference: Difference | None = None


def site_headline(view: Mapping[str, Any], *metrics: Metrics) -> str:
    """Return the headline metric of a site with a described view: the first that all tables have, or nothing."""
    return next((name for name in shown_class(view).headlines if all(name in table for table in metrics)), "")


def run_headlines(run: Run) -> tuple[str, ...]:
    """Return the headline metrics of a run, the most informative one first."""
    views = {name: shown_class(site.view) for name, site in run.federation.sites.items()}
    each = {name: metrics for name, metrics in run.summary.final.sites.each.items() if name in views}
    return shown_headlines(views, each)


def find_gains(
    summary: Summary, federation: Federation, resamples: Mapping[str, Array], alone: Path
) -> dict[str, Gain]:
    """Return the gain of each site that has a figure in both runs; `alone` is the folder of the other run."""
    before, old = read_summary(alone), read_resamples(alone)
    same_rows = summary.seed == before.seed  # the seed decides which rows are test rows, and draws the resamples
    found = {}
    for site, metrics in summary.final.sites.each.items():
        earlier = before.final.sites.each.get(site, {})
        view = federation.sites[site].view if site in federation.sites else {}
        if measure := site_headline(view, metrics, earlier):
            qualities = summary.quality.sites.get(site), before.quality.sites.get(site)
            pair = (resamples[site], old[site]) if same_rows and site in resamples and site in old else None
            difference = _difference(measure, *qualities, pair)
            found[site] = Gain(measure, earlier[measure], metrics[measure], difference)
    return found


def _difference(
    measure: str, new: Quality | None, old: Quality | None, pair: tuple[Array, Array] | None
) -> Difference | None:
    one, other = (None if quality is None else quality.estimate(measure) for quality in (new, old))
    if new is None or old is None or one is None or other is None:
        return None
    rows = min(new.rows, old.rows)
    if pair is not None and new.rows == old.rows and len(pair[0]) == len(pair[1]):
        return Difference(measure, paired_difference(measure, *pair, one.value - other.value, rows), rows, paired=True)
    return Difference(measure, unpaired_difference(one, other), rows, paired=False)


def guessing(quality: Quality) -> Standing:
    """Return whether a model is better than guessing."""
    return standing(quality.estimate(OVER_GUESS), quality.rows)


def run_verdict(summary: Summary, gains: Mapping[str, Gain] | None) -> dict[str, Any]:
    """Return the verdict on a run as summary.json holds it: in words, and the standing of each site."""
    examined = summary.quality
    sites = {site: guessing(quality) for site, quality in examined.sites.items() if quality.rows}
    overall = None if examined.overall is None else guessing(examined.overall)
    alone: dict[str, Standing] | None = None
    if gains is not None:
        alone = {name: "unmeasured" if g.difference is None else g.difference.standing for name, g in gains.items()}
    text = verdict(sites, overall, alone)
    return {"text": text, "guessing": sites, "global": overall, "alone": alone}
