"""The server's own data: samples taken from a data set before it is split, and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.annotate import read_annotations
from fedaccord.data.dataset import Array, Dataset, Grouped, Rows, from_arrays, read_npz
from fedaccord.data.declarations import PerClass
from fedaccord.data.partition import Partition
from fedaccord.data.registry import existing
from fedaccord.data.scaling import Moments, apply_moments, pool_moments
from fedaccord.data.site_data import SiteData
from fedaccord.errors import ConfigError, DataError, did_you_mean
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import ViewContext
from fedaccord.labels.views.exact import ExactView
from fedaccord.seeds import derive

POOLED_TEST = "the pool of the sites' own test parts, which only a study can see together"


def take_out(
    rows: Rows, among: Array, labelled: PerClass | None, unlabelled: int | None, space: LabelSpace, seed: int
) -> tuple[Rows | None, Rows | None, Array]:
    """Return the server's labelled rows, its unlabelled rows, and the indices that are left of `among`.

    `among` excludes sites that do not train: their samples are the test.
    """
    with_labels = without_labels = None
    if labelled is not None:
        classes = None if rows.y is None else rows.y[among]
        taken, left = per_class(classes, labelled, space, derive(seed, "labelled"))
        with_labels, among = rows.take(among[taken]), among[left]
    if unlabelled is not None:
        taken, left = set_aside(len(among), unlabelled, derive(seed, "unlabelled"))
        without_labels, among = rows.take(among[taken]), among[left]
    return with_labels, without_labels, among


def per_class(classes: Array | None, wanted: PerClass, space: LabelSpace, seed: int) -> tuple[Array, Array]:
    """Return the rows of the server's labelled samples of each class, and the other rows without the reserve.

    The seed fixes one order of each class, so that a smaller number of samples is a subset of a larger one.
    """
    if classes is None:
        raise ConfigError("server.labelled takes true classes, and the data set has none")
    reserved = wanted.reserve or wanted.per_class
    order = np.random.default_rng(seed).permutation(len(classes))
    taken, away = [], []
    for column, name in enumerate(space):
        of_class = order[classes[order] == column]
        if len(of_class) < reserved:
            raise ConfigError(f"server.labelled asks for {reserved} samples of '{name}', and there are {len(of_class)}")
        taken.append(of_class[: wanted.per_class])
        away.append(of_class[:reserved])
    rest = np.setdiff1d(np.arange(len(classes)), np.concatenate(away))
    if not len(rest):
        raise ConfigError("server.labelled takes every sample, so no site would have any")
    return np.sort(np.concatenate(taken)), rest


def set_aside(rows: int, number: int, seed: int) -> tuple[Array, Array]:
    """Return the `number` of `rows` that the server takes without labels, and the rest for the sites."""
    if number >= rows:
        raise ConfigError(f"server.unlabelled asks for {number} of {rows} samples, so no site would have any")
    order = np.random.default_rng(seed).permutation(rows)
    return np.sort(order[:number]), np.sort(order[number:])


def set_sites_aside(
    parts: Partition, names: list[str], unseen: int | Sequence[str], seed: int
) -> tuple[Partition, list[str], Array]:
    """Take out whole sites, by name or drawn; return the other sites, their names, and the rows taken out."""
    number = unseen if isinstance(unseen, int) else len(set(unseen))
    if number >= len(names):
        raise ConfigError(f"server.unseen asks for {number} of {len(names)} sites, so none would be left to train")
    if isinstance(unseen, int):
        away = np.sort(np.random.default_rng(seed).permutation(len(names))[:number])
    else:
        for name in unseen:
            if name not in names:
                raise ConfigError(f"server.unseen: there is no site '{name}'; {did_you_mean(name, names)}")
        away = np.unique([names.index(name) for name in unseen])
    staying = np.setdiff1d(np.arange(len(names)), away)
    rows = np.sort(np.concatenate([parts.parts[i] for i in away]))
    left = replace(
        parts,
        parts=[parts.parts[i] for i in staying],
        unused=np.sort(np.concatenate([parts.unused, rows])),
        labels=None if parts.labels is None else [parts.labels[i] for i in staying],
        notes=[
            *parts.notes,
            f"the server is judged on {number} sites that do not train: " + ", ".join(names[i] for i in away),
        ],
        names=None if parts.names is None else [parts.names[i] for i in staying],
    )
    return left, [names[i] for i in staying], rows


@dataclass(frozen=True)
class ServerTest:
    """The test of the global model: inputs, true classes or tags, their source, and their groups if known."""

    x: Tensor
    truth: Tensor
    source: str
    groups: tuple[Tensor, Tensor | None] | None = None  # candidate groups, and the true ones if known


def published_test(
    rows: Rows | None,
    sites: Mapping[str, SiteData],
    most: int | None,
    seed: int,
    moments: Sequence[Moments],
    source: str,
) -> ServerTest | None:
    """Return a test of at most `most` of these rows, with true classes, or with tags if all sites have tags.

    Return None if the rows do not have them.
    """
    labels = None if rows is None else rows.tags if _all_tags(sites) else rows.y
    if rows is None or labels is None:
        return None
    picked = np.arange(len(rows))
    if most is not None and most < len(rows):
        picked = np.sort(np.random.default_rng(seed).permutation(len(rows))[:most])
    x = apply_moments(rows.x[picked], pool_moments(moments) if moments else None)
    groups = None
    if rows.groups is not None and rows.group is not None:
        groups = torch.from_numpy(rows.groups[picked]), torch.from_numpy(rows.group[picked])
    return ServerTest(torch.from_numpy(x), torch.from_numpy(labels[picked]), source, groups)


def pooled_test(sites: Mapping[str, SiteData]) -> ServerTest | None:
    """Return the test rows of all sites, with their true classes or tags; None if these are unknown."""
    tags = _all_tags(sites)
    parts = [(s.test, s.test.target if tags else s.test.truth) for s in sites.values() if len(s.test)]
    known = [(part, truth) for part, truth in parts if truth is not None]
    if not known:
        return None
    sets = [part.group for part, _ in known if part.group is not None]
    true = [part.group_truth for part, _ in known if part.group_truth is not None]
    groups = (torch.cat(sets), torch.cat(true)) if len(sets) == len(true) == len(known) else None
    x, truth = torch.cat([part.x for part, _ in known]), torch.cat([truth for _, truth in known])
    return ServerTest(x, truth, POOLED_TEST, groups)


def _all_tags(sites: Mapping[str, SiteData]) -> bool:
    return not any(site.view.one_label for site in sites.values())


def read_arrays(path: Path, where: str) -> Dataset:
    """Read an .npz file of samples; `where` is its place for messages."""
    return from_arrays(read_npz(existing(path, where), where), str(path))


def read_server_file(
    path: Path,
    shape: tuple[int, ...],
    space: LabelSpace,
    moments: Sequence[Moments],
    where: str,
    grouped: Grouped | None = None,
) -> ServerTest:
    """Read the server's samples and their classes from an .npz file; rows without a class are left out.

    They are scaled by the pooled moments of all sites' training rows. A test file may mark its test rows. `grouped`
    adds groups in the same way as to the sites' rows.
    """
    file = read_arrays(path, where)
    rows = file.test if file.test is not None and where == "server.test" else file.train
    if grouped is not None:
        rows = grouped(rows, where)
    found = rows.x.shape[1:]
    if found != shape:
        raise DataError(f"{where}: the samples of '{path}' have shape {found}, the sites' have {shape}")
    seen = read_annotations(rows, file.labels, ExactView(), space, ViewContext(f"{where}, {path.name}"))
    x = torch.from_numpy(apply_moments(seen.x, pool_moments(moments) if moments else None))
    known = seen.target >= 0
    groups = None
    if seen.groups is not None:
        groups = seen.groups[known], None if seen.group is None else seen.group[known]
    return ServerTest(x[known], seen.target[known], f"the server's own test file, {path.name}", groups)


def check_apart_from_test(
    labelled: tuple[Tensor, Tensor] | None, test: tuple[Tensor, Tensor] | None, where: str
) -> list[str]:
    """Raise DataError if most labelled samples of the server are in its test; return a note if some may be.

    In a table of few distinct values two people can have the same features, so some equal rows prove nothing.
    """
    if labelled is None or test is None:
        return []
    tested = {row.tobytes() for row in test[0].numpy()}
    common = [row for row, x in enumerate(labelled[0].numpy()) if x.tobytes() in tested]
    overlap = f"{where}: {len(common)} of its {len(labelled[0])} samples are in the server's test data too"
    if 2 * len(common) > len(labelled[0]):
        raise DataError(f"{overlap}, so the model would be judged on what it learned from; take them out of one")
    if common:
        return [f"{overlap} by all features (the first is number {common[0] + 1}); if that is no chance, take them out"]
    return []
