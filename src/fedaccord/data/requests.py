"""What an experiment asks of its data: one object for a split data set, one for sites with their own files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaccord.data.dataset import Array, Dataset
from fedaccord.data.declarations import Features, PerClass, SiteSection
from fedaccord.data.registry import locate
from fedaccord.labels.views import ViewDeclaration
from fedaccord.labels.views.exact import ExactView


@dataclass(frozen=True)
class Split:
    """How one data set becomes a federation: `[data]`, `[labels]` and `[server]`."""

    partition: Mapping[str, Any]
    view: ViewDeclaration = field(default_factory=ExactView)
    views: Mapping[str, ViewDeclaration] = field(default_factory=dict)  # other views, by site name
    names: Sequence[str] | None = None
    classes: Sequence[str] | None = None
    seed: int = 0
    test: float = 0.2  # each site's share
    samples: int | None = None
    test_samples: int | None = None
    standardise: str = "auto"
    clean: Callable[[Dataset], Array] | None = None  # predictions of a model trained on true classes
    test_file: Path | None = None  # of the server
    unlabelled: int | None = None  # inputs that the server takes
    labelled: PerClass | Path | None = None  # samples that the server takes, or its file
    unseen: int | Sequence[str] | None = None  # sites that do not train and are the server's test

    def scales(self, dataset: Dataset) -> bool:
        """Return whether the features of a data set are standardised."""
        plain_numbers = not dataset.images and not dataset.scaled
        return self.standardise in ("site", "federation") or (self.standardise == "auto" and plain_numbers)


@dataclass(frozen=True)
class SiteFiles:
    """How sites with their own files become a federation: `[[sites]]`, `[features]`, `[labels]` and `[server]`."""

    sections: Sequence[SiteSection]
    features: Features = field(default_factory=Features)
    base: Path = Path()  # relative paths start here
    classes: Sequence[str] | None = None
    test_file: Path | None = None  # of the server
    test_label: str | None = None  # column of true classes in the server's files
    seed: int = 0
    labelled: Path | None = None  # the server's file of labelled samples
    groups_as_input: bool = False  # candidate groups are the last features of a table
    normalise_groups: bool = False  # each candidate counts as its share of 1

    def path(self, section: SiteSection) -> Path:
        """Return the path of a site's file or folder."""
        return locate(section.data, self.base)
