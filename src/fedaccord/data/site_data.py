"""A site's own samples. They never leave the site."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedaccord.labels.views import View


@dataclass(frozen=True)
class Samples:
    """Features, encoded annotations and, where they are known, the true class (-1 = unknown) and candidate groups."""

    x: Tensor
    target: Tensor
    truth: Tensor | None = None
    group: Tensor | None = None  # bool (n, groups) of the sensitive attribute
    group_truth: Tensor | None = None  # int64 (n,): the true group, -1 = unknown; for evaluation only

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class SiteData:
    """One site: how it observes labels, what it trains on and what it is judged on."""

    name: str
    view: View
    train: Samples
    test: Samples
