"""Checks for names that look alike: one label or one category that files write in several ways.

A finding ends with the line that mends it, ready to be pasted into the experiment file. The line repeats the synonyms
that the file already has, because a table can have the key only once.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from fedaccord.config import Experiment
from fedaccord.data.declarations import MISSING_WORDS
from fedaccord.data.sites import FederationData
from fedaccord.errors import first_problems, listed
from fedaccord.findings import Finding, note, warning
from fedaccord.labels.alike import folded, groups_alike
from fedaccord.labels.synonyms import Synonyms, rename, renaming
from fedaccord.toml_text import toml_line

CLOSE = 0.8  # similarity from which an unknown word is probably a misspelled name
Counts = Mapping[str, int]
Table = dict[str, list[str]]


def own_name_findings(experiment: Experiment, data: FederationData, site: str) -> list[Finding]:
    """Return findings on the label names of one site, from its own file only."""
    words = data.label_words.get(site)
    section = next((section for section in experiment.sites or [] if section.name == site), None)
    if words is None or section is None:
        return []
    view, existing = data.sites[site].view, section.synonyms
    declared = experiment.labels.classes is not None or view.has_own_names
    preferred = [*existing, *experiment.labels.synonyms]
    if declared:
        meant = closest_names(words.names, view.allowed_names)
    else:
        meant = names_alike([words.names], preferred)
    findings = []
    if meant:
        found = "is not a label, but looks like one" if declared else "look like one label"
        place = f"[[sites]] of '{site}'"
        findings.append(warning(_advice(meant, words.names, found, place, existing, not declared)))
    return findings


def missing_word_findings(experiment: Experiment, names: Counts) -> list[Finding]:
    """Return a note on labels that are called like a missing value; `names` counts the rows of each label."""
    unsure = [word for word in names if word in MISSING_WORDS]
    if experiment.labels.classes is not None or not unsure:
        return []
    line = toml_line("missing", [*experiment.labels.missing, *unsure])
    read = "is read as a label" if len(unsure) == 1 else "are read as labels"
    put = _put("[labels]", experiment.labels.missing, "missing")
    return [note(f"{_counted(unsure, names)} {read}. If that means that no label is known, {put}:\n{line}")]


def common_name_findings(experiment: Experiment, data: FederationData) -> list[Finding]:
    """Return findings on names that differ between sites, for the coordinator.

    Each site's own line is taken as pasted, so that all lines together mend everything.
    """
    existing = experiment.labels.synonyms
    if experiment.labels.classes is not None:
        return []
    if not data.label_words:
        meant = names_alike([dict.fromkeys(data.space.names, 1)], existing)
        return [warning(_advice(meant, {}, "look like one label", "[labels]", existing, True))] if meant else []
    vocabularies, total = [], Counter[str]()
    for site, words in data.label_words.items():
        if not data.sites[site].view.has_own_names:
            own = renaming(names_alike([words.names], existing))
            named = Counter[str]()
            for word, number in words.names.items():
                named[rename(word, own)] += number
            vocabularies.append(named)
            total += named
    declared = [view.known for view in data.views.values() if view.known is not None]
    vocabularies += [Counter(dict.fromkeys(known, 0)) for known in declared]
    meant = names_alike(vocabularies, existing)
    found = [warning(_advice(meant, total, "look like one label", "[labels]", existing, True))] if meant else []
    return [*found, *missing_word_findings(experiment, total)]


def word_name_findings(experiment: Experiment, data: FederationData) -> list[Finding]:
    """Return a finding on words of feature columns that look alike, or that are unknown and look like a value."""
    given, existing = experiment.features.given_categories(), experiment.features.synonyms
    new: dict[str, Table] = {}
    said = []
    for column, sites in data.words.items():
        total = sum((Counter(words) for words in sites.values()), Counter[str]())
        if column in given:
            meant = closest_names(total, given[column])
        else:
            meant = names_alike(list(sites.values()), existing.get(column, {}))
        if meant:
            new[column] = merged(existing.get(column, {}), meant)
            said.append(f"column '{column}': " + _groups(meant, total))
    if not said:
        return []
    line = toml_line("synonyms", {**existing, **new})
    return [
        warning(
            f"words look like one value: {first_problems(said)}. If they are, {_put('[features]', existing)}:\n{line}\n"
            "If they are different, list the values of the column in features.categories"
        )
    ]


def unused_synonym_findings(experiment: Experiment, data: FederationData) -> list[Finding]:
    """Warn of synonyms for columns that are neither features nor sensitive, which have no effect."""
    if data.features is None or data.flaws:  # a column with wrong cells is left out of the features
        return []
    used = {column.name for column in data.features.columns} | {site.sensitive for site in experiment.sites or []}
    unused = [column for column in experiment.features.synonyms if column not in used]
    if not unused:
        return []
    return [warning(f"features.synonyms has no effect on {listed(unused)}, which the model does not use")]


def names_alike(vocabularies: Sequence[Counts], preferred: Collection[str]) -> Table:
    """Return synonyms for names that look alike; the name is one of `preferred`, or the most frequent word."""
    total = sum((Counter(words) for words in vocabularies), Counter[str]())
    table = {}
    for group in groups_alike(vocabularies):
        best = min(group, key=lambda word: _rank(word, preferred, total))
        table[best] = [word for word in group if word != best]
    return table


def _rank(word: str, preferred: Collection[str], counts: Counts) -> tuple[bool, bool, int, bool, str]:
    """Return a key that sorts the best name first: spelled out, frequent, and plainly written."""
    return word not in preferred, len(word) == 1, -counts[word], word != folded(word), word


def closest_names(words: Iterable[str], allowed: Sequence[str]) -> Table:
    """Return synonyms for unknown words: the allowed name that looks alike, or is spelled almost the same."""
    unknown = [word for word in words if word not in allowed]
    alike = {word: group for group in groups_alike([list(allowed), unknown]) for word in group}
    table: Table = {}
    for word in unknown:
        names = [name for name in alike.get(word, []) if name in allowed]
        names = names or _misspelled(word, allowed)
        if len(names) == 1:
            table.setdefault(names[0], []).append(word)
    return table


def _misspelled(word: str, allowed: Sequence[str]) -> list[str]:
    """Return the allowed name that a word without digits almost spells; codes such as A1 and A2 are never close."""
    if any(character.isdigit() for character in word):
        return []
    return difflib.get_close_matches(word, allowed, n=1, cutoff=CLOSE)


def merged(existing: Synonyms, new: Synonyms) -> Table:
    """Return one table of synonyms; a name that became a word of another takes its words there."""
    table = {name: list(words) for name, words in existing.items()}
    for name, words in new.items():
        inherited = [other for word in words for other in table.pop(word, [])]
        table[name] = list(dict.fromkeys([*table.get(name, []), *words, *inherited]))
    return table


def _advice(meant: Table, counts: Counts, found: str, place: str, existing: Synonyms, separable: bool) -> str:
    line = toml_line("synonyms", merged(existing, meant))
    text = f"{_groups(meant, counts)} {found}. If so, {_put(place, existing)}:\n{line}"
    return text + ("\nIf they are different, list all labels in labels.classes" if separable else "")


def _put(place: str, existing: object, key: str = "synonyms") -> str:
    return f"replace the line '{key}' under {place} by" if existing else f"put this line under {place}"


def _groups(meant: Table, counts: Counts) -> str:
    return first_problems([_counted([name, *words], counts) for name, words in meant.items()])


def _counted(words: Sequence[str], counts: Counts) -> str:
    shown = [f"'{word}'" + (f" ({counts[word]})" if counts.get(word) else "") for word in words]
    return first_problems(shown, separator=", ")
