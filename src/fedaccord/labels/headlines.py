"""The metrics that come first in the figures of a federation, as its views say; importable without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedaccord.labels.views.base import View


def possible_headlines(views: Iterable[View | type[View]]) -> tuple[str, ...]:
    """Return the metrics that may come first in the figures of a federation, the most informative one first."""
    places = {name: at for view in views for at, name in reversed(list(enumerate(view.headlines)))}
    return tuple(sorted(places, key=lambda name: places[name]))


def shown_headlines(
    views: Mapping[str, View] | Mapping[str, type[View]], each: Mapping[str, Mapping[str, float]]
) -> tuple[str, ...]:
    """Return the metrics that come first at any site, and those beside them; `each` has the metrics of every site.

    Without any figures of sites, the first is the one that the views prefer.
    """
    found = {next((name for name in views[site].headlines if name in table), "") for site, table in each.items()} - {""}
    order = possible_headlines(views.values())
    beside = dict.fromkeys(name for view in views.values() for name in view.beside_headline)
    return tuple(name for name in order if name in found or (not found and name == order[0])) + tuple(beside)
