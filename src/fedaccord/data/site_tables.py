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

from fedaccord.data.column_uses import column_uses, words_by_column
from fedaccord.data.common_features import agree_on_features, missing_word_note
from fedaccord.data.declarations import SiteFiles, SiteSection
from fedaccord.data.features import ColumnPlan
from fedaccord.data.label_columns import SiteTable, read_column, read_labels
from fedaccord.data.renamed_words import check_columns, with_names
from fedaccord.data.server_data import add_server_files
from fedaccord.data.site_data import Samples, ServerInputs, ServerTest, SiteData
from fedaccord.data.sites import FederationData, Flaw, draw_test_rows
from fedaccord.data.tables import Table, natural, read_table, report_cells
from fedaccord.errors import ConfigError, DataError, UntrustedError, UserError, listed
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
    """Read sites from tables."""
    features = request.features
    if features.standardise == "site":
        other = 'with "federation", give moments in features.numbers to keep those of the sites private'
        raise ConfigError(f'features.standardise = "site" is for arrays, and the sites bring tables; {other}')

    def read_site(name: str, section: SiteSection) -> SiteTable:
        header = section.header or features.header
        table = read_table(request.path(section), header, f"site '{name}'", section.data, section.read)
        return set_test_aside(section, table, request)

    sites = read_each_site(request, read_site)
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


def read_each_site(request: SiteFiles, read: Callable[[str, SiteSection], SiteTable]) -> dict[str, SiteTable]:
    """Read the file of every site; raise one error with the problems of all sites whose files cannot be read."""
    sites: dict[str, SiteTable] = {}
    errors: list[UserError] = []
    for name, section in request.by_name().items():
        try:
            sites[name] = read(name, section)
        except UntrustedError:
            raise
        except UserError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise DataError(f"the files of {len(errors)} sites cannot be used: " + "; ".join(map(str, errors)))
    return sites


def join_tables(sites: Mapping[str, SiteTable], request: SiteFiles) -> FederationData:
    """Return a federation of sites with tables, whose features they agree on."""
    features = request.features
    check_columns(features.synonyms, (site.table for site in sites.values()))
    agreed = agree_on_features(sites, features)
    plan = agreed.plan
    group_features = len(plan.names) if request.groups_as_input else None
    if request.groups_as_input:
        groups = _group_column(sites, features.missing, request.normalise_groups)
        groups = groups.model_copy(update={"synonyms": renaming(features.synonyms.get(groups.name, {}))})
        plan = plan.model_copy(update={"columns": (*plan.columns, groups)})
    result = assemble(sites, request, (len(plan.names),), plan.read)
    result.flaws = [*map(Flaw, agreed.errors), *result.flaws]
    if result.flaws:  # most are words in columns of numbers
        result.notes += missing_word_note(sites, agreed.numbers, features)
    for name, doubts in agreed.doubts.items():
        result.doubts.setdefault(name, []).extend(doubts)
    result.features, result.group_features = plan, group_features
    result.columns = column_uses(sites, features, plan)
    in_words = [use.name for use in result.columns if use.taken_as.startswith(("category", "not used"))]
    result.words = words_by_column(sites, in_words, features.missing)
    return result


def read_server_table(
    table: Table, sites: Mapping[str, SiteTable], request: SiteFiles, result: FederationData, where: str
) -> ServerTest:
    """Return features and classes of a table of the server, encoded like the tables of the sites."""
    assert result.features is not None
    encode = partial(result.features.read, closed=False)
    table = with_names(table, request.features.synonyms)
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


def set_test_aside(section: SiteSection, table: Table, request: SiteFiles) -> SiteTable:
    """Draw a site's test rows; raise ConfigError for a declaration that does not fit a table."""
    where, view = f"site '{section.name}'", section.view
    if section.label is None and view.needs_label:
        columns = listed(list(table.columns), most=30)
        none = 'for a site without labels set view = { kind = "unlabelled" }'
        raise ConfigError(f"{where}: the key 'label' is missing; it names the label column, one of {columns}; {none}")
    if isinstance(section.label, list) and not view_class(view.kind).takes_columns:
        raise ConfigError(f"{where}: several label columns are for a view of tags, and this one is '{view.kind}'")
    if view.is_generated:
        raise ConfigError(f"{where}: view.generate is for [data]; here the label column holds the sets, as in `a|b`")
    test, train = draw_test_rows(table.rows, section.test, derive(request.seed, "test", section.name))
    named = with_names(table, request.features.synonyms)
    site = SiteTable(section, named, train, test, request.names(section), request.missing)
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


def true_class_column(sites: Mapping[str, SiteTable], request: SiteFiles, where: str) -> str:
    """Return the column of true classes in the server's tables: the declared one, or that of a site of exact labels."""
    exact = (s.section.label for s in sites.values() if view_class(s.section.view.kind).exact)
    column = request.test_label or next((name for name in exact if isinstance(name, str)), None)
    if column is None:
        raise ConfigError(f"server.label is needed: it names the column of true classes in {where}")
    return column


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
    column = true_class_column(sites, request, where)
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
