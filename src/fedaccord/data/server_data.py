"""The server's own data: samples taken from a data set before it is split, and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.dataset import Array, Dataset, Grouped, Rows, from_arrays, read_npz
from fedaccord.data.declarations import PerClass, SiteFiles, Split
from fedaccord.data.merged_labels import merge_labels
from fedaccord.data.partition import Partition
from fedaccord.data.registry import existing
from fedaccord.data.site_data import ServerInputs, ServerTest, SiteData
from fedaccord.data.sites import FederationData, draw_rows, read_annotations
from fedaccord.errors import ConfigError, DataError, did_you_mean
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.synonyms import Renaming
from fedaccord.labels.views import ViewContext
from fedaccord.labels.views.exact import ExactView
from fedaccord.seeds import derive

UNLABELLED = "server.unlabelled"
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
        if unlabelled >= len(among):
            raise ConfigError(
                f"server.unlabelled asks for {unlabelled} of {len(among)} samples, so no site would have any"
            )
        taken, left = draw_rows(len(among), unlabelled, derive(seed, "unlabelled"))
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


def set_sites_aside(
    parts: Partition, names: list[str], unseen: int | Sequence[str], seed: int
) -> tuple[Partition, list[str], Array]:
    """Take out whole sites, by name or drawn; return the other sites, their names, and the rows taken out."""
    number = unseen if isinstance(unseen, int) else len(set(unseen))
    if number >= len(names):
        raise ConfigError(f"server.unseen asks for {number} of {len(names)} sites, so none would be left to train")
    if isinstance(unseen, int):
        away = draw_rows(len(names), number, seed)[0]
    else:
        for name in unseen:
            if name not in names:
                raise ConfigError(f"server.unseen: there is no site '{name}'; {did_you_mean(name, names)}")
        away = np.unique([names.index(name) for name in unseen])
    staying = np.setdiff1d(np.arange(len(names)), away)
    rows = np.sort(np.concatenate([parts.parts[i] for i in away]))
    note = f"the server is judged on {number} sites that do not train: " + ", ".join(names[i] for i in away)
    left = Partition(
        [parts.parts[i] for i in staying],
        np.sort(np.concatenate([parts.unused, rows])),
        None if parts.labels is None else [parts.labels[i] for i in staying],
        [*parts.notes, note],
        None if parts.names is None else [parts.names[i] for i in staying],
    )
    return left, [names[i] for i in staying], rows


def published_test(
    rows: Rows | None, result: FederationData, most: int | None, seed: int, source: str
) -> ServerTest | None:
    """Return a test of at most `most` of these rows, with true classes, or with tags if all sites have tags.

    Return None if the rows do not have them.
    """
    labels = None if rows is None else rows.tags if _all_tags(result.sites) else rows.y
    if rows is None or labels is None:
        return None
    picked = np.arange(len(rows)) if most is None else draw_rows(len(rows), most, seed)[0]
    groups = None
    if rows.groups is not None and rows.group is not None:
        groups = torch.from_numpy(rows.groups[picked]), torch.from_numpy(rows.group[picked])
    return ServerTest(result.scaled(rows.x[picked]), torch.from_numpy(labels[picked]), source, groups)


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


def add_server_files(
    result: FederationData,
    request: Split | SiteFiles,
    read: Callable[[Path, str], ServerTest],
    read_inputs: Callable[[Path, str], ServerInputs],
) -> None:
    """Add the server's files, if it has them: its test, its labelled samples and its inputs without labels."""
    if request.test_file is not None:
        with result.collecting_flaws():
            result.set_test(read(request.test_file, "server.test"))
    if isinstance(request.labelled, Path):
        with result.collecting_flaws():
            found = read(request.labelled, "server.labelled")
            result.labelled = found.x, found.truth
    if isinstance(request.unlabelled, Path):
        with result.collecting_flaws():
            inputs = read_inputs(request.unlabelled, UNLABELLED)
            result.set_unlabelled(inputs, UNLABELLED, f" from {request.unlabelled.name}")


def read_server_file(
    path: Path, where: str, result: FederationData, grouped: Grouped | None = None, names: Renaming | None = None
) -> ServerTest:
    """Read the server's samples and their classes from an .npz file; rows without a class are left out.

    A test file may mark its test rows. `grouped` adds groups in the same way as to the sites' rows, and `names` are the
    federation's names for the words of its labels.
    """
    file = merge_labels(read_arrays(path, where), names or {})
    rows = file.test if file.test is not None and where == "server.test" else file.train
    rows = _like_the_sites(rows, path, where, result, grouped)
    seen = read_annotations(rows, file.labels, ExactView(), result.space, ViewContext(f"{where}, {path.name}"))
    known = seen.part((seen.target >= 0).nonzero().flatten().numpy(), result.pooled_moments())
    groups = None if known.group is None else (known.group, known.group_truth)
    return ServerTest(known.x, known.target, f"the server's own test file, {path.name}", groups)


def read_server_inputs(path: Path, where: str, result: FederationData, grouped: Grouped | None = None) -> ServerInputs:
    """Read the server's inputs from an .npz file; its labels, if it has any, are not used."""
    rows = read_arrays(path, where).train
    x = result.scaled(_like_the_sites(rows, path, where, result, grouped).x)
    labels = {"y": rows.y, "Y": rows.tags, "candidates": rows.candidates}
    return ServerInputs(x, [f"array '{name}'" for name, values in labels.items() if values is not None])


def _like_the_sites(rows: Rows, path: Path, where: str, result: FederationData, grouped: Grouped | None = None) -> Rows:
    """Return rows of the server with the sites' features; raise DataError if their shape differs."""
    if grouped is not None:
        rows = grouped(rows, where)
    found, shape = rows.x.shape[1:], result.input_shape
    if found != shape:
        raise DataError(f"{where}: the samples of '{path}' have shape {found}, the sites' have {shape}")
    return rows


def check_apart_from_test(samples: Tensor | None, test: tuple[Tensor, Tensor] | None, where: str) -> list[str]:
    """Raise DataError if most of the server's own samples are in its test; return a note if some may be.

    In a table of few distinct values two people can have the same features, so some equal rows prove nothing.
    """
    if samples is None or test is None:
        return []
    tested = {row.tobytes() for row in test[0].numpy()}
    common = [row for row, x in enumerate(samples.numpy()) if x.tobytes() in tested]
    overlap = f"{where}: {len(common)} of its {len(samples)} samples are in the server's test data too"
    if 2 * len(common) > len(samples):
        raise DataError(f"{overlap}, so the model would be judged on what it learned from; take them out of one")
    if common:
        which = f"by all features (the first is number {common[0] + 1})"
        return [f"{overlap} {which}; if they are the same samples, remove them from one"]
    return []
