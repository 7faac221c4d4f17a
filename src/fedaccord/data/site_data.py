"""The samples of one site, which never leave it, and those that judge the global model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

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

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are known, by field."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}

    def map(self, change: Callable[[Tensor], Tensor]) -> Samples:
        """Return the samples with every tensor changed, e.g. reduced to some rows."""
        return Samples(**{name: change(tensor) for name, tensor in self.tensors().items()})


@dataclass(frozen=True)
class SiteData:
    """One site: its view, its training samples and its test samples."""

    name: str
    view: View
    train: Samples
    test: Samples


def site_tensors(sites: Mapping[str, SiteData]) -> dict[str, Tensor]:
    """Return all sites' data as named tensors, the form in which an engine hands them to its workers."""
    tensors: dict[str, Tensor] = {}
    for name, site in sites.items():
        for part, samples in (("train", site.train), ("test", site.test)):
            tensors |= {f"{name}/{part}/{key}": tensor for key, tensor in samples.tensors().items()}
    return tensors


def named_samples(tensors: Mapping[str, Tensor], site: str) -> tuple[Samples, Samples]:
    """Return a site's training and test samples from the tensors that `site_tensors` named."""
    keys = [field.name for field in fields(Samples)]

    def part(name: str) -> Samples:
        return Samples(**{key: tensors[place] for key in keys if (place := f"{site}/{name}/{key}") in tensors})

    return part("train"), part("test")


def with_tensors(site: SiteData, tensors: Mapping[str, Tensor]) -> SiteData:
    """Return a site with the samples that `site_tensors` named, wherever they are now."""
    return SiteData(site.name, site.view, *named_samples(tensors, site.name))


@dataclass(frozen=True)
class ServerInputs:
    """The server's inputs without labels, and the labels beside them that are not used, such as "column 'dx'"."""

    x: Tensor
    unused: Sequence[str] = ()


@dataclass(frozen=True)
class ServerTest:
    """The test of the global model: inputs, true classes or tags, their source, and their groups if known."""

    x: Tensor
    truth: Tensor
    source: str
    groups: tuple[Tensor, Tensor | None] | None = None  # candidate groups, and the true ones if known
