"""The feature columns that sites with tables have in common, and every way in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedaccord.data.declarations import Features
from fedaccord.data.features import (
    ColumnReport,
    FeaturePlan,
    agree,
    cells_of_other_kind,
    describe_columns,
    has_mostly_numbers,
    mixed_kinds,
)
from fedaccord.data.label_columns import SiteTable
from fedaccord.data.suspect_columns import NumbersAsWords, first_date, holds_number, numbers_as_words
from fedaccord.data.tables import cells_error, read_numbers
from fedaccord.errors import ConfigError, DataError, closest, listed, listed_sites
from fedaccord.toml_text import toml_line

MOST_PASTED = 30  # columns in a line that a message offers
MOST_WORDS = 10  # words that a message offers as missing values
Reports = Mapping[str, Mapping[str, ColumnReport]]


@dataclass(frozen=True)
class Agreement:
    """The features that sites agree on, errors about the other columns, and doubts by site."""

    plan: FeaturePlan
    errors: list[DataError] = field(default_factory=list)
    doubts: dict[str, list[str]] = field(default_factory=dict)
    numbers: list[str] = field(default_factory=list)  # columns that should hold numbers only


def agree_on_features(sites: Mapping[str, SiteTable], features: Features) -> Agreement:
    """Return the common features; a column that cannot be one is an error and is left out."""
    columns, errors = _columns(sites, features)
    wanted = [column for column in next(iter(columns.values())) if all(column in own for own in columns.values())]
    dates = _dates(sites, wanted, features)
    kept = [column for column in wanted if column not in dates]
    # Sites do not report columns that the experiment file describes.
    reported = [c for c in kept if c not in {*features.given_numbers(), *features.given_categories(), *features.text}]
    reports = {name: describe_columns(site.table, reported, site.train, features) for name, site in sites.items()}
    tables = {name: site.table for name, site in sites.items()}
    mixed = {
        column: cells_error(cells_of_other_kind(column, tables, reports, features.missing), f"{problem}: ")
        for column, problem in mixed_kinds(reports).items()
    }
    errors += [*dates.values(), *mixed.values()]
    clear = {name: {c: r for c, r in report.items() if c not in mixed} for name, report in reports.items()}
    left = [column for column in kept if column not in mixed]
    numbers = [column for column in mixed if has_mostly_numbers(column, reports)]
    if errors and not left:  # labels can be checked without features
        return Agreement(FeaturePlan(columns=(), missing=tuple(features.missing)), errors, numbers=numbers)
    plan = agree(clear, features, left)
    numbers += [column.name for column in plan.columns if column.kind == "number"]
    return Agreement(plan, errors, _doubts(sites, clear, plan, features), numbers)


def missing_word_note(sites: Mapping[str, SiteTable], numbers: Sequence[str], features: Features) -> list[str]:
    """Return a note on the words in columns of numbers, with the line that declares them as missing values."""
    words: dict[str, None] = {}
    for site in sites.values():
        for column in numbers:
            cells = site.table.column(column)
            wrong = cells[read_numbers(cells, features.missing)[1]]
            words |= dict.fromkeys(cell for cell in wrong.tolist() if cell[0] in "<>≤≥" or not holds_number(cell))
    if not 0 < len(words) <= MOST_WORDS:
        return []
    line = toml_line("missing", [*features.missing, *words])
    means = "means" if len(words) == 1 else "mean"
    return [f"if {_all(list(words))} {means} that a value is missing, put this line under [features]:\n{line}"]


def feature_columns(site: SiteTable, features: Features, taken: Sequence[str] = ()) -> list[str]:
    """Return the feature columns: those in `[features]`, or all that are not `taken` for something else."""
    other = {*site.labels, site.section.sensitive}
    asked = features.asked()
    for name in asked:
        if name in other:
            what = "label" if name in site.labels else "sensitive column"
            raise ConfigError(f"site '{site.section.name}': '{name}' is its {what}, so [features] cannot name it")
    return asked or [name for name in site.table.columns if name not in {*other, *taken, *features.ignore}]


def _columns(sites: Mapping[str, SiteTable], features: Features) -> tuple[dict[str, list[str]], list[DataError]]:
    """Return each site's feature columns that it has, and an error if the sites differ."""
    # The label or sensitive column of one site is not a feature of any other.
    taken = [c for site in sites.values() for c in (*site.labels, site.section.sensitive) if c is not None]
    asked = {name: feature_columns(site, features, taken) for name, site in sites.items()}
    columns = {name: [c for c in asked[name] if c in site.table.columns] for name, site in sites.items()}
    alone = [site for name, site in sites.items() if len(site.table.columns) == 1 and not asked[name]]
    problems = [_without_features(site) for site in alone]
    for name, site in sites.items():
        for column in asked[name]:
            try:
                site.table.column(column)
            except DataError as error:
                problems.append(str(error))
    if problems:
        return columns, [DataError("; ".join(problems))]
    difference = describe_differences(columns, features.ignore)
    return columns, [] if difference is None else [DataError(difference)]


def _without_features(site: SiteTable) -> str:
    (column,) = site.table.columns
    what = f"'{site.table.shown}' has a single column, '{column}', so site '{site.section.name}' has no features"
    return f'{what}; if its cells are separated by another character, add read = {{ separator = "..." }}'


def describe_differences(columns: Mapping[str, Sequence[str]], ignored: Sequence[str] = ()) -> str | None:
    """Return a sentence on every column that some sites have and others lack; None if all have the same.

    A site is compared with the columns of most sites; in a tie, with those of the first.
    """
    every = list(dict.fromkeys(column for own in columns.values() for column in own))
    number = {column: sum(column in own for own in columns.values()) for column in every}
    if all(n == len(columns) for n in number.values()):
        return None
    first = next(iter(columns.values()))
    usual = [c for c in every if 2 * number[c] > len(columns) or (2 * number[c] == len(columns) and c in first)]
    parts = []
    for site, own in columns.items():
        more = [column for column in own if column not in usual]
        lacking = []
        for column in (column for column in usual if column not in own):
            near = closest(column, more)
            lacking.append(f"'{column}'" + (f" (is its '{near}' the same?)" if near is not None else ""))
            more = [name for name in more if name != near]
        said = [f"lacks {', '.join(lacking)}"] * bool(lacking) + [f"also has {_all(more)}"] * bool(more)
        if said:
            parts.append(f"site '{site}' {' and '.join(said)}")
    differing = [column for column in every if number[column] < len(columns)]
    line = toml_line("ignore", [*ignored, *differing])
    advice = f"rename columns in the files, or leave them out with {line} in [features]"
    return f"the sites do not have the same feature columns: {'; '.join(parts)}; {advice}"


def _dates(sites: Mapping[str, SiteTable], columns: Sequence[str], features: Features) -> dict[str, DataError]:
    """Return an error for each column of dates that is not declared as words or text."""
    errors = {}
    for column in columns:
        if column in features.categories or column in features.text:
            continue
        found = {name: first_date(site.table, column, features.missing) for name, site in sites.items()}
        rows = {name: row for name, row in found.items() if row is not None}
        if rows:
            site, row = next(iter(rows.items()))
            table = sites[site].table
            where = table.wrong(row, column, f"'{table.column(column)[row]}'")
            at = listed_sites(list(rows), most=len(rows))
            line = toml_line("ignore", [*features.ignore, column])
            errors[column] = DataError(
                f"column '{column}' holds dates at {at} ({where}), and a date is not a feature; leave it out with "
                f"{line} in [features], or replace it in the files by a number, such as an age or "
                "the days since a fixed day"
            )
    return errors


def _doubts(
    sites: Mapping[str, SiteTable], reports: Reports, plan: FeaturePlan, features: Features
) -> dict[str, list[str]]:
    """Return for each site a sentence on every column of numbers that is read as words."""
    doubts: dict[str, list[str]] = {}
    for name, site in sites.items():
        words = [c for c, report in reports[name].items() if report.kind == "category" and c not in features.categories]
        suspects = [found for c in words if (found := numbers_as_words(site.table, c, features.missing)) is not None]
        if suspects:
            doubts[name] = [f"{s.describe()}; {_advice(s, suspects, plan, features.missing)}" for s in suspects]
    return doubts


def _advice(
    found: NumbersAsWords, suspects: Sequence[NumbersAsWords], plan: FeaturePlan, missing: Sequence[str]
) -> str:
    """Return how to find the wrong cells of a column, or how to keep it as words.

    The lines are the same for all suspected columns of a site, because each key can be pasted only once.
    """
    if found.has_commas:
        return 'for decimal commas add read = { decimal = "," } to the site'
    if _has_missing_words(found):
        words = dict.fromkeys(cell for other in suspects if _has_missing_words(other) for cell, _ in other.others)
        line = toml_line("missing", [*missing, *words])
        return f"if these mean that a value is missing, put this line under [features]:\n{line}"
    if len(plan.columns) > MOST_PASTED:
        return f"name all feature columns in [features], '{found.name}' in numbers to find its wrong cells"
    numbers = {other.name for other in suspects if not other.has_commas and not _has_missing_words(other)}
    kinds: dict[str, list[str]] = {"number": [], "category": [], "text": [], "groups": []}
    for column in plan.columns:
        kinds["number" if column.name in numbers else column.kind].append(column.name)
    named = {"numbers": kinds["number"], "categories": kinds["category"], "text": kinds["text"]}
    lines = [toml_line(key, names) for key, names in named.items() if names]
    put = f"put {'this line' if len(lines) == 1 else 'these lines'} under [features]"
    return "\n".join([f"to find the wrong cells {put}:", *lines, "If it is a column of words, name it in categories"])


def _has_missing_words(found: NumbersAsWords) -> bool:
    """Return whether the cells that are no numbers are a few words, which may mean that a value is missing."""
    return not found.has_commas and not found.has_marks and len(found.others) <= MOST_WORDS


def _all(names: Sequence[str]) -> str:
    return listed(names, most=len(names))
