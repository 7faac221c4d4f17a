"""Views by the name of their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.labels.pooling import Pooled
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, Coarse, Exact, Tags, Unlabelled, View

VIEWS: dict[str, type[View]] = {view.kind: view for view in (Exact, Candidates, Coarse, Tags, Unlabelled, Pooled)}


def make_view(spec: Mapping[str, Any], space: LabelSpace) -> View:
    """Build a view from the form in which the experiment file writes it: `kind` and the view's own settings."""
    settings = dict(spec)
    kind = settings.pop("kind", "exact")
    if kind not in VIEWS:
        raise ConfigError(f"unknown kind of view '{kind}'; {did_you_mean(kind, VIEWS)}")
    try:
        return VIEWS[kind](space, **settings)
    except TypeError:
        raise ConfigError(f"a view of kind '{kind}' cannot be made from the settings {sorted(settings)}") from None
