"""Sites that bring tables: features agreed between them, labels read through each site's view.

Sites with images have a table of labels, which is read in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedaccord.data.declarations import Features, SiteFiles, SiteSection
from fedaccord.data.features import ColumnPlan, FeaturePlan, agree, cells_of_other_kind, describe_columns, mixed_kinds
from fedaccord.data.server_data import add_server_files
from fedaccord.data.site_data import Samples, ServerTest, SiteData
from fedaccord.data.sites import FederationData, Flaw, draw_test_rows
from fedaccord.data.tables import Table, by_value, cells_error, natural, read_table, report_cells
from fedaccord.errors import AnnotationError, ConfigError, DataError
from fedaccord.labels.space import LabelSpace, plain
from fedaccord.labels.views import (
    NOT_ANNOTATED,
    Candidates,
    Exact,
    View,
    ViewContext,
    ViewDeclaration,
    build_view,
    view_class,
)
from fedaccord.seeds import derive

Index = NDArray[np.int64]
# Features of a table, the number of missing cells by column, and sentences on wrong cells.
Encoded = tuple[NDArray[np.float32], dict[str, int], list[str]]
Encoder = Callable[[Table], Encoded]


@dataclass(frozen=True)
class SiteTable:
    """A site's table, its declaration, and its training and test rows."""

    section: SiteSection
    table: Table
    train: Index
    test: Index

    @property
    def labels(self) -> list[str]:
        """The label columns."""
        label = self.section.label
        return [label] if isinstance(label, str) else list(label or [])


def read_table_sites(request: SiteFiles) -> FederationData:
    """Read sites from .csv and .parquet files."""
    features = request.features
    sites = {}
    for name, section in request.by_name().items():
        header = section.header or features.header
        table = read_table(request.path(section), header, f"site '{name}'", section.data, section.read)
        sites[name] = set_test_aside(section, table, request.seed)
    result = join_tables(sites, request)

    def read(path: Path, where: str) -> ServerTest:
        table = read_table(path, features.header, where, read=request.server_read)
        result.remember_reading(where, table)
        return read_server_table(table, sites, request, result, where)

    add_server_files(result, request.test_file, request.labelled, read)
    return result


def join_tables(sites: Mapping[str, SiteTable], request: SiteFiles) -> FederationData:
    """Return a federation of sites with tables, whose features they agree on."""
    features = request.features
    plan, mixed = _plan(sites, features)
    group_features = len(plan.names) if request.groups_as_input else None
    if request.groups_as_input:
        groups = _group_column(sites, features.missing, request.normalise_groups)
        plan = plan.model_copy(update={"columns": (*plan.columns, groups)})
    result = assemble(sites, request, (len(plan.names),), plan.read)
    result.flaws = [*map(Flaw, mixed), *result.flaws]
    result.features, result.group_features = plan, group_features
    return result


def read_server_table(
    table: Table, sites: Mapping[str, SiteTable], request: SiteFiles, result: FederationData, where: str
) -> ServerTest:
    """Return features and classes of a table of the server, encoded like the tables of the sites."""
    assert result.features is not None
    encode = partial(result.features.read, closed=False)
    return read_true_classes(table, sites, request, result.space, encode, where)


def _group_column(sites: Mapping[str, SiteTable], missing: Sequence[str], normalise: bool) -> ColumnPlan:
    """Return the plan for the sensitive column as features; every site must have it, by the same name."""
    names = {name: site.section.sensitive for name, site in sites.items()}
    for name, column in names.items():
        if column is None or column != next(iter(names.values())):
            problem = "names no sensitive column" if column is None else f"calls it '{column}'"
            raise ConfigError(
                f"fairness.input: every site needs the same sensitive column, and site '{name}' {problem}; "
                "set input = false to keep groups out of the model"
            )
    first = next(iter(names.values()))
    assert first is not None
    return ColumnPlan(name=first, kind="groups", values=tuple(group_names(sites, missing)), normalise=normalise)


def feature_columns(site: SiteTable, features: Features, taken: Sequence[str] = ()) -> list[str]:
    """Return the feature columns: those in `[features]`, or all that are not `taken` for something else."""
    other = {*site.labels, site.section.sensitive}
    asked = features.asked()
    for name in asked:
        if name in other:
            what = "label" if name in site.labels else "sensitive column"
            raise ConfigError(f"site '{site.section.name}': '{name}' is its {what}, so [features] cannot name it")
        site.table.column(name)
    return asked or [name for name in site.table.columns if name not in {*other, *taken, *features.ignore}]


def _plan(sites: Mapping[str, SiteTable], features: Features) -> tuple[FeaturePlan, list[DataError]]:
    """Return the common features, and an error for each column that holds numbers at some sites and words at others."""
    # The label or sensitive column of one site is not a feature of any other.
    taken = [c for site in sites.values() for c in (*site.labels, site.section.sensitive) if c is not None]
    columns = {name: feature_columns(site, features, taken) for name, site in sites.items()}
    first, wanted = next(iter(columns.items()))
    for name, found in columns.items():
        differing = [c for c in wanted if c not in found] + [c for c in found if c not in wanted]
        if differing:
            raise DataError(
                f"sites '{first}' and '{name}' do not have the same feature columns (they differ in "
                + ", ".join(f"'{c}'" for c in differing[:5])
                + "); name the common ones in features.numbers and features.categories, or others in features.ignore"
            )
    # Sites do not report columns that the experiment file describes.
    reported = [c for c in wanted if c not in {*features.given_numbers(), *features.given_categories(), *features.text}]
    reports = {name: describe_columns(site.table, reported, site.train, features) for name, site in sites.items()}
    tables = {name: site.table for name, site in sites.items()}
    mixed = {
        column: cells_error(cells_of_other_kind(column, tables, reports, features.missing), f"{problem}: ")
        for column, problem in mixed_kinds(reports).items()
    }
    if mixed and len(mixed) == len(wanted):  # labels can be checked without features
        return FeaturePlan(columns=(), missing=tuple(features.missing)), list(mixed.values())
    clear = {name: {c: r for c, r in report.items() if c not in mixed} for name, report in reports.items()}
    return agree(clear, features, [column for column in wanted if column not in mixed]), list(mixed.values())


def set_test_aside(section: SiteSection, table: Table, seed: int) -> SiteTable:
    """Draw a site's test rows; raise ConfigError for a declaration that does not fit a table."""
    where, view = f"site '{section.name}'", section.view
    if section.label is None and view.needs_label:
        raise ConfigError(f"{where}: the key 'label' is missing; it names the label column")
    if isinstance(section.label, list) and not view_class(view.kind).takes_columns:
        raise ConfigError(f"{where}: several label columns are for a view of tags, and this one is '{view.kind}'")
    if view.is_generated:
        raise ConfigError(f"{where}: view.generate is for [data]; here the label column holds the sets, as in `a|b`")
    test, train = draw_test_rows(table.rows, section.test, derive(seed, "test", section.name))
    site = SiteTable(section, table, train, test)
    for column in [*site.labels, *([] if section.sensitive is None else [section.sensitive])]:
        table.column(column)  # a missing column is an error here, not a difference between the sites' features
    return site


def assemble(
    sites: Mapping[str, SiteTable], request: SiteFiles, shape: tuple[int, ...], encode: Encoder
) -> FederationData:
    """Return a federation of sites with tables, in the request's order; all wrong cells together are one flaw."""
    missing = request.features.missing
    space = LabelSpace(request.classes if request.classes is not None else _classes(sites, missing))
    result = FederationData(space, {}, shape, groups=group_names(sites, missing))
    problems: list[str] = []
    for name, site in sites.items():
        result.remember_reading(name, site.table)
        x, result.missing_cells[name], wrong = encode(site.table)
        problems += wrong
        no_label = [word for word in missing if word not in space]
        context = ViewContext(f"site '{name}'", report=result.flaw_collector(name))
        view = build_view(_declared(site, no_label), space, context)
        target = read_labels(site.table, site.section.label, view, missing, problems)
        sensitive, groups = site.section.sensitive, None
        if sensitive is not None and result.groups:
            any_group = Candidates(LabelSpace(result.groups))
            groups = _read_column(site.table, sensitive, any_group, missing, problems)
        samples = Samples(torch.from_numpy(x), target, view.true_classes(target), groups)
        train, test = (samples.map(itemgetter(torch.from_numpy(rows))) for rows in (site.train, site.test))
        result.add(SiteData(name, view, train, test), site.section.test)
    with result.collecting_flaws():
        report_cells(problems)
    result.sites = {section.name: result.sites[section.name] for section in request.sections}
    return result


def read_labels(
    table: Table, label: str | list[str] | None, view: View, missing: Sequence[str], problems: list[str]
) -> Tensor:
    """Read a table's annotations: one column, or one 0/1 column for each label; wrong cells join `problems`."""
    if label is None:
        return view.encode([None] * table.rows)
    if isinstance(label, list):
        return _flag_columns(table, label, view, missing, problems)
    return _read_column(table, label, view, missing, problems)


def read_true_classes(
    table: Table,
    sites: Mapping[str, SiteTable],
    request: SiteFiles,
    space: LabelSpace,
    encode: Encoder,
    where: str,
) -> ServerTest:
    """Return features and classes of a table of the server; rows without a class are left out.

    If it has the sites' sensitive column, its cells are the rows' candidate groups; an unknown group means any group.
    """
    missing = request.features.missing
    exact = (s.section.label for s in sites.values() if view_class(s.section.view.kind).exact)
    column = request.test_label or next((name for name in exact if isinstance(name, str)), None)
    if column is None:
        raise ConfigError(f"server.label is needed: it names the column of true classes in {where}")
    x, _, problems = encode(table)
    target = read_labels(table, column, Exact(space), missing, problems)
    report_cells(problems)
    known = target != NOT_ANNOTATED
    if not bool(known.any()):
        raise DataError(f"{where}: no row of '{table.shown}' has a class in column '{column}'")
    groups, sensitive = group_names(sites, missing), {site.section.sensitive for site in sites.values()}
    listed = next((name for name in sorted(sensitive - {None}, key=str) if name in table.columns), None)
    found = None
    if groups and listed is not None:
        found = _read_column(table, listed, Candidates(LabelSpace(groups)), missing, [])[known], None
    source = f"the server's own test file, {table.path.name}"
    return ServerTest(torch.from_numpy(x)[known], target[known], source, found)


def _read_column(table: Table, column: str, view: View, missing: Sequence[str], problems: list[str]) -> Tensor:
    # A label may be named "None" or "NA"; then such a cell is not missing.
    words, codes = by_value(table.column(column), set(missing) - set(view.allowed_names))
    values = [None if word is None else view.parse(word) for word in words]
    try:
        targets = view.encode(values)
    except AnnotationError:
        wrong: dict[int, list[str]] = {}
        for code, value in enumerate(values):
            try:
                view.encode([value])
            except AnnotationError as error:
                wrong[code] = [problem.partition(": ")[2] for problem in error.problems]
        for row, code in enumerate(codes.tolist()):
            problems += [table.wrong(row, column, what) for what in wrong.get(code, [])]
        targets = view.encode([None if code in wrong else value for code, value in enumerate(values)])
    return targets[torch.from_numpy(codes)]


def _flag_columns(table: Table, columns: list[str], view: View, missing: Sequence[str], problems: list[str]) -> Tensor:
    target = torch.full((table.rows, len(view.space)), NOT_ANNOTATED, dtype=torch.int8)
    for name in columns:
        column = view.space.column(name, f"'{table.shown}'")
        words, codes = by_value(table.column(name), missing)
        read = [NOT_ANNOTATED if word is None else view.parse_flag(word) for word in words]
        wrong = {code for code, value in enumerate(read) if value is None}
        rows = [row for row, code in enumerate(codes.tolist()) if code in wrong] if wrong else []
        problems += [table.wrong(row, name, f"'{words[codes[row]]}' is not 0 or 1") for row in rows]
        values = torch.tensor([NOT_ANNOTATED if value is None else value for value in read], dtype=torch.int8)
        target[:, column] = values[torch.from_numpy(codes)]
    return target.masked_fill(~view.informs(), NOT_ANNOTATED)


def _classes(sites: Mapping[str, SiteTable], missing: Sequence[str]) -> list[str]:
    """Return the label names in the sites' files and declarations; numbers are sorted by value."""
    names: set[str] = set()
    for site in sites.values():
        view = site.section.view
        names |= view_class(view.kind).class_names(view, partial(_own_names, site, missing))
    if not names:
        raise ConfigError("labels.classes is needed: no site's file names the classes of the federation")
    return sorted(names, key=natural)


def _own_names(site: SiteTable, missing: Sequence[str]) -> set[str]:
    """Return the labels that occur in a site's own file."""
    if isinstance(site.section.label, list):
        return set(site.section.label)
    separator = view_class(site.section.view.kind).separator
    words = {w for label in site.labels for w in site.table.column(label)} - {"", *missing}
    parts = {part.strip() for word in words for part in (word.split(separator) if separator else [word])}
    return {plain(part) for part in parts if part}


def _declared(site: SiteTable, missing: Sequence[str]) -> ViewDeclaration:
    """Return a site's declared view; known = "own" becomes the labels in its file."""
    view = site.section.view
    return view.with_known(sorted(_own_names(site, missing)) or None) if view.knows_own else view


def group_names(sites: Mapping[str, SiteTable], missing: Sequence[str]) -> list[str]:
    """Return the groups in the sensitive columns of all sites."""
    columns = [(site.table, site.section.sensitive) for site in sites.values()]
    words = {word for table, column in columns if column is not None for word in table.column(column)}
    parts = {plain(part.strip()) for word in words - {"", *missing} for part in word.split("|")}
    return sorted(parts - {""}, key=natural)
