"""Sites that bring tables: features agreed between them, labels read through each site's view.

Sites with images have a table of labels, which is read in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedaccord.data.declarations import Features, SiteFiles, SiteSection
from fedaccord.data.features import ColumnPlan, FeaturePlan, agree, cells_of_other_kind, describe_columns, mixed_kinds
from fedaccord.data.label_columns import SiteTable, read_column, read_labels
from fedaccord.data.server_data import add_server_files
from fedaccord.data.site_data import Samples, ServerInputs, ServerTest, SiteData
from fedaccord.data.sites import FederationData, Flaw, draw_test_rows
from fedaccord.data.tables import Table, cells_error, natural, read_table, report_cells
from fedaccord.errors import ConfigError, DataError
from fedaccord.labels.space import LabelSpace, plain
from fedaccord.labels.synonyms import renaming
from fedaccord.labels.views import (
    NOT_ANNOTATED,
    Candidates,
    Exact,
    ViewContext,
    build_view,
    view_class,
)
from fedaccord.seeds import derive

Index = NDArray[np.int64]
# Features of a table, the number of missing cells by column, and sentences on wrong cells.
Encoded = tuple[NDArray[np.float32], dict[str, int], list[str]]
Encoder = Callable[[Table], Encoded]


def read_table_sites(request: SiteFiles) -> FederationData:
    """Read sites from .csv and .parquet files."""
    features = request.features
    if features.standardise == "site":
        other = 'with "federation", give moments in features.numbers to keep those of the sites private'
        raise ConfigError(f'features.standardise = "site" is for arrays, and the sites bring tables; {other}')
    sites = {}
    for name, section in request.by_name().items():
        header = section.header or features.header
        table = read_table(request.path(section), header, f"site '{name}'", section.data, section.read)
        sites[name] = set_test_aside(section, table, request)
    result = join_tables(sites, request)

    def opened(path: Path, where: str) -> Table:
        table = read_table(path, features.header, where, read=request.server_read)
        result.remember_reading(where, table)
        return table

    def read(path: Path, where: str) -> ServerTest:
        return read_server_table(opened(path, where), sites, request, result, where)

    def read_inputs(path: Path, where: str) -> ServerInputs:
        return read_server_inputs(opened(path, where), sites, request, result)

    add_server_files(result, request, read, read_inputs)
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


def read_server_inputs(
    table: Table, sites: Mapping[str, SiteTable], request: SiteFiles, result: FederationData
) -> ServerInputs:
    """Return the features of a table of the server, encoded like the tables of the sites."""
    assert result.features is not None
    return read_unlabelled(table, sites, request, partial(result.features.read, closed=False))


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


def set_test_aside(section: SiteSection, table: Table, request: SiteFiles) -> SiteTable:
    """Draw a site's test rows; raise ConfigError for a declaration that does not fit a table."""
    where, view = f"site '{section.name}'", section.view
    if section.label is None and view.needs_label:
        raise ConfigError(f"{where}: the key 'label' is missing; it names the label column")
    if isinstance(section.label, list) and not view_class(view.kind).takes_columns:
        raise ConfigError(f"{where}: several label columns are for a view of tags, and this one is '{view.kind}'")
    if view.is_generated:
        raise ConfigError(f"{where}: view.generate is for [data]; here the label column holds the sets, as in `a|b`")
    test, train = draw_test_rows(table.rows, section.test, derive(request.seed, "test", section.name))
    site = SiteTable(section, table, train, test, request.names(section), request.missing)
    for column in [*site.labels, *([] if section.sensitive is None else [section.sensitive])]:
        table.column(column)  # a missing column is an error here, not a difference between the sites' features
    return site


def assemble(
    sites: Mapping[str, SiteTable], request: SiteFiles, shape: tuple[int, ...], encode: Encoder
) -> FederationData:
    """Return a federation of sites with tables, in the request's order; all wrong cells together are one flaw."""
    missing = request.features.missing
    space = LabelSpace(request.classes if request.classes is not None else _classes(sites))
    result = FederationData(space, {}, shape, groups=group_names(sites, missing))
    problems: list[str] = []
    for name, site in sites.items():
        result.remember_reading(name, site.table)
        x, result.missing_cells[name], wrong = encode(site.table)
        problems += wrong
        result.label_words[name] = site.words()
        view = build_view(site.view(space), space, ViewContext(f"site '{name}'", report=result.flaw_collector(name)))
        target = site.read(view, problems)
        sensitive, groups = site.section.sensitive, None
        if sensitive is not None and result.groups:
            any_group = Candidates(LabelSpace(result.groups))
            groups = read_column(site.table, sensitive, any_group, missing, problems)
        samples = Samples(torch.from_numpy(x), target, view.true_classes(target), groups)
        train, test = (samples.map(itemgetter(torch.from_numpy(rows))) for rows in (site.train, site.test))
        result.add(SiteData(name, view, train, test), site.section.test)
    with result.collecting_flaws():
        report_cells(problems)
    result.sites = {section.name: result.sites[section.name] for section in request.sections}
    return result


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
    names = renaming(request.synonyms)
    target = read_labels(table, column, Exact(space), request.missing, problems, names)
    report_cells(problems)
    known = target != NOT_ANNOTATED
    if not bool(known.any()):
        raise DataError(f"{where}: no row of '{table.shown}' has a class in column '{column}'")
    groups, sensitive = group_names(sites, missing), {site.section.sensitive for site in sites.values()}
    listed = next((name for name in sorted(sensitive - {None}, key=str) if name in table.columns), None)
    found = None
    if groups and listed is not None:
        found = read_column(table, listed, Candidates(LabelSpace(groups)), missing, [])[known], None
    source = f"the server's own test file, {table.path.name}"
    return ServerTest(torch.from_numpy(x)[known], target[known], source, found)


def read_unlabelled(table: Table, sites: Mapping[str, SiteTable], request: SiteFiles, encode: Encoder) -> ServerInputs:
    """Return the features of a table of the server that needs no label column; one that it has is not used."""
    x, _, problems = encode(table)
    report_cells(problems)
    named = {request.test_label, *(column for site in sites.values() for column in site.labels)}
    return ServerInputs(torch.from_numpy(x), [f"column '{name}'" for name in table.columns if name in named])


def _classes(sites: Mapping[str, SiteTable]) -> list[str]:
    """Return the label names in the sites' files and declarations; numbers are sorted by value."""
    names: set[str] = set()
    for site in sites.values():
        view = site.view()
        names |= view_class(view.kind).class_names(view, partial(set, site.words().names))
    if not names:
        raise ConfigError("labels.classes is needed: no site's file names the classes of the federation")
    return sorted(names, key=natural)


def group_names(sites: Mapping[str, SiteTable], missing: Sequence[str]) -> list[str]:
    """Return the groups in the sensitive columns of all sites."""
    columns = [(site.table, site.section.sensitive) for site in sites.values()]
    words = {word for table, column in columns if column is not None for word in table.column(column)}
    parts = {plain(part.strip()) for word in words - {"", *missing} for part in word.split("|")}
    return sorted(parts - {""}, key=natural)
