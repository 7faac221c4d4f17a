"""Sites that bring tables: features agreed between them, labels read through each site's view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.declarations import Features, SiteSection
from fedaccord.data.features import ColumnReport, FeaturePlan, agree, describe_columns
from fedaccord.data.registry import locate
from fedaccord.data.site_labels import SiteTable, assemble, read_true_classes, set_test_aside
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import Table, read_table
from fedaccord.errors import ConfigError, DataError


def read_table_sites(
    sections: Sequence[SiteSection], features: Features, base: Path, classes: Sequence[str] | None,
    test_file: Path | None, test_label: str | None, seed: int,
) -> FederationData:  # fmt: skip
    """Read sites from .csv and .parquet files; relative paths start from `base`."""
    sites = {section.name: _open(section, features, base, seed) for section in sorted(sections, key=lambda s: s.name)}
    plan = _plan(sites, features)
    result = assemble(
        sites, classes, features.missing, (len(plan.names),), encode=lambda site: plan.read(site.table)
    )
    result.sites = {section.name: result.sites[section.name] for section in sections}
    result.features = plan
    if test_file is not None:
        table = read_table(test_file, features.header, "server.test")

        def encode(table: Table) -> tuple[NDArray[np.float32], list[str]]:
            x, _, problems = plan.read(table, closed=False)
            return x, problems

        result.test = read_true_classes(table, test_label, sites, result.space, features.missing, encode)
        result.test_source = f"the server's own test file, {test_file.name}"
    return result


def _open(section: SiteSection, features: Features, base: Path, seed: int) -> SiteTable:
    header = section.header or features.header
    table = read_table(locate(section.data, base), header, f"site '{section.name}'", section.data)
    return set_test_aside(section, table, seed)


def feature_columns(site: SiteTable, features: Features, taken: Sequence[str] = ()) -> list[str]:
    """Return the columns that are features: those asked for, or all that are not `taken` for something else."""
    other = {*site.labels, site.section.sensitive}
    asked = features.asked()
    for name in asked:
        if name in other:
            what = "label" if name in site.labels else "sensitive column"
            raise ConfigError(f"site '{site.section.name}': '{name}' is its {what}, so [features] cannot name it")
        site.table.column(name)
    return asked or [name for name in site.table.columns if name not in {*other, *taken, *features.ignore}]


def _plan(sites: Mapping[str, SiteTable], features: Features) -> FeaturePlan:
    # A column that is the label or the sensitive attribute of one site is no feature of any other.
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
    # What the experiment file gives is not reported by the sites at all.
    told = [c for c in wanted if c not in {*features.given_numbers(), *features.given_categories(), *features.text}]
    numbers, words = features.number_names(), features.category_names()
    reports: dict[str, Mapping[str, ColumnReport]] = {
        name: describe_columns(site.table, told, features.missing, site.train, numbers, words)
        for name, site in sites.items()
    }
    return agree(
        reports, features.missing, features.given_numbers(), features.given_categories(), features.text,
        features.text_width, features.scale == "federation", wanted,
    )  # fmt: skip
