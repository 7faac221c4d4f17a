"""From table cells to features with the same meaning at every site, without sharing rows.

Each site reports, for every column, its kind and the moments or categories of its training rows, and nothing else. The
reports are combined into one plan, by which each site encodes its own rows. Columns that the experiment file describes
(`[features]`) are not reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from fedaccord.data.declarations import Features
from fedaccord.data.renamed_words import renamed_cells
from fedaccord.data.scaling import FARTHEST, Moments, pool_moments
from fedaccord.data.tables import Cells, Table, are_missing, by_value, read_numbers, report_cells
from fedaccord.errors import DataError, closest, did_you_mean, listed, listed_sites
from fedaccord.labels.space import plain
from fedaccord.labels.synonyms import renaming

MOST_CATEGORIES = 200
MOSTLY = 0.9  # a column with this share of numbers is a column of numbers; its other cells are wrong
Floats = NDArray[np.float32]
Wrong = dict[int, str]  # rows of wrong cells, and what is wrong with each


class ColumnReport(BaseModel, frozen=True):
    """A site's report on one column: moments of numbers or a list of categories, never a row."""

    kind: Literal["number", "category", "empty"]
    missing: int = 0
    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    values: list[str] = Field(default_factory=list)


class ColumnPlan(BaseModel, frozen=True):
    """The encoding of one column, the same at every site."""

    name: str
    kind: Literal["number", "category", "text", "groups"]
    mean: float = 0.0
    scale: float = 1.0
    cut: bool = True  # clip outliers, unless the experiment file asks for unscaled numbers
    flag_missing: bool = False
    values: tuple[str, ...] = ()
    closed: bool = False  # the experiment file gives the values, so any other is wrong
    width: int = 1  # text: number of hashed features
    synonyms: dict[str, str] = Field(default_factory=dict)  # names of words that have another name
    normalise: bool = False  # groups: each candidate of a row counts as its share of 1

    @property
    def features(self) -> list[str]:
        """The names of this column's features."""
        if self.kind == "number":
            return [self.name] + ([f"{self.name} is missing"] if self.flag_missing else [])
        if self.kind in ("category", "groups"):
            return [f"{self.name} = {value}" for value in self.values]
        return [f"{self.name} #{i}" for i in range(self.width)]


class FeaturePlan(BaseModel, frozen=True):
    """The federation's features, in order; part of a trained model."""

    columns: tuple[ColumnPlan, ...]
    missing: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The name of every encoded feature."""
        return [name for column in self.columns for name in column.features]

    def encode(self, table: Table, fill: bool = False) -> tuple[Floats, dict[str, int]]:
        """Return the features of new rows, and for each column the number of missing cells and unknown categories.

        Raise DataError for cells that should be numbers and are not, and for columns that the table lacks; with `fill`
        such a column has no values.
        """
        lacking = self.lacking(table)
        if lacking and (not fill or len(lacking) == len(self.columns)):
            raise DataError(self._lacks(table, lacking))
        empty = np.full(table.rows, "", dtype=object)
        filled = replace(table, columns=table.columns | dict.fromkeys(lacking, empty))
        x, missing, problems = self.read(filled, closed=False)
        report_cells(problems)
        return x, missing

    def lacking(self, table: Table) -> list[str]:
        """Return the columns that a table lacks."""
        return [column.name for column in self.columns if column.name not in table.columns]

    def _lacks(self, table: Table, lacking: Sequence[str]) -> str:
        """Return the sentence on columns that a table lacks: similar names in the table, and all that are expected."""
        expected = [column.name for column in self.columns]
        others = [name for name in table.columns if name not in expected]
        hints = [(name, closest(name, others)) for name in lacking]
        named = [f"'{name}'" + ("" if hint is None else f" (did you mean '{hint}'?)") for name, hint in hints]
        column = "column" if len(lacking) == 1 else "columns"
        them = "it" if len(lacking) == 1 else "them"
        way = "" if len(lacking) == len(expected) else f"; --fill (in Python fill=True) treats {them} as missing values"
        what = listed(named, quotes=False)
        return f"'{table.shown}' has no {column} {what}; the model reads the columns {listed(expected, most=30)}{way}"

    def read(self, table: Table, closed: bool = True) -> tuple[Floats, dict[str, int], list[str]]:
        """Encode rows as `encode` does, but return a sentence on each wrong cell instead of raising.

        With `closed`, for the sites' own tables, a word that the experiment file does not list is wrong, and only
        missing cells are counted.
        """
        x = np.zeros((table.rows, len(self.names)), dtype=np.float32)
        absent_cells: dict[str, int] = {}
        problems: list[str] = []
        start = 0
        for column in self.columns:
            cells = renamed_cells(table.column(column.name), column.synonyms)
            part = x[:, start : start + len(column.features)]
            start += len(column.features)
            wrong: Wrong = {}
            if column.kind == "number":
                absent, wrong = _encode_numbers(column, cells, self.missing, part)
            elif column.kind == "category":
                absent, wrong = _encode_words(column, cells, self.missing, part, closed)
            else:
                encode = _encode_groups if column.kind == "groups" else _encode_text
                absent = encode(column, cells, self.missing, part)
            problems += [table.wrong(row, column.name, what) for row, what in wrong.items()]
            absent_cells[column.name] = absent
        return x, {name: number for name, number in absent_cells.items() if number}, problems


def describe_columns(
    table: Table, names: Sequence[str], train: NDArray[np.int64], features: Features
) -> dict[str, ColumnReport]:
    """Return a site's reports on its columns, from its training rows.

    Columns declared as numbers are numbers: any other cell is wrong, not a category. Columns declared as categories are
    categories, even if they hold numbers.
    """
    reports = {}
    for name in names:
        cells = table.column(name)
        absent = are_missing(cells, features.missing)
        given, missing = int((~absent).sum()), int(absent[train].sum())
        values, wrong = read_numbers(cells, features.missing)
        words = name in features.categories
        if name in features.numbers or (not words and given and len(wrong) <= (1 - MOSTLY) * given):
            seen = values[train][~np.isnan(values[train])]
            mean, variance = (float(seen.mean()), float(seen.var())) if len(seen) else (0.0, 0.0)
            reports[name] = ColumnReport(kind="number", missing=missing, n=len(seen), mean=mean, variance=variance)
        elif words or given:
            found = sorted({plain(cell) for cell in set(cells[train][~absent[train]])})
            reports[name] = ColumnReport(kind="category", missing=missing, values=found)
        else:
            reports[name] = ColumnReport(kind="empty", missing=missing)
    return reports


def agree(
    reports: Mapping[str, Mapping[str, ColumnReport]], features: Features, order: Sequence[str] = ()
) -> FeaturePlan:
    """Return the plan from all sites' reports and the experiment file; `order` is the order of the columns."""
    for problem in mixed_kinds(reports).values():
        raise DataError(problem)
    scale = features.standardise != "none"
    columns = []
    for name in order or list(dict.fromkeys(name for report in reports.values() for name in report)):
        found = {site: report[name] for site, report in reports.items() if name in report}
        if name in features.text:
            columns.append(ColumnPlan(name=name, kind="text", width=features.text_width))
        elif name in features.given_categories():
            values = tuple(dict.fromkeys(plain(value) for value in features.given_categories()[name]))
            columns.append(ColumnPlan(name=name, kind="category", values=values, closed=True))
        elif name in features.given_numbers():
            mean, spread = features.given_numbers()[name]
            columns.append(ColumnPlan(name=name, kind="number", mean=mean, scale=spread, flag_missing=True))
        elif any(report.kind == "category" for report in found.values()):
            columns.append(ColumnPlan(name=name, kind="category", values=_vocabulary(name, found)))
        else:
            mean, spread = _pooled(list(found.values())) if scale else (0.0, 1.0)
            flag = any(report.missing for report in found.values())
            columns.append(ColumnPlan(name=name, kind="number", mean=mean, scale=spread, cut=scale, flag_missing=flag))
    named = [c.model_copy(update={"synonyms": renaming(features.synonyms.get(c.name, {}))}) for c in columns]
    plan = FeaturePlan(columns=tuple(named), missing=tuple(features.missing))
    if not plan.names:
        raise DataError("no features are left: beside the labels the sites have no columns, or empty ones only")
    return plan


def mixed_kinds(reports: Mapping[str, Mapping[str, ColumnReport]]) -> dict[str, str]:
    """Return a message for each column that holds numbers at some sites and words at others."""
    problems = {}
    for name in dict.fromkeys(name for report in reports.values() for name in report):
        at = _sites_by_kind(reports, name)
        if at["number"] and at["category"]:
            problems[name] = (
                f"column '{name}' holds numbers at {_listed(at['number'])} but words at {_listed(at['category'])}; "
                "name every feature column in features.numbers or features.categories"
            )
    return problems


def has_mostly_numbers(name: str, reports: Mapping[str, Mapping[str, ColumnReport]]) -> bool:
    """Return whether a mixed column holds numbers at most sites; in a tie, numbers win."""
    at = _sites_by_kind(reports, name)
    return len(at["number"]) >= len(at["category"])


def cells_of_other_kind(
    name: str, tables: Mapping[str, Table], reports: Mapping[str, Mapping[str, ColumnReport]], missing: Sequence[str]
) -> list[str]:
    """Return sentences on the cells of a mixed column that are not of the kind of most sites; in a tie, numbers win.

    Cells of the sites with the other kind come first. Each site looks at its own table, since reports hold no rows.
    """
    at, numbers_win = _sites_by_kind(reports, name), has_mostly_numbers(name, reports)
    problems = []
    for site in [*at["category"], *at["number"]] if numbers_win else at["number"]:
        table = tables[site]
        cells = table.column(name)
        wrong = read_numbers(cells, missing)[1]
        if numbers_win:
            problems += [table.wrong(row, name, _no_number(cells[row])) for row in wrong.tolist()]
        else:
            right = {*wrong.tolist(), *np.flatnonzero(are_missing(cells, missing)).tolist()}
            what = "is a number, and most sites have words there"
            problems += [
                table.wrong(row, name, f"'{cells[row]}' {what}") for row in range(table.rows) if row not in right
            ]
    return problems


def _sites_by_kind(reports: Mapping[str, Mapping[str, ColumnReport]], name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"number": [], "category": [], "empty": []}
    for site, report in reports.items():
        if name in report:
            found[report[name].kind].append(site)
    return found


def _listed(sites: Sequence[str]) -> str:
    return listed_sites(sites, most=len(sites))


def _no_number(cell: str) -> str:
    return f"'{cell}' is not a number"


def _pooled(reports: Sequence[ColumnReport]) -> tuple[float, float]:
    """Return the pooled mean and standard deviation of several sites."""
    parts = [Moments(np.array(r.n), np.array(r.mean), np.array(r.variance)) for r in reports]
    moments = pool_moments(parts)
    spread = float(np.sqrt(moments.variance))
    return float(moments.mean), spread if spread > 1e-12 else 1.0


def _vocabulary(name: str, reports: Mapping[str, ColumnReport]) -> tuple[str, ...]:
    """Return the union of all sites' categories."""
    values = sorted({value for report in reports.values() for value in report.values})
    if len(values) > MOST_CATEGORIES:
        raise DataError(
            f"column '{name}' has {len(values)} different words, such as '{values[-1]}'; name it in features.numbers, "
            "features.text or features.ignore, or give its values in features.categories"
        )
    return tuple(values)


def _encode_numbers(column: ColumnPlan, cells: Cells, missing: Sequence[str], part: Floats) -> tuple[int, Wrong]:
    """Set the scaled number of each row; return the number of missing cells, and the wrong ones."""
    values, wrong = read_numbers(cells, missing)
    absent = np.isnan(values)
    scaled = (values - column.mean) / column.scale
    # A number that is nearly constant in training rows must not explode elsewhere.
    part[:, 0] = np.where(absent, 0.0, np.clip(scaled, -FARTHEST, FARTHEST) if column.cut else scaled)
    if column.flag_missing:
        part[:, 1] = absent
    return int(absent.sum()) - len(wrong), {row: _no_number(cells[row]) for row in wrong.tolist()}


def _encode_words(
    column: ColumnPlan, cells: Cells, missing: Sequence[str], part: Floats, closed: bool
) -> tuple[int, Wrong]:
    """Set one feature of each row, none for a missing or unknown word.

    Return the number of missing cells, unless `closed` with the unknown ones, and the wrong cells.
    """
    place = {value: number for number, value in enumerate(column.values)}
    words, codes = by_value(cells, missing)
    absent = np.array([word is None for word in words])
    at = np.array([-1 if word is None else place.get(plain(word), -1) for word in words])
    rows = np.flatnonzero(at[codes] >= 0)
    part[rows, at[codes][rows]] = 1.0
    unknown = np.flatnonzero(((at < 0) & ~absent & (closed and column.closed))[codes]).tolist()
    what = "'{}' is not among its values; {}"
    wrong = {row: what.format(cells[row], did_you_mean(cells[row], column.values)) for row in unknown}
    return int(absent[codes].sum()) if closed else len(cells) - len(rows), wrong


def _encode_groups(column: ColumnPlan, cells: Cells, missing: Sequence[str], part: Floats) -> int:
    """Set a feature for each candidate in `a|b`; a missing cell means any group."""
    place = {value: number for number, value in enumerate(column.values)}
    words, codes = by_value(cells, missing)
    for code, word in enumerate(words):
        names = column.values if word is None else {plain(name.strip()) for name in word.split("|")}
        chosen = sorted(place[name] for name in names if name in place)
        part[np.ix_(codes == code, chosen)] = 1.0 / len(chosen) if column.normalise and chosen else 1.0
    return int(are_missing(cells, missing).sum())


def _encode_text(column: ColumnPlan, cells: Cells, missing: Sequence[str], part: Floats) -> int:
    """Hash the words and word pairs of each cell; return the number of missing cells."""
    from sklearn.feature_extraction.text import HashingVectorizer  # imported here because it takes a second to load

    absent = are_missing(cells, missing)
    texts = np.where(absent, "", cells)
    hashing = HashingVectorizer(
        n_features=column.width, alternate_sign=False, norm="l2", ngram_range=(1, 2), dtype=np.float32
    )
    part[:] = hashing.transform(texts).toarray()
    return int(absent.sum())
