"""From one data set, or from the sites' own files, to a federation of sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.annotate import Annotated, label_arrays, observe, read_annotations
from fedaccord.data.dataset import BRIGHTEST, Array, Dataset, Rows
from fedaccord.data.declarations import PerClass
from fedaccord.data.features import FeaturePlan
from fedaccord.data.held import (
    ServerTest,
    pooled_test,
    published_test,
    read_arrays,
    read_server_file,
    set_sites_aside,
    take_out,
)
from fedaccord.data.partition import Partition, split
from fedaccord.data.scaling import Moments, apply_moments, fit_moments, pool_moments
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.tag_groups import tag_groups
from fedaccord.errors import ConfigError, DataError, PartitionError, UserError, did_you_mean
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact, View, ViewContext, ViewDeclaration, view_class
from fedaccord.labels.views.pooled import pool
from fedaccord.seeds import derive

SMALLEST_WITH_TEST = 5  # a site of fewer samples keeps them all for training
CleanPredictions = Callable[[Dataset], Array]


@dataclass(frozen=True)
class Flaw:
    """A reason not to train with these data, and the site it is about; None: several, or the server."""

    error: UserError
    site: str | None = None


@dataclass
class FederationData:
    """All sites of a run, what the server is judged on, and a plain account of what was used.

    With `flaws` it can be looked at, but not trained on: what is wrong was left out or taken for missing.
    """

    space: LabelSpace
    sites: dict[str, SiteData]
    input_shape: tuple[int, ...]
    test: tuple[Tensor, Tensor] | None = None
    unlabelled: Tensor | None = None  # the server's own inputs
    labelled: tuple[Tensor, Tensor] | None = None  # the server's own samples with their true classes
    test_source: str = "the server has no test data, so there are no global figures"
    notes: list[str] = field(default_factory=list)
    histogram: dict[str, dict[str, int]] | None = None
    partition: dict[str, Any] | None = None
    features: FeaturePlan | None = None  # how tables became features
    gaps: dict[str, dict[str, int]] = field(default_factory=dict)  # missing cells by site and column
    groups: list[str] = field(default_factory=list)  # of the sensitive attribute
    block: int | None = None  # the first of the features that are candidate groups; None: they are no features
    test_groups: tuple[Tensor, Tensor | None] | None = None  # of the server's test: candidates, true ones if known
    moments: dict[str, Moments] = field(default_factory=dict)  # by which sites' samples were scaled
    brightest: int = BRIGHTEST  # the value of a white pixel
    flaws: list[Flaw] = field(default_factory=list)

    def teller(self, site: str) -> Callable[[UserError], None]:
        """Return what puts an error of a site among the flaws."""
        return lambda error: self.flaws.append(Flaw(error, site))

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Put an error that is raised inside among the flaws, so that the rest can still be looked at."""
        try:
            yield
        except UserError as error:
            self.flaws.append(Flaw(error))

    def sound(self) -> FederationData:
        """Return these data, or raise the first of their flaws."""
        for flaw in self.flaws:
            raise flaw.error
        return self

    def judge_on(self, found: ServerTest | None) -> None:
        """Judge the global model on this test, or on none."""
        if found is None:
            self.test_source = "no true classes are known for a test, so there are no global figures"
            return
        self.test, self.test_source, self.test_groups = (found.x, found.truth), found.source, found.groups

    def add(self, site: SiteData, test: float) -> None:
        """Add a site, and note when it is too small for the test share asked for."""
        self.sites[site.name] = site
        if test > 0 and not len(site.test):
            self.notes.append(f"site '{site.name}' has {len(site.train)} samples only and keeps them all for training")


def split_dataset(
    dataset: Dataset,
    partition: Mapping[str, Any],
    view: ViewDeclaration,
    views: Mapping[str, ViewDeclaration],
    names: Sequence[str] | None,
    classes: Sequence[str] | None,
    seed: int,
    test: float = 0.2,
    samples: int | None = None,
    test_samples: int | None = None,
    standardise: str = "auto",
    clean: CleanPredictions | None = None,
    test_file: Path | None = None,
    unlabelled: int | None = None,
    labelled: PerClass | Path | None = None,
    unseen: int | Sequence[str] | None = None,
) -> FederationData:
    """Split one data set into sites and let each observe it through its view; `unseen` ones are the test."""
    space = _space(dataset, classes)
    dataset = _renamed(dataset, space)
    servers = (labelled if isinstance(labelled, PerClass) else None, unlabelled, space, seed)
    rows, taught, held, outside = dataset.train, None, None, None
    left = np.arange(len(rows))
    if unseen is None:
        taught, held, left = take_out(rows, left, *servers)
    left = _draw(left, samples, derive(seed, "samples"))
    rows = rows if len(left) == len(rows) else rows.take(left)
    parts = _parts(dataset, rows, partition, seed)
    site_names = _site_names(parts, names)
    dealt = len(site_names)
    for name in views:
        if name not in site_names:
            raise ConfigError(f"data.views: there is no site '{name}'; {did_you_mean(name, site_names)}")
    if unseen is not None:  # what the server holds is then of the sites that train, so these are dealt first
        parts, site_names, outside = set_sites_aside(parts, site_names, unseen, derive(seed, "unseen sites"))
        taught, held, left = take_out(rows, np.unique(np.concatenate(parts.parts)), *servers)
        parts = replace(parts, parts=[part[np.isin(part, left)] for part in parts.parts])
    scaled = standardise in ("site", "federation") or (
        standardise == "auto" and not dataset.images and not dataset.scaled
    )
    wanted = [views.get(name, view) for name in site_names]
    if partition["kind"] == "label-sets":
        wanted = [declared.for_label_sets() for declared in wanted]
    uses_clean = any(declared.needs_clean_model for declared in wanted)
    predictions = clean(replace(dataset, train=rows)) if uses_clean and clean else None

    result = FederationData(
        space,
        {},
        dataset.shape,
        notes=list(parts.notes),
        brightest=dataset.brightest,
        groups=list(dataset.groups),
        block=dataset.block,
    )
    if samples is not None and samples > len(rows):
        result.notes.append(f"data.samples asks for {samples}, but there are {len(rows)}; all are used")
    moments: list[Moments] = []
    observed: dict[str, Annotated] = {}
    for number, (name, declared) in enumerate(zip(site_names, wanted, strict=True)):
        part = rows.take(parts.parts[number])
        if declared.knows_own:
            own = parts.labels[number] if parts.labels else declared.occurring(label_arrays(part, space.names))
            declared = declared.with_known([space.names[c] for c in own] or None)
        chances = None if predictions is None else predictions[parts.parts[number]]
        rng = np.random.default_rng(derive(seed, "annotations", name))
        context = ViewContext(f"site '{name}'", dataset.groupings, result.teller(name))
        seen = observe(part, declared, space, context, chances, rng)
        if not len(seen.x):
            result.sound()  # a view that is wrong is the reason why it leaves out all samples
        observed[name] = seen
    block = dataset.block
    common = _common_moments(observed, test, seed, block) if standardise == "federation" else None
    for name, seen in observed.items():
        if seen.left_out:
            result.notes.append(f"site '{name}' leaves out {seen.left_out} samples of classes it does not know")
        site = _site(name, seen, test, derive(seed, "test", name), scaled, moments, common=common, block=block)
        result.add(site, test)
    result.moments = dict(zip(site_names, moments, strict=False))  # none at all where nothing was scaled
    used = parts.report(_classes(rows, dataset), space.names)
    if rows.y is None:
        used["histogram"] = None  # tags were dealt without looking at them
    result.partition = {"asked": dict(partition), "used": used}
    result.histogram = _histogram(result.sites, space)
    if held is not None:
        result.unlabelled = torch.from_numpy(apply_moments(held.x, pool_moments(moments) if scaled else None))
        result.notes.append(f"the server holds {len(held)} inputs without their labels, which no site has")
    if taught is not None and taught.y is not None:
        x = apply_moments(taught.x, pool_moments(moments) if scaled else None)
        result.labelled = torch.from_numpy(x), torch.from_numpy(taught.y)
        result.notes.append(f"the server holds {len(taught)} labelled samples, which no site has")
    elif isinstance(labelled, Path):
        with result.noting():
            found = read_server_file(labelled, result.input_shape, space, moments, "server.labelled", dataset.grouped)
            result.labelled = found.x, found.truth
    drawn = False
    if test_file is not None:
        with result.noting():
            grouped = dataset.grouped
            result.judge_on(read_server_file(test_file, result.input_shape, space, moments, "server.test", grouped))
    else:
        judged = dataset.test if outside is None else rows.take(outside)
        published = f"the published test part of {dataset.name}"
        source = published if outside is None else f"{dealt - len(site_names)} sites that do not train"
        picked = derive(seed, "test samples")
        outer = published_test(judged, result.sites, test_samples, picked, moments if scaled else (), source)
        result.judge_on(outer or pooled_test(result.sites))
        drawn = outer is not None
    if test_samples is not None and not drawn:
        result.notes.append("data.test_samples is not used: the test is not the published part of the data set")
    return result


def read_sites(
    files: Mapping[str, tuple[Path, ViewDeclaration, float]],
    classes: Sequence[str] | None,
    test_file: Path | None,
    seed: int,
    labelled: Path | None = None,
) -> FederationData:
    """Read sites that bring their own .npz files; each is scaled by its own training part.

    A file's own test part, where it marks one, is the site's; otherwise the share is drawn. Sites are read in the order
    of their names, so that the order in the experiment file changes nothing.
    """
    data = {name: read_arrays(path, f"site '{name}'") for name, (path, _, _) in sorted(files.items())}
    shapes = {dataset.shape for dataset in data.values()}
    if len(shapes) > 1:
        listed = ", ".join(f"{name}: {dataset.shape}" for name, dataset in data.items())
        raise DataError(f"the sites' samples differ in shape ({listed})")
    if classes is None:
        named = [d.labels for n, d in data.items() if view_class(files[n][1].kind).names_are_labels]
        classes = list(dict.fromkeys(label for labels in named for label in labels))
        if not classes:
            raise ConfigError("labels.classes is needed: no site's file names the classes of the federation")
    result = FederationData(LabelSpace(classes), {}, shapes.pop())
    moments: list[Moments] = []
    for name, file in data.items():
        path, declared, test = files[name]
        context = ViewContext(f"site '{name}', {path.name}", report=result.teller(name))
        seen = read_annotations(file.train, file.labels, declared, result.space, context)
        own = file.test
        held = None
        if own is not None:  # what is wrong with the view was told with the training part
            silent = replace(context, report=lambda error: None)
            held = read_annotations(own, file.labels, declared, result.space, silent)
        result.add(_site(name, seen, test, derive(seed, "test", name), not file.images, moments, held), test)
    result.moments = dict(zip(data, moments, strict=False))
    result.sites = {name: result.sites[name] for name in files}
    if test_file is not None:
        with result.noting():
            result.judge_on(read_server_file(test_file, result.input_shape, result.space, moments, "server.test"))
    if labelled is not None:
        with result.noting():
            found = read_server_file(labelled, result.input_shape, result.space, moments, "server.labelled")
            result.labelled = found.x, found.truth
    return result


def pool_sites(name: str, sites: Mapping[str, SiteData], space: LabelSpace, labels: str) -> SiteData:
    """Put all sites' training samples in one place, with their true classes or through their own views."""
    sites = dict(sorted(sites.items()))  # so that the order in which sites are listed changes nothing
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


def _site(
    name: str,
    seen: Annotated,
    test: float,
    seed: int,
    scaled: bool,
    moments: list[Moments],
    held: Annotated | None = None,
    common: Moments | None = None,
    block: int | None = None,
) -> SiteData:
    """Set a test share aside, or take the one `held` already, and scale both by the moments of what is left.

    `common` moments, of all sites together, are used instead of the site's own.
    """
    n = len(seen.x)
    if n == 0:
        known = ", ".join(seen.view.known or seen.view.space.names)
        left = f": all {seen.left_out} are of classes that it does not know (it knows {known})" if seen.left_out else ""
        raise DataError(f"site '{name}' has no samples{left}")
    test_rows, train_rows = _test_and_train_rows(n, test if held is None else 0.0, seed)
    fitted = (common or fit_moments(seen.x[train_rows], block)) if scaled else None
    if fitted is not None:
        moments.append(fitted)

    def part(of: Annotated, rows: Array) -> Samples:
        index = torch.from_numpy(rows)
        known = (None if values is None else values[index] for values in (of.truth, of.groups, of.group))
        return Samples(torch.from_numpy(apply_moments(of.x[rows], fitted)), of.target[index], *known)

    judged = part(seen, test_rows) if held is None else part(held, np.arange(len(held.x)))
    return SiteData(name, seen.view, part(seen, train_rows), judged)


def _test_and_train_rows(n: int, test: float, seed: int) -> tuple[Array, Array]:
    """Draw a site's test share; a site that is too small keeps all for training."""
    order = np.random.default_rng(seed).permutation(n)
    share = int(test * n) if n >= SMALLEST_WITH_TEST else 0
    return np.sort(order[:share]), np.sort(order[share:])


def _common_moments(observed: Mapping[str, Annotated], test: float, seed: int, block: int | None) -> Moments:
    """Return the moments of all sites' training rows together, from each site's own."""
    train = {n: _test_and_train_rows(len(seen.x), test, derive(seed, "test", n))[1] for n, seen in observed.items()}
    return pool_moments([fit_moments(seen.x[train[name]], block) for name, seen in observed.items()])


def _parts(dataset: Dataset, rows: Rows, partition: Mapping[str, Any], seed: int) -> Partition:
    ids = None
    if partition["kind"] == "natural":
        by = partition["by"]
        if by not in rows.columns:
            hint = did_you_mean(by, rows.columns)
            raise ConfigError(f"data.partition.by: '{dataset.name}' has no column '{by}'; {hint}")
        ids = rows.columns[by]
    classes = _classes(rows, dataset)
    if rows.y is None and partition["kind"] == "dirichlet" and rows.tags is not None:
        classes = tag_groups(rows.tags, derive(seed, "tag groups"))
    elif rows.y is None and partition["kind"] not in ("iid", "quantity", "natural"):
        dirichlet = ", dirichlet" if rows.tags is not None else ""
        raise ConfigError(
            f"data.partition: '{dataset.name}' has no true classes, so '{partition['kind']}' cannot deal them; "
            f"use iid, quantity{dirichlet} or natural"
        )
    groups = None
    if "coarse" in dataset.groupings and partition.get("level", "coarse") == "coarse":
        names = list(dataset.labels)
        groups = np.zeros(len(names), dtype=np.int64)
        for number, members in enumerate(dataset.groupings["coarse"].values()):
            groups[[names.index(m) for m in members]] = number
    rng = np.random.default_rng(derive(seed, "partition"))
    given = {key: value for key, value in partition.items() if key != "level"}
    try:
        return split(classes, given, rng, ids, groups)
    except PartitionError as error:
        raise PartitionError(f"data.partition: {error}") from None


def _classes(rows: Rows, dataset: Dataset) -> Array:
    """Return the true class of each row; data of tags only has none, and is split without looking at labels."""
    return np.zeros(len(rows), dtype=np.int64) if rows.y is None else rows.y


def _space(dataset: Dataset, classes: Sequence[str] | None) -> LabelSpace:
    if dataset.train.y is not None and (dataset.train.y < 0).any():
        raise DataError(f"'{dataset.name}': 'y' holds numbers below 0; a data set that is split needs every true class")
    if classes is None:
        if not dataset.labels:
            raise DataError(f"'{dataset.name}' has no labels: none of the arrays 'y', 'Y', 'candidates'")
        return LabelSpace(dataset.labels)
    if len(classes) != len(dataset.labels):
        few = ", ".join(dataset.labels[:12]) + (", …" if len(dataset.labels) > 12 else "")
        has = f"'{dataset.name}' has {len(dataset.labels)} labels: {few}"
        raise ConfigError(f"labels.classes has {len(classes)} names, but {has}")
    unnamed = dataset.labels == tuple(str(n) for n in range(len(dataset.labels)))
    for name in classes:
        if not unnamed and name not in dataset.labels:
            hint = did_you_mean(name, dataset.labels)
            raise ConfigError(f"labels.classes: '{dataset.name}' has no label '{name}'; {hint}")
    return LabelSpace(classes if unnamed else dataset.labels)


def _renamed(dataset: Dataset, space: LabelSpace) -> Dataset:
    """Return the data set with the federation's names for its labels, in its groupings too."""
    new = dict(zip(dataset.labels, space.names, strict=True))
    groupings = {
        name: {coarse: [new[label] for label in members] for coarse, members in groups.items()}
        for name, groups in dataset.groupings.items()
    }
    return replace(dataset, labels=space.names, groupings=groupings)


def _draw(rows: Array, samples: int | None, seed: int) -> Array:
    if samples is None or samples >= len(rows):
        return rows
    return rows[np.sort(np.random.default_rng(seed).permutation(len(rows))[:samples])]


def _site_names(parts: Partition, names: Sequence[str] | None) -> list[str]:
    number = len(parts.parts)
    if names is not None:
        if len(names) != number:
            raise ConfigError(f"data.names has {len(names)} names, but the partition makes {number} sites")
        return list(names)
    if parts.names is not None:
        return list(parts.names)
    width = len(str(number - 1))
    return [f"site-{i:0{width}d}" for i in range(number)]


def _histogram(sites: Mapping[str, SiteData], space: LabelSpace) -> dict[str, dict[str, int]] | None:
    counts = {}
    for name, site in sites.items():
        truth = site.train.truth
        if truth is None:
            return None
        by_class = torch.bincount(truth[truth >= 0], minlength=len(space)).tolist()
        counts[name] = dict(zip(space.names, by_class, strict=True))
    return counts
