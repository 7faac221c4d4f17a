"""The use of each column of the sites' tables, and the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedaccord.data.declarations import Features
from fedaccord.data.features import ColumnPlan, FeaturePlan
from fedaccord.data.label_columns import SiteTable
from fedaccord.data.tables import are_missing
from fedaccord.errors import listed
from fedaccord.labels.space import plain

Words = dict[str, dict[str, int]]  # by site: the words of a column, with their numbers


@dataclass(frozen=True)
class ColumnUse:
    """A column, its use, and the reason."""

    name: str
    taken_as: str
    why: str


def column_uses(
    sites: Mapping[str, SiteTable], features: Features, plan: FeaturePlan | None, images: str = ""
) -> list[ColumnUse]:
    """Return the use of every column that a site has; `images` names the column of image files."""
    planned = {} if plan is None else {column.name: column for column in plan.columns}
    names = dict.fromkeys(name for site in sites.values() for name in site.table.columns)
    return [_use(name, sites, features, planned.get(name), images) for name in names]


def _use(
    name: str, sites: Mapping[str, SiteTable], features: Features, plan: ColumnPlan | None, images: str
) -> ColumnUse:
    holders = [site for site, table in sites.items() if name in table.table.columns]
    labelled = [site for site, table in sites.items() if name in table.labels]
    sensitive = [site for site, table in sites.items() if name == table.section.sensitive]
    groups = plan is not None and plan.kind == "groups"
    if labelled:
        return ColumnUse(name, "label", _at(labelled, holders))
    if sensitive:
        return ColumnUse(name, "sensitive" + (" and input" if groups else ""), _at(sensitive, holders))
    if plan is not None:
        return ColumnUse(name, _kind(plan), _reason(name, features, plan.kind))
    if name == images:
        return ColumnUse(name, "image file", "the column of a folder's images")
    if name in features.ignore:
        return ColumnUse(name, "ignored", "in features.ignore")
    if images or features.asked():
        return ColumnUse(name, "ignored", "not the label column" if images else "not named in [features]")
    return ColumnUse(name, "not used", "see the errors")


def _kind(plan: ColumnPlan) -> str:
    if plan.kind == "category":
        return f"category, {len(plan.values)} value{'s' * (len(plan.values) != 1)}"
    return f"text, {plan.width} hashed features" if plan.kind == "text" else plan.kind


def _reason(name: str, features: Features, kind: str) -> str:
    for key in ("numbers", "categories", "text"):
        if name in getattr(features, key):
            return f"in features.{key}"
    return "its cells are numbers" if kind == "number" else "its cells are words"


def _at(sites: list[str], holders: list[str]) -> str:
    return "declared by every site that has it" if len(sites) == len(holders) else f"declared by {listed(sites)}"


def words_by_column(
    sites: Mapping[str, SiteTable], columns: Collection[str], missing: Collection[str]
) -> dict[str, Words]:
    """Return the words in these columns, by column and site."""
    found: dict[str, Words] = {}
    for column in columns:
        found[column] = {}
        for name, site in sites.items():
            if column in site.table.columns:
                cells = site.table.columns[column]
                found[column][name] = dict(Counter(map(plain, cells[~are_missing(cells, missing)])))
    return found
