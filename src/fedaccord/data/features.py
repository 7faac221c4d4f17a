"""From table cells to features that mean the same at every site, agreed without sharing rows.

Each site reports, for every column, its kind with its moments or its categories, and nothing else. The reports become
one plan; with the plan each site encodes its own rows. What the experiment file gives (`[features]`) need not be
reported at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedaccord.data.tables import Cells, Table, read_numbers, report_cells
from fedaccord.errors import DataError

MOST_CATEGORIES = 200
Floats = NDArray[np.float32]


class ColumnReport(BaseModel):
    """What a site says of one column: moments of a number, categories of a word; never a row."""

    kind: Literal["number", "category"]
    missing: int = 0
    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    values: list[str] = Field(default_factory=list)


class ColumnPlan(BaseModel):
    """How one column is encoded at every site."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: Literal["number", "category", "text"]
    mean: float = 0.0
    scale: float = 1.0
    flag_missing: bool = False
    values: tuple[str, ...] = ()
    width: int = 1  # text: number of hashed features


class FeaturePlan(BaseModel):
    """The federation's features, in order; part of a trained model."""

    model_config = ConfigDict(frozen=True)

    columns: tuple[ColumnPlan, ...]
    missing: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The name of every encoded feature."""
        names: list[str] = []
        for column in self.columns:
            if column.kind == "number":
                names += [column.name] + ([f"{column.name} is missing"] if column.flag_missing else [])
            elif column.kind == "category":
                names += [f"{column.name} = {value}" for value in column.values]
            else:
                names += [f"{column.name} #{i}" for i in range(column.width)]
        return names

    def encode(self, table: Table) -> tuple[Floats, dict[str, int]]:
        """Encode a table's rows; returns the features and, by column, how many cells were missing or unknown."""
        parts, problems, gaps = [], [], {}
        for column in self.columns:
            cells = table.column(column.name)
            if column.kind == "number":
                values, wrong = read_numbers(cells, self.missing)
                problems += [_wrong_cell(table, row, column.name, cells[row], "is not a number") for row in wrong]
                missing = np.isnan(values)
                parts.append(np.where(missing, 0.0, (values - column.mean) / column.scale)[:, None])
                if column.flag_missing:
                    parts.append(missing[:, None].astype(float))
                gaps[column.name] = int(missing.sum())
            elif column.kind == "category":
                parts.append(np.stack([cells == value for value in column.values], 1).astype(float))
                gaps[column.name] = int((parts[-1].sum(1) == 0).sum())
            else:
                parts.append(_hash_text(cells, column.width))
                gaps[column.name] = int(sum(cell in self.missing for cell in cells))
        report_cells(f"'{table.path.name}' has cells that cannot be read", problems)
        return np.concatenate(parts, axis=1).astype(np.float32), {k: v for k, v in gaps.items() if v}


def describe_columns(
    table: Table, names: Sequence[str], missing: Sequence[str], train: NDArray[np.int64],
    numbers: Sequence[str] = (), words: Sequence[str] = (),
) -> dict[str, ColumnReport]:  # fmt: skip
    """Report a site's columns: moments over its training rows, categories over all of them.

    Columns in `numbers` are numbers by decree: a cell that is none is wrong, not a category. Those in `words` are
    categories, whatever they look like.
    """
    reports = {}
    for name in names:
        cells = table.column(name)
        values, wrong = read_numbers(cells, missing)
        absent = int(sum(cell in missing for cell in cells))
        if name not in words and (name in numbers or not wrong):
            seen = values[train][~np.isnan(values[train])]
            reports[name] = ColumnReport(
                kind="number", missing=absent, n=len(seen),
                mean=float(seen.mean()) if len(seen) else 0.0, variance=float(seen.var()) if len(seen) else 0.0,
            )  # fmt: skip
        else:
            reports[name] = ColumnReport(kind="category", missing=absent, values=_categories(cells, missing))
    return reports


def agree(
    reports: Mapping[str, Mapping[str, ColumnReport]], missing: Sequence[str],
    numbers: Mapping[str, Sequence[float]] | None = None, categories: Mapping[str, Sequence[str]] | None = None,
    text: Sequence[str] = (), text_width: int = 256, scale: bool = True, words: Sequence[str] = (),
    order: Sequence[str] = (),
) -> FeaturePlan:  # fmt: skip
    """Make one plan of all sites' reports and of what the experiment file gives.

    `words` are categories by decree although they look like numbers; `order` is the order of the columns.
    """
    given_numbers, given_categories = dict(numbers or {}), dict(categories or {})
    columns = []
    for name in order or list(dict.fromkeys(name for report in reports.values() for name in report)):
        told = [site[name] for site in reports.values() if name in site]
        flag = any(report.missing for report in told)
        if name in text:
            columns.append(ColumnPlan(name=name, kind="text", width=text_width))
        elif name in given_categories:
            columns.append(ColumnPlan(name=name, kind="category", values=tuple(given_categories[name])))
        elif name in given_numbers:
            mean, spread = given_numbers[name]
            columns.append(ColumnPlan(name=name, kind="number", mean=mean, scale=spread or 1.0, flag_missing=True))
        elif name not in words and all(report.kind == "number" for report in told):
            mean, spread = _pooled(told) if scale else (0.0, 1.0)
            columns.append(ColumnPlan(name=name, kind="number", mean=mean, scale=spread, flag_missing=flag))
        else:
            columns.append(ColumnPlan(name=name, kind="category", values=_vocabulary(name, reports, name in words)))
    if not columns:
        raise DataError("no feature columns are left beside the label")
    return FeaturePlan(columns=tuple(columns), missing=tuple(missing))


def _pooled(told: Sequence[ColumnReport]) -> tuple[float, float]:
    """Return mean and standard deviation of all sites' rows together, from their moments alone."""
    total = sum(r.n for r in told)
    if not total:
        return 0.0, 1.0
    mean = sum(r.n * r.mean for r in told) / total
    variance = sum(r.n * (r.variance + r.mean**2) for r in told) / total - mean**2
    return mean, float(np.sqrt(variance)) if variance > 1e-12 else 1.0


def _vocabulary(name: str, reports: Mapping[str, Mapping[str, ColumnReport]], decreed: bool) -> tuple[str, ...]:
    kinds = {site: report[name].kind for site, report in reports.items() if name in report}
    if not decreed and set(kinds.values()) == {"number", "category"}:
        words = next(site for site, kind in kinds.items() if kind == "category")
        examples = ", ".join(repr(v) for v in reports[words][name].values[:3])
        raise DataError(
            f"column '{name}' holds numbers at some sites but words at site '{words}' ({examples}, ...); "
            "name it in features.numbers or features.categories"
        )
    values = sorted({value for report in reports.values() if name in report for value in report[name].values})
    if len(values) > MOST_CATEGORIES:
        raise DataError(
            f"column '{name}' has {len(values)} different words; name it in features.text, features.ignore, "
            "or give its categories in features.categories"
        )
    return tuple(values)


def _categories(cells: Cells, missing: Sequence[str]) -> list[str]:
    return sorted({str(cell) for cell in cells} - set(missing))


def _hash_text(cells: Cells, width: int) -> NDArray[np.float64]:
    from sklearn.feature_extraction.text import HashingVectorizer  # imported here: it takes a second to load

    vectorizer = HashingVectorizer(n_features=width, alternate_sign=False, norm="l2", ngram_range=(1, 2))
    return np.asarray(vectorizer.transform([str(cell) for cell in cells]).toarray(), dtype=np.float64)


def _wrong_cell(table: Table, row: int, column: str, value: Any, what: str) -> str:
    return f"line {table.line(row)}, column '{column}': '{value}' {what}"
