"""The section of the report on what each site ends with: its experts, their weights, and its gain."""

from __future__ import annotations

from collections.abc import Mapping

from fedaccord.evaluation.differences import Gain
from fedaccord.runs import page as parts
from fedaccord.runs import report_figures as draw
from fedaccord.runs.gains import site_headline
from fedaccord.runs.page import NOTHING, Html, percent, remark, section, table, text
from fedaccord.runs.reading import Run, SiteExperts
from fedaccord.runs.report_quality import gain_cells

HEAD = ("Site", "Weights", "Trained alone", "Rows apart", "Alone", "Shared", "In the end", "Gain, points", "Reading")
COLOURS = (draw.BLUE, draw.ORANGE, draw.GREY)


def experts(run: Run, beside_alone: bool = False) -> Html:
    """Return the section, with the parts of the method that were switched on; empty if there is neither.

    `beside_alone` says that the page also compares the run with one without federation.
    """
    summary = run.summary
    sites = [name for name in run.federation.sites if name in summary.experts or name in summary.gains]
    switched = [remark(f"{words}.") for words in summary.parts]
    if not sites:
        return section("Parts of the method", *switched) if switched else Html("")
    names = list(next((found.weights for found in summary.experts.values()), {}))
    rows = [[site, *_fit(summary.experts.get(site)), *_figures(run, site)] for site in sites]
    notes = switched
    if summary.gains:
        notes.insert(0, remark(parts.TEXTS["alone_expert"]))
    if beside_alone:
        notes.insert(0, remark(parts.TEXTS["two_comparisons"]))
    where = "" if names else ", which stay there"
    reading = f"Each site answers with a mixture of models, with weights of its own{where}."
    body = table(HEAD, rows, numbers={3, 4, 5, 6, 7}, kind="intervals")
    return section("What each site ends with", reading, *([_key(names)] if names else []), body, *notes)


def _fit(found: SiteExperts | None) -> list[str]:
    """Return how a site's experts were fitted: weights, the way of the model alone, the rows kept apart."""
    if found is None:  # on another machine
        return [NOTHING, NOTHING, NOTHING]
    return [_bar(found.weights), found.alone, str(found.rows or "none: usual")]


def _figures(run: Run, site: str) -> list[str]:
    final, gain = run.summary.final, run.summary.gains.get(site)
    ended, shared = final.sites.each.get(site, {}), (final.shared.each if final.shared else {}).get(site, {})
    measure = site_headline(run.federation.sites[site].view, ended) if gain is None else gain.measure
    if not measure:
        return [NOTHING, NOTHING, NOTHING, NOTHING, "not measured"]
    name = Html(f'<small class="name">{text(parts.measure_name(measure))}</small>')
    found: Gain | None = None if gain is None else gain.read()
    alone, end = (None, ended.get(measure)) if found is None else (found.alone, found.together)
    change = [NOTHING, "not measured"] if found is None else gain_cells(found)
    return [percent(alone), percent(shared.get(measure)), Html(percent(end) + name), *change]


def _bar(weights: Mapping[str, float]) -> Html:
    """Return the weights as one bar of coloured parts, with the percentages below."""
    pieces = "".join(
        f'<i style="width:{100 * weight:.1f}%;background:{colour}"></i>'
        for weight, colour in zip(weights.values(), COLOURS, strict=False)
    )
    shares = " · ".join(f"{100 * weight:.0f}" for weight in weights.values())
    spoken = ", ".join(f"{name} {percent(weight)}" for name, weight in weights.items())
    return Html(
        f'<div class="bar weights" role="img" aria-label="{text(spoken)}">{pieces}</div><small>{shares}</small>'
    )


def _key(names: list[str]) -> Html:
    chips = zip(names, COLOURS, strict=False)
    keys = "".join(f'<span><b class="key" style="background:{c}"></b>{text(name)}</span>' for name, c in chips)
    return Html(f'<p class="keys weights-key">{keys}<span>Numbers: weights in percent, in this order.</span></p>')
