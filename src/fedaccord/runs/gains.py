"""The gain of each site by federation, and the verdict.

A run that was compared with one without federation (`run --alone`) is judged by that. Otherwise, if the sites of a run
have models of their own trained alone, it is judged by those.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaccord.evaluation.differences import (
    Difference,
    Gain,
    Standing,
    paired_difference,
    standing,
    unpaired_difference,
)
from fedaccord.evaluation.quality import OVER_GUESS
from fedaccord.labels.headlines import shown_headlines
from fedaccord.labels.views.registry import shown_class
from fedaccord.lazy import Array
from fedaccord.runs.reading import Federation, Metrics, Quality, Run, Summary, read_resamples, read_summary
from fedaccord.runs.verdict import missing_parts, verdict


def site_headline(view: Mapping[str, Any], *metrics: Metrics) -> str:
    """Return the headline metric of a site with a described view: the first that all tables have, or nothing."""
    return next((name for name in shown_class(view).headlines if all(name in table for table in metrics)), "")


def run_headlines(run: Run) -> tuple[str, ...]:
    """Return the headline metrics of a run, the most informative one first."""
    views = {name: shown_class(site.view) for name, site in run.federation.sites.items()}
    each = {name: metrics for name, metrics in run.summary.final.sites.each.items() if name in views}
    return shown_headlines(views, each)


def compared_gains(
    summary: Summary, federation: Federation, resamples: Mapping[str, Array], alone: Path | None
) -> dict[str, Gain] | None:
    """Return the gain of each site, by the run in the folder `alone` or else by the sites' own models alone.

    None if the run was compared with nothing.
    """
    if alone is not None:
        return find_gains(summary, federation, resamples, alone)
    return {site: gain.read() for site, gain in summary.gains.items()} or None


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


def run_verdict(summary: Summary, federation: Federation, gains: Mapping[str, Gain] | None) -> dict[str, Any]:
    """Return the verdict on a run as summary.json holds it: in words, and the standing of each site."""
    examined = summary.quality
    sites = {site: guessing(quality) for site, quality in examined.sites.items() if quality.rows}
    overall = None if examined.overall is None else guessing(examined.overall)
    alone: dict[str, Standing] | None = None
    if gains is not None:
        alone = {name: "unmeasured" if g.difference is None else g.difference.standing for name, g in gains.items()}
    text = verdict(sites, overall, alone)
    if alone and {"better"}.isdisjoint(alone.values()) and not {"worse", "unclear"}.isdisjoint(alone.values()):
        text = " ".join([text, *missing_parts(federation, alone)])
    return {"text": text, "guessing": sites, "global": overall, "alone": alone}
