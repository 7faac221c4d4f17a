"""Sites that bring tables: features agreed between them, labels read through each site's view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaccord.data.annotate import declared_view
from fedaccord.data.declarations import Features, SiteSection
from fedaccord.data.features import ColumnReport, FeaturePlan, agree, describe_columns
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.sites import SMALLEST_WITH_TEST, FederationData
from fedaccord.data.tables import Cells, Table, read_table, report_cells
from fedaccord.errors import ConfigError, DataError
from fedaccord.labels.declarations import AnyView, CoarseView, ExactView
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, Exact, Tags, View
from fedaccord.seeds import derive

Index = NDArray[np.int64]
SEPARATORS = {"candidates": "|", "tags": ";"}


@dataclass(frozen=True)
class _Read:
    """A site's table, its declaration, and which of its rows train and test."""

    section: SiteSection
    table: Table
    train: Index
    test: Index


def read_table_sites(
    sections: Sequence[SiteSection], features: Features, base: Path, classes: Sequence[str] | None,
    test_file: Path | None, test_label: str | None, seed: int,
) -> FederationData:  # fmt: skip
    """Read sites from .csv and .parquet files; relative paths start from `base`."""
    reads = {section.name: _read(section, features, base, seed) for section in sorted(sections, key=lambda s: s.name)}
    plan = _plan(reads, features)
    space = LabelSpace(classes if classes is not None else _classes(reads, features.missing))
    result = FederationData(space, {}, (len(plan.names),), features=plan)
    for name, read in reads.items():
        x, gaps = plan.encode(read.table)
        view = declared_view(read.section.view, space, {}, f"site '{name}'")
        target = read_labels(read.table, read.section, view, features.missing)
        groups = _groups(read, reads, features.missing, result)
        result.gaps[name] = gaps
        result.add(_site(read, view, x, target, groups), read.section.test)
    result.sites = {section.name: result.sites[section.name] for section in sections}
    if test_file is not None:
        result.test = _server_test(test_file, test_label, sections, features, plan, space)
        result.test_source = f"the server's own test file, {test_file.name}"
    return result


def read_labels(table: Table, section: SiteSection, view: View, missing: Sequence[str]) -> Tensor:
    """Read a table's annotations through a view: one column, or for tags one 0/1 column for each tag."""
    if section.label is None:
        return view.encode([None] * table.rows)
    if isinstance(section.label, list):
        if not isinstance(view, Tags):
            raise ConfigError(f"site '{section.name}': several label columns are for a view of tags")
        return _tag_columns(table, section.label, view, missing)
    cells = table.column(section.label)
    where = f"'{table.path.name}', column '{section.label}'"
    return view.encode([None if cell in missing else cell for cell in cells], where, first=table.first_row)


def _read(section: SiteSection, features: Features, base: Path, seed: int) -> _Read:
    table = read_table(base / section.data, section.header or features.header)
    order = np.random.default_rng(derive(seed, "test", section.name)).permutation(table.rows)
    share = int(section.test * table.rows) if table.rows >= SMALLEST_WITH_TEST else 0
    if section.label is None and section.view.kind != "unlabelled":
        raise ConfigError(f"site '{section.name}': the key 'label' is missing; it names the label column")
    return _Read(section, table, np.sort(order[share:]), np.sort(order[:share]))


def feature_columns(section: SiteSection, features: Features, table: Table) -> list[str]:
    """Return the columns of a table that are features: those asked for, or all that are nothing else."""
    asked = features.asked()
    if asked:
        for name in asked:
            table.column(name)
        return asked
    label = [section.label] if isinstance(section.label, str) else section.label or []
    other = {*label, *features.ignore, section.sensitive}
    return [name for name in table.columns if name not in other]


def _plan(reads: Mapping[str, _Read], features: Features) -> FeaturePlan:
    columns = {name: feature_columns(read.section, features, read.table) for name, read in reads.items()}
    first, wanted = next(iter(columns.items()))
    for name, found in columns.items():
        missing = [c for c in wanted if c not in found] + [c for c in found if c not in wanted]
        if missing:
            raise DataError(
                f"sites '{first}' and '{name}' do not have the same feature columns (they differ in "
                + ", ".join(f"'{c}'" for c in missing[:5])
                + "); name the common ones in features.numbers and features.categories, or others in features.ignore"
            )
    # What the experiment file gives is not reported by the sites at all.
    told = [c for c in wanted if c not in {*features.given_numbers(), *features.given_categories(), *features.text}]
    numbers, words = features.number_names(), features.category_names()
    reports: dict[str, Mapping[str, ColumnReport]] = {
        name: describe_columns(read.table, told, features.missing, read.train, numbers, words)
        for name, read in reads.items()
    }
    return agree(
        reports, features.missing, features.given_numbers(), features.given_categories(), features.text,
        features.text_width, features.scale == "federation", words, wanted,
    )  # fmt: skip


def _site(read: _Read, view: View, x: NDArray[np.float32], target: Tensor, groups: Tensor | None) -> SiteData:
    def part(rows: Index) -> Samples:
        index = torch.from_numpy(rows)
        truth = target[index] if isinstance(view, Exact) else None
        return Samples(torch.from_numpy(x[rows]), target[index], truth, None if groups is None else groups[index])

    return SiteData(read.section.name, view, part(read.train), part(read.test))


def _classes(reads: Mapping[str, _Read], missing: Sequence[str]) -> list[str]:
    """Return the label names the sites' files and correspondences use; numbers in their own order."""
    names: set[str] = set()
    for read in reads.values():
        view, label = read.section.view, read.section.label
        if isinstance(view, CoarseView) and not isinstance(view.correspondence, str):
            names |= {name for members in view.correspondence.values() for name in members}
        elif isinstance(label, list):
            names |= set(label)
        elif label is not None and view.kind in ("exact", "candidates", "tags"):
            cells = [cell for cell in read.table.column(label) if cell not in missing]
            separator = SEPARATORS.get(view.kind)
            parts = [part.strip() for cell in cells for part in (cell.split(separator) if separator else [cell])]
            names |= {part for part in parts if part}
    if not names:
        raise ConfigError("labels.classes is needed: no site's file names the classes of the federation")
    return sorted(names, key=_natural)


def _natural(name: str) -> tuple[int, float, str]:
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


def _tag_columns(table: Table, columns: Sequence[str], view: Tags, missing: Sequence[str]) -> Tensor:
    target = torch.full((table.rows, len(view.space)), -1, dtype=torch.int8)
    problems = []
    values = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}
    for name in columns:
        column = view.space.column(name, f"'{table.path.name}'")
        for row, cell in enumerate(table.column(name)):
            if cell in missing:
                continue
            if str(cell).lower() not in values:
                problems.append(f"line {table.line(row)}, column '{name}': '{cell}' is not 0 or 1")
            else:
                target[row, column] = values[str(cell).lower()]
    report_cells(f"'{table.path.name}' has cells that cannot be read", problems)
    return target.masked_fill(~view.informs(), -1)


def _groups(read: _Read, reads: Mapping[str, _Read], missing: Sequence[str], result: FederationData) -> Tensor | None:
    """Read the sensitive column as candidate groups, bool (rows, groups); a missing value may be any."""
    if read.section.sensitive is None:
        return None
    if not result.groups:
        cells = [c for r in reads.values() if r.section.sensitive for c in r.table.column(r.section.sensitive)]
        names = {part.strip() for cell in cells if cell not in missing for part in cell.split("|")}
        result.groups = sorted(names - {""}, key=_natural)
    view = Candidates(LabelSpace(result.groups))
    column: Cells = read.table.column(read.section.sensitive)
    where = f"'{read.table.path.name}', column '{read.section.sensitive}'"
    return view.encode([None if cell in missing else cell for cell in column], where, first=read.table.first_row)


def _server_test(
    path: Path, label: str | None, sections: Sequence[SiteSection], features: Features, plan: FeaturePlan,
    space: LabelSpace,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    exact = next((s.label for s in sections if s.view.kind == "exact" and isinstance(s.label, str)), None)
    column = label or exact
    if column is None:
        raise ConfigError("server.label is needed: it names the column of true classes in server.test")
    table = read_table(path, features.header)
    x, _ = plan.encode(table)
    declared: AnyView = ExactView(kind="exact")
    section = SiteSection(name="server.test", data=str(path), label=column, view=declared)
    return torch.from_numpy(x), read_labels(table, section, Exact(space), features.missing)
