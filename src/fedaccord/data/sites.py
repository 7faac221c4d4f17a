"""The data of a federation: all sites, each as its view sees it, the server's data, and how they were made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.column_uses import ColumnUse, Words
from fedaccord.data.dataset import BRIGHTEST, Array, Rows
from fedaccord.data.declarations import Standardise
from fedaccord.data.features import FeaturePlan
from fedaccord.data.label_columns import LabelWords
from fedaccord.data.scaling import Moments, apply_moments, pool_moments
from fedaccord.data.site_data import Samples, ServerInputs, ServerTest, SiteData
from fedaccord.data.tables import Table
from fedaccord.errors import ConfigError, DataError, UserError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact, LabelArrays, View, ViewContext, ViewDeclaration, build_view, check_outside
from fedaccord.labels.views.pooled import pool

SMALLEST_WITH_TEST = 5  # a site with fewer samples uses all of them for training


@dataclass(frozen=True)
class Flaw:
    """An error in the data, and the site that has it; None: several sites, or the server."""

    error: UserError
    site: str | None = None


@dataclass
class FederationData:
    """All sites of a run, the server's data, and a record of how they were made.

    Data with `flaws` can be inspected, but not trained on: wrong values were left out or treated as missing.
    """

    space: LabelSpace
    sites: dict[str, SiteData]
    input_shape: tuple[int, ...]
    test: tuple[Tensor, Tensor] | None = None
    unlabelled: Tensor | None = None  # the server's inputs without labels
    labelled: tuple[Tensor, Tensor] | None = None  # the server's samples with their true classes
    test_source: str = "the server has no test data, so there are no global figures"
    notes: list[str] = field(default_factory=list)
    histogram: dict[str, dict[str, int]] | None = None
    partition: dict[str, Any] | None = None
    features: FeaturePlan | None = None  # how table columns became features
    label_words: dict[str, LabelWords] = field(default_factory=dict)  # by site: the words of its label columns
    words: dict[str, Words] = field(default_factory=dict)  # of columns of words, by column and site
    columns: list[ColumnUse] = field(default_factory=list)  # of all tables, with their uses
    missing_cells: dict[str, dict[str, int]] = field(default_factory=dict)  # counts by site and column
    groups: list[str] = field(default_factory=list)  # of the sensitive attribute
    group_features: int | None = None  # index of the first feature that is a candidate group; None: none is
    test_groups: tuple[Tensor, Tensor | None] | None = None  # of the server's test: candidates, and true ones if known
    moments: dict[str, Moments] = field(default_factory=dict)  # of each site's training rows; none: not standardised
    standardise: Standardise = "federation"  # whose moments a site's features are standardised by
    brightest: int = BRIGHTEST  # value of a white pixel
    flaws: list[Flaw] = field(default_factory=list)
    read_as: dict[str, str] = field(default_factory=dict)  # how the text tables of sites and server are written
    doubts: dict[str, list[str]] = field(default_factory=dict)  # readings of these files that may be wrong

    @property
    def views(self) -> dict[str, View]:
        """Each site's view."""
        return {name: site.view for name, site in self.sites.items()}

    def remember_reading(self, name: str, table: Table) -> None:
        """Keep how the table of a site or of the server was read, for the report of a check."""
        if table.read_as:
            self.read_as[name] = table.read_as
        if table.doubts:
            self.doubts[name] = list(table.doubts)

    def flaw_collector(self, site: str) -> Callable[[UserError], None]:
        """Return a function that adds an error of a site to the flaws."""
        return lambda error: self.flaws.append(Flaw(error, site))

    @contextmanager
    def collecting_flaws(self) -> Iterator[None]:
        """Add an error that is raised inside to the flaws, so that the other data can still be inspected."""
        try:
            yield
        except UserError as error:
            self.flaws.append(Flaw(error))

    def without_flaws(self) -> FederationData:
        """Return these data, or raise their first flaw."""
        for flaw in self.flaws:
            raise flaw.error
        return self

    def set_test(self, found: ServerTest | None) -> None:
        """Evaluate the global model on this test; None: there is no global evaluation."""
        if found is None:
            self.test_source = "no true classes are known for a test, so there are no global figures"
            return
        self.test, self.test_source, self.test_groups = (found.x, found.truth), found.source, found.groups

    def scaling(self) -> dict[str, Moments]:
        """Return the moments by which each site's features are standardised; empty: they are not."""
        pooled = self.pooled_moments()
        return self.moments if pooled is None or self.standardise == "site" else dict.fromkeys(self.moments, pooled)

    def set_unlabelled(self, found: ServerInputs, where: str, source: str = "") -> None:
        """Let the server hold these inputs, with a note on them and on labels that are not used."""
        self.unlabelled = found.x
        self.notes.append(f"the server holds {len(found.x)} inputs without labels{source}")
        if found.unused:
            self.notes.append(f"{where}: {' and '.join(found.unused)} may hold labels, which are not used")

    def pooled_moments(self) -> Moments | None:
        """Return the moments of all sites' training rows, by which the server's samples are scaled."""
        return pool_moments(list(self.moments.values())) if self.moments else None

    def scaled(self, x: Array) -> Tensor:
        """Return inputs of the server, scaled."""
        return torch.from_numpy(apply_moments(x, self.pooled_moments()))

    def add(self, site: SiteData, test: float) -> None:
        """Add a site, with a note if it is too small for the requested test share."""
        check_outside(site.view, site.train.target)
        self.sites[site.name] = site
        if test > 0 and not len(site.test):
            self.notes.append(f"site '{site.name}' has {len(site.train)} samples only and keeps them all for training")


@dataclass(frozen=True)
class Annotated:
    """Samples as a site sees them."""

    view: View
    rows: Rows
    target: Tensor
    truth: Tensor | None  # the true class if it is known; for evaluation only
    left_out: int = 0  # samples of classes the site does not know

    def part(self, index: Array, moments: Moments | None) -> Samples:
        """Return some of the samples, scaled."""
        rows, at = self.rows.take(index), torch.from_numpy(index)
        truth = None if self.truth is None else self.truth[at]
        groups = (None if values is None else torch.from_numpy(values) for values in (rows.groups, rows.group))
        return Samples(torch.from_numpy(apply_moments(rows.x, moments)), self.target[at], truth, *groups)


def label_arrays(rows: Rows, names: tuple[str, ...], chances: Array | None = None) -> LabelArrays:
    """Return the labels of some rows in the form in which views take them."""
    return LabelArrays(len(rows), names, rows.y, rows.tags, rows.candidates, chances)


def observe(
    rows: Rows,
    declared: ViewDeclaration,
    space: LabelSpace,
    context: ViewContext,
    chances: Array | None,
    rng: np.random.Generator,
) -> Annotated:
    """Return what a site sees of samples whose true classes a study knows.

    `chances` are the predictions of a model trained on true classes. Samples that the view cannot annotate are left
    out.
    """
    view = build_view(declared, space, context)
    try:
        keep = np.flatnonzero(view.observable(label_arrays(rows, space.names), declared))
        seen = rows.take(keep)
        arrays = label_arrays(seen, space.names, None if chances is None else chances[keep])
        target = view.generate(arrays, declared, rng)
    except (ConfigError, DataError) as error:
        kind = ConfigError if isinstance(error, ConfigError) else DataError
        raise kind(f"{context.where}: {error}") from None
    truth = None if seen.y is None or not view.one_label else torch.from_numpy(seen.y)
    return Annotated(view, seen, target, truth, len(rows) - len(seen))


def read_annotations(
    rows: Rows, names: tuple[str, ...], declared: ViewDeclaration, space: LabelSpace, context: ViewContext
) -> Annotated:
    """Return what a site sees of its own arrays; `names` are the label names of its file."""
    view, arrays = build_view(declared, space, context), label_arrays(rows, names)
    target = view.read_arrays(arrays, context.where)
    return Annotated(view, rows, target, view.truth_in(arrays, target, context.where))


def draw_rows(n: int, number: int, seed: int) -> tuple[Array, Array]:
    """Draw `number` of `n` rows; return them and the others, both sorted."""
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[:number]), np.sort(order[number:])


def draw_test_rows(n: int, test: float, seed: int) -> tuple[Array, Array]:
    """Draw a site's test rows; a site that is too small uses all rows for training."""
    return draw_rows(n, int(test * n) if n >= SMALLEST_WITH_TEST else 0, seed)


def refuse_empty(name: str, seen: Annotated) -> None:
    """Raise DataError for a site without samples."""
    if len(seen.rows):
        return
    known = ", ".join(seen.view.known or seen.view.space.names)
    left = f": all {seen.left_out} are of classes that it does not know (it knows {known})" if seen.left_out else ""
    raise DataError(f"site '{name}' has no samples{left}")


def make_site(
    name: str, seen: Annotated, test: Array, train: Array, moments: Moments | None, own_test: Annotated | None = None
) -> SiteData:
    """Return a site from its training and test rows, scaled; `own_test` replaces the test rows."""
    judged = seen.part(test, moments) if own_test is None else own_test.part(np.arange(len(own_test.rows)), moments)
    return SiteData(name, seen.view, seen.part(train, moments), judged)


def pool_sites(name: str, sites: Mapping[str, SiteData], space: LabelSpace, labels: str) -> SiteData:
    """Return one site with all sites' training samples, with their true classes or through their own views."""
    sites = dict(sorted(sites.items()))  # the result does not depend on the order of the sites
    x = torch.cat([site.train.x for site in sites.values()])
    view: View
    if labels == "truth":
        truths = [site.train.truth for site in sites.values() if site.train.truth is not None]
        if len(truths) < len(sites):
            raise ConfigError('method.labels = "truth" needs every site\'s true classes; use labels = "views"')
        view, target = Exact(space), torch.cat(truths)
    else:
        view, target = pool([site.view for site in sites.values()], [site.train.target for site in sites.values()])
    return SiteData(name, view, Samples(x, target), Samples(x[:0], target[:0]))
