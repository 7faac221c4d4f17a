"""The samples of one site, which never leave it, and those that judge the global model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedaccord.labels.views import View


@dataclass(frozen=True)
class Samples:
    """Features, encoded annotations and, if known, true classes (-1 = unknown) and candidate groups."""

    x: Tensor
    target: Tensor
    truth: Tensor | None = None
    group: Tensor | None = None  # bool (n, groups) of the sensitive attribute
    group_truth: Tensor | None = None  # int64 (n,): the true group, -1 = unknown; for evaluation only

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class SiteData:
    """One site: its view, its training samples and its test samples."""

    name: str
    view: View
    train: Samples
    test: Samples


@dataclass(frozen=True)
class ServerTest:
    """The test of the global model: inputs, true classes or tags, their source, and their groups if known."""

    x: Tensor
    truth: Tensor
    source: str
    groups: tuple[Tensor, Tensor | None] | None = None  # candidate groups, and the true ones if known
