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
from fedaccord.labels.views import View
from fedaccord.toml_text import toml_line

RARE = 0.1  # share of the rows below which a plain spelling, such as `aml` beside `AML`, may be a slip
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
        place = f"[[sites]] of '{site}'"
        findings.append(warning(_advice(meant, words.names, place, existing, declared)))
    return findings


def missing_word_findings(experiment: Experiment, names: Counts) -> list[Finding]:
    """Return a note on labels that are called like a missing value; `names` counts the rows of each label."""
    unsure = [word for word in names if word in MISSING_WORDS]
    if experiment.labels.classes is not None or not unsure:
        return []
    line = toml_line("missing", [*experiment.labels.missing, *unsure])
    read = "is read as a label" if len(unsure) == 1 else "are read as labels"
    put = put_line("[labels]", experiment.labels.missing, "missing")
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
        return [warning(_advice(meant, {}, "[labels]", existing))] if meant else []
    named = names_by_site(experiment, data)
    total = sum(named.values(), Counter[str]())
    meant = common_names(experiment, data, named)
    found = [warning(_advice(meant, total, "[labels]", existing))] if meant else []
    alike = renaming(meant)  # a word that looks like a label of another site hardly means a missing one
    return [*found, *missing_word_findings(experiment, {n: rows for n, rows in total.items() if n not in alike})]


def names_by_site(experiment: Experiment, data: FederationData) -> dict[str, Counter[str]]:
    """Return the labels in each site's file and their rows, with the line that its own report offers pasted."""
    named = {}
    for site, words in data.label_words.items():
        if not data.sites[site].view.has_own_names:
            own = renaming(names_alike([words.names], experiment.labels.synonyms))
            named[site] = Counter[str]()
            for word, number in words.names.items():
                named[site][rename(word, own)] += number
    return named


def common_names(experiment: Experiment, data: FederationData, named: Mapping[str, Counts]) -> Table:
    """Return synonyms for labels that look alike between sites, in files and in the declarations of views."""
    declared = [labels_in_view(view) for view in data.views.values()]
    vocabularies = [*named.values(), *(dict.fromkeys(names, 0) for names in declared if names)]
    return names_alike(vocabularies, experiment.labels.synonyms)


def labels_in_view(view: View) -> tuple[str, ...]:
    """Return the federation's labels that a site's declaration names: in `known`, or as parts of coarse names."""
    if not view.has_own_names:
        return view.known or ()
    return tuple(name for name, covered in zip(view.space, view.informs().tolist(), strict=True) if covered)


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
    line, put = toml_line("synonyms", {**existing, **new}), put_line("[features]", existing)
    return [
        warning(
            f"words look like one value: {first_problems(said)}. If they are, {put}:\n{line}\n"
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
    """Return synonyms for names that look alike; the name is one of `preferred`, or the best of the words."""
    total = sum((Counter(words) for words in vocabularies), Counter[str]())
    table = {}
    for group in groups_alike(vocabularies):
        best = best_name(group, preferred, total)
        table[best] = [word for word in group if word != best]
    return table


def best_name(group: Sequence[str], preferred: Collection[str], counts: Counts) -> str:
    """Return the word that should be the name of all: spelled out, plainly written unless that is rare, frequent."""
    rare = RARE * sum(counts[word] for word in group)

    def rank(word: str) -> tuple[bool, bool, bool, int, str]:
        is_plain = word == folded(word) and counts[word] >= rare
        return word not in preferred, len(word) == 1, not is_plain, -counts[word], word

    return min(group, key=rank)


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


def _advice(meant: Table, counts: Counts, place: str, existing: Synonyms, declared: bool = False) -> str:
    """Return what looks alike and the line that mends it; `declared` names are known, so only other words are wrong."""
    line, put = toml_line("synonyms", merged(existing, meant)), put_line(place, existing)
    if declared:
        words = [f"{_counted([word], counts)} like '{name}'" for name, words in meant.items() for word in words]
        return f"words that are not labels look like one: {first_problems(words)}. If so, {put}:\n{line}"
    found = "look like one label" if len(meant) == 1 else "look like one label each"
    others = "If they are different, list all labels in labels.classes"
    return f"{_groups(meant, counts)} {found}. If so, {put}:\n{line}\n{others}"


def put_line(place: str, existing: object, key: str = "synonyms") -> str:
    """Return where a line belongs; it replaces one that is already there."""
    return f"replace the line '{key}' under {place} by" if existing else f"put this line under {place}"


def _groups(meant: Table, counts: Counts) -> str:
    return first_problems([_counted([name, *words], counts) for name, words in meant.items()])


def _counted(words: Sequence[str], counts: Counts) -> str:
    shown = [f"'{word}'" + (f" ({counts[word]})" if counts.get(word) else "") for word in words]
    return first_problems(shown, separator=", ")
