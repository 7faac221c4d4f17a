"""Which metrics head the figures of a federation, as its views say; importable without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedaccord.labels.views.base import View


def possible_heads(views: Iterable[View | type[View]]) -> tuple[str, ...]:
    """Return the metrics that may head the figures of a federation, the most telling first."""
    heads = {name: at for view in views for at, name in reversed(list(enumerate(view.heads)))}
    return tuple(sorted(heads, key=lambda name: heads[name]))


def leading_metrics(
    views: Mapping[str, View] | Mapping[str, type[View]], each: Mapping[str, Mapping[str, float]]
) -> tuple[str, ...]:
    """Return the metrics that head the figures of any site, and those beside them; without sites those of the views."""
    heads = {next((head for head in views[site].heads if head in table), "") for site, table in each.items()} - {""}
    order = possible_heads(views.values())
    beside = dict.fromkeys(name for view in views.values() for name in view.beside_head)
    return tuple(head for head in order if head in heads or (not heads and head == order[0])) + tuple(beside)
