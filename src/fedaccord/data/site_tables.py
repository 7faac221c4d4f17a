"""Sites that bring tables: features agreed between them, labels read through each site's view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.declarations import Features, SiteSection
from fedaccord.data.features import (
    ColumnPlan,
    FeaturePlan,
    agree,
    cells_of_other_kind,
    describe_columns,
    mixed_kinds,
)
from fedaccord.data.requests import SiteFiles
from fedaccord.data.server_data import add_server_files
from fedaccord.data.site_data import ServerTest
from fedaccord.data.site_labels import (
    SiteTable,
    assemble,
    group_names,
    read_true_classes,
    set_test_aside,
)
from fedaccord.data.sites import FederationData, Flaw
from fedaccord.data.tables import Table, cells_error, read_table
from fedaccord.errors import ConfigError, DataError


def read_table_sites(request: SiteFiles) -> FederationData:
    """Read sites from .csv and .parquet files."""
    features = request.features
    sites = {s.name: _open(s, request) for s in sorted(request.sections, key=lambda section: section.name)}
    plan, mixed = _plan(sites, features)
    group_features = len(plan.names) if request.groups_as_input else None
    if request.groups_as_input:
        groups = _group_column(sites, features.missing, request.normalise_groups)
        plan = plan.model_copy(update={"columns": (*plan.columns, groups)})
    result = assemble(sites, request, (len(plan.names),), encode=lambda site: plan.read(site.table))
    result.flaws = [*map(Flaw, mixed), *result.flaws]
    result.features, result.group_features = plan, group_features

    def encode(table: Table) -> tuple[NDArray[np.float32], list[str]]:
        x, _, problems = plan.read(table, closed=False)
        return x, problems

    def read(path: Path, where: str) -> ServerTest:
        table = read_table(path, features.header, where)
        return read_true_classes(table, sites, request, result.space, encode, where)

    add_server_files(result, request.test_file, request.labelled, read)
    return result


def _open(section: SiteSection, request: SiteFiles) -> SiteTable:
    header = section.header or request.features.header
    table = read_table(request.path(section), header, f"site '{section.name}'", section.data)
    return set_test_aside(section, table, request.seed)


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
