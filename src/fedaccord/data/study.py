"""From one data set to a federation: deal its samples to sites, and let each site observe them through its view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedaccord.data.dataset import Array, Dataset, Rows
from fedaccord.data.declarations import PerClass, Split
from fedaccord.data.merged_labels import merge_labels
from fedaccord.data.partition import Partition, split
from fedaccord.data.scaling import fit_moments
from fedaccord.data.server_data import (
    add_server_files,
    pooled_test,
    published_test,
    read_server_file,
    read_server_inputs,
    set_sites_aside,
    take_out,
)
from fedaccord.data.site_data import SiteData
from fedaccord.data.sites import (
    Annotated,
    FederationData,
    draw_rows,
    draw_test_rows,
    label_arrays,
    make_site,
    observe,
    refuse_empty,
)
from fedaccord.errors import ConfigError, DataError, PartitionError, did_you_mean, listed
from fedaccord.labels.correlation import k_means
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.synonyms import Renaming, renaming
from fedaccord.labels.views import ViewContext, ViewDeclaration
from fedaccord.seeds import derive

FEW_TAGS = 20  # up to this number a row's group is its rarest tag
CLUSTERS = 12  # if there are more tags


def split_dataset(dataset: Dataset, request: Split) -> FederationData:
    """Split one data set into sites, and let each observe it through its view."""
    names = renaming(request.synonyms)
    dataset = merge_labels(dataset, names)
    space = _space(dataset, request.classes)
    dataset = _renamed(dataset, space)
    dealt = _deal(dataset, space, request)
    result = FederationData(
        space,
        {},
        dataset.shape,
        notes=list(dealt.parts.notes),
        brightest=dataset.brightest,
        groups=list(dataset.groups),
        group_features=dataset.group_features,
        standardise=request.standardise,
    )
    if request.samples is not None and request.samples > len(dealt.rows):
        result.notes.append(f"data.samples asks for {request.samples}, but there are {len(dealt.rows)}; all are used")
    _add_sites(result, _observe(result, dataset, dealt, request), dataset, request)
    used = dealt.parts.report(dealt.rows.y, space.names)
    result.partition = {"asked": dict(request.partition), "used": used}
    result.histogram = _histogram(result.sites, space)
    _add_server_data(result, dataset, dealt, request, names)
    return result


@dataclass(frozen=True)
class _Dealt:
    """The rows that sites share, how they are dealt, and which rows the server takes."""

    rows: Rows
    parts: Partition
    names: list[str]  # of the sites that train
    labelled: Rows | None = None  # at the server
    unlabelled: Rows | None = None  # at the server
    unseen: Array | None = None  # rows of sites that do not train
    unseen_sites: int = 0


def _deal(dataset: Dataset, space: LabelSpace, request: Split) -> _Dealt:
    rows, seed = dataset.train, request.seed
    per_class = request.labelled if isinstance(request.labelled, PerClass) else None
    number = request.unlabelled if isinstance(request.unlabelled, int) else None
    server = (per_class, number, space, seed)
    labelled = unlabelled = unseen = None
    left = np.arange(len(rows))
    if request.unseen is None:
        labelled, unlabelled, left = take_out(rows, left, *server)
    if request.samples is not None:
        left = left[draw_rows(len(left), request.samples, derive(seed, "samples"))[0]]
    rows = rows if len(left) == len(rows) else rows.take(left)
    parts = _partition(dataset, rows, request.partition, seed)
    names = _site_names(parts, request.names)
    number = len(names)
    for name in request.views:
        if name not in names:
            raise ConfigError(f"data.views: there is no site '{name}'; {did_you_mean(name, names)}")
    if request.unseen is not None:  # the server takes its samples from the sites that train, so sites are dealt first
        parts, names, unseen = set_sites_aside(parts, names, request.unseen, derive(seed, "unseen sites"))
        labelled, unlabelled, left = take_out(rows, np.unique(np.concatenate(parts.parts)), *server)
        parts = replace(parts, parts=[part[np.isin(part, left)] for part in parts.parts])
    return _Dealt(rows, parts, names, labelled, unlabelled, unseen, number - len(names))


def _observe(result: FederationData, dataset: Dataset, dealt: _Dealt, request: Split) -> dict[str, Annotated]:
    """Return each site's samples through its view."""
    views = _declared_views(dealt, request, result.space)
    predictions: Array | None = None
    if request.clean is not None and any(declared.needs_clean_model for declared in views):
        predictions = request.clean(replace(dataset, train=dealt.rows))
    observed = {}
    for name, declared, rows in zip(dealt.names, views, dealt.parts.parts, strict=True):
        chances = None if predictions is None else predictions[rows]
        rng = np.random.default_rng(derive(request.seed, "annotations", name))
        context = ViewContext(f"site '{name}'", dataset.groupings, result.flaw_collector(name))
        seen = observe(dealt.rows.take(rows), declared, result.space, context, chances, rng)
        if not len(seen.rows):
            result.without_flaws()  # a wrong view is the reason why it leaves out all samples
        observed[name] = seen
    return observed


def _declared_views(dealt: _Dealt, request: Split, space: LabelSpace) -> list[ViewDeclaration]:
    """Return each site's view; a site that knows its own labels knows those it was dealt."""
    views = [request.views.get(name, request.view) for name in dealt.names]
    names = renaming(request.synonyms)
    if request.partition["kind"] == "label-sets":
        views = [declared.for_label_sets() for declared in views]
    for number, declared in enumerate(views):
        views[number] = declared = declared.renamed(names)
        if not declared.knows_own:
            continue
        if dealt.parts.labels:
            own: Sequence[int] = dealt.parts.labels[number]
        else:
            part = dealt.rows.take(dealt.parts.parts[number])
            own = declared.occurring(label_arrays(part, space.names)).tolist()
        views[number] = declared.with_known([space.names[c] for c in own] or None)
    return views


def _add_sites(result: FederationData, observed: Mapping[str, Annotated], dataset: Dataset, request: Split) -> None:
    """Add all sites, each with its test share, standardised."""
    for name, seen in observed.items():
        refuse_empty(name, seen)
    rows = {
        name: draw_test_rows(len(seen.rows), request.test, derive(request.seed, "test", name))
        for name, seen in observed.items()
    }
    if request.scales(dataset):
        first = dataset.group_features
        result.moments = {name: fit_moments(seen.rows.x[rows[name][1]], first) for name, seen in observed.items()}
    scaling = result.scaling()
    for name, seen in observed.items():
        if seen.left_out:
            result.notes.append(f"site '{name}' leaves out {seen.left_out} samples of classes it does not know")
        result.add(make_site(name, seen, *rows[name], scaling.get(name)), request.test)


def _add_server_data(result: FederationData, dataset: Dataset, dealt: _Dealt, request: Split, names: Renaming) -> None:
    """Add the server's samples and its test: a file, published test rows, unseen sites, or the sites' own test rows."""
    if dealt.unlabelled is not None:
        result.unlabelled = result.scaled(dealt.unlabelled.x)
        number = len(dealt.unlabelled)
        result.notes.append(f"the server holds {number} inputs without their labels, which no site has")
    if dealt.labelled is not None and dealt.labelled.y is not None:
        result.labelled = result.scaled(dealt.labelled.x), torch.from_numpy(dealt.labelled.y)
        result.notes.append(f"the server holds {len(dealt.labelled)} labelled samples, which no site has")
    read = partial(read_server_file, result=result, grouped=dataset.grouped, names=names)
    add_server_files(result, request, read, partial(read_server_inputs, result=result, grouped=dataset.grouped))
    judged = None
    if request.test_file is None:
        rows, source = dataset.test, f"the published test part of {dataset.name}"
        if dealt.unseen is not None:
            rows, source = dealt.rows.take(dealt.unseen), f"{dealt.unseen_sites} sites that do not train"
        judged = published_test(rows, result, request.test_samples, derive(request.seed, "test samples"), source)
        result.set_test(judged or pooled_test(result.sites))
    if request.test_samples is not None and judged is None:
        result.notes.append("data.test_samples is not used: the test is not the published part of the data set")


def _partition(dataset: Dataset, rows: Rows, partition: Mapping[str, Any], seed: int) -> Partition:
    ids = None
    if partition["kind"] == "natural":
        by = partition["by"]
        if by not in rows.columns:
            hint = did_you_mean(by, rows.columns)
            raise ConfigError(f"data.partition.by: '{dataset.name}' has no column '{by}'; {hint}")
        ids = rows.columns[by]
    classes = np.zeros(len(rows), dtype=np.int64) if rows.y is None else rows.y
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


def _space(dataset: Dataset, classes: Sequence[str] | None) -> LabelSpace:
    if dataset.train.y is not None and (dataset.train.y < 0).any():
        raise DataError(f"'{dataset.name}': 'y' holds numbers below 0; a data set that is split needs every true class")
    if classes is None:
        if not dataset.labels:
            raise DataError(f"'{dataset.name}' has no labels: none of the arrays 'y', 'Y', 'candidates'")
        return LabelSpace(dataset.labels)
    if len(classes) != len(dataset.labels):
        few = listed(dataset.labels, quotes=False, most=12)
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


def tag_groups(tags: Array, seed: int) -> Array:
    """Return a group for each row by which a partition can deal tags: its rarest tag, or its k-means cluster if many.

    Rows without any tag form another group.
    """
    present = tags == 1
    if tags.shape[1] <= FEW_TAGS:
        counts = present.sum(0)
        rank = np.argsort(np.argsort(counts, kind="stable"), kind="stable")
        rarest = np.where(present, rank, tags.shape[1]).argmin(1)
        return np.where(present.any(1), rarest, tags.shape[1]).astype(np.int64)
    length = np.sqrt(present.sum(1, keepdims=True)).clip(min=1)
    found = k_means(torch.from_numpy(present / length), CLUSTERS, seed, restarts=1).numpy()
    return np.where(present.any(1), found, CLUSTERS).astype(np.int64)
