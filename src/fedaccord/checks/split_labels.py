"""Checks for labels that no name connects: codes of one site only, and several names in a cell that is read as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedaccord.checks.names import common_names, labels_in_view, names_by_site, put_line
from fedaccord.config import Experiment
from fedaccord.data.declarations import SiteSection
from fedaccord.data.sites import FederationData
from fedaccord.errors import first_problems, listed
from fedaccord.findings import Finding, warning
from fedaccord.labels.synonyms import rename, rename_all, renaming
from fedaccord.toml_text import toml_line

SEPARATORS = "|;,/"
MOST_IN_LINE = 12  # labels in a line that a message offers
Counts = Mapping[str, int]


def unshared_label_findings(experiment: Experiment, data: FederationData) -> list[Finding]:
    """Warn of sites that know all labels, but have none in common with another site: their names are probably codes."""
    if experiment.labels.classes is not None:
        return []
    named = names_by_site(experiment, data)
    common = renaming(common_names(experiment, data, named))  # lines that other findings offer are taken as pasted
    names = {site: {rename(name, common) for name, rows in own.items() if rows} for site, own in named.items()}
    declared = {site: set(rename_all(labels_in_view(view), common)) for site, view in data.views.items()}
    used = {site: own for site in data.views if (own := names.get(site, set()) | declared[site])}
    alone = [
        site
        for site in used
        if names.get(site) and data.views[site].known is None and len(used) > 1 and not _shared(site, used)
    ]
    # If no two sites share a label, one of them has the names that the others should use: not one with codes.
    if len(alone) == len(used) > 1:
        alone.remove(min(alone, key=lambda site: sum(map(_is_code, used[site])) / len(used[site])))
    sections = {section.name: section for section in experiment.sites or []}
    return [warning(_advice(sections[site], data.label_words[site].names, used)) for site in alone]


def _shared(site: str, used: Mapping[str, set[str]]) -> bool:
    return any(used[site] & other for name, other in used.items() if name != site)


def _is_code(name: str) -> bool:
    return len(name) == 1 or any(character.isdigit() for character in name)


def _advice(section: SiteSection, counts: Counts, used: Mapping[str, set[str]]) -> str:
    site, existing = section.name, section.synonyms
    put = put_line(f"[[sites]] of '{site}'", existing)
    own = first_problems([f"'{name}' ({rows})" for name, rows in sorted(counts.items()) if rows], separator=", ")
    others = sorted(set().union(*(names for name, names in used.items() if name != site)))
    line = toml_line("synonyms", {**{name: ["..."] for name in others[:MOST_IN_LINE]}, **existing})
    return (
        f"site '{site}' has no label in common with any other site: {own}. If these are its words for the others' "
        f"labels, {put}, with its words in place of the dots:\n{line}\n"
        f'If it knows no other labels, add view = {{ known = "own" }} there'
    )


def joined_name_findings(names: Counts, separator: str | None) -> list[Finding]:
    """Warn of cells with several names that are read as one label, because another character is between them."""
    parts = {name: _parts(name, separator) for name in names}
    occurring = Counter(part for own in parts.values() for part in set(own))
    joined = [name for name, own in parts.items() if len(own) > 1 and all(occurring[part] > 1 for part in own)]
    if not joined:
        return []
    shown = [f"'{name}' ({names[name]})" for name in joined]
    made_of = listed(sorted({part for name in joined for part in parts[name]}))
    what = (
        f"{first_problems(shown, separator=', ')} is read as one label"
        if len(joined) == 1
        else (f"{first_problems(shown, separator=', ')} are each read as one label")
    )
    return [
        warning(
            f"{what}, but made of other names: {made_of}. Several possible labels in a cell need '|' between them and "
            'view = { kind = "candidates" }; several labels at once need \';\' and view = { kind = "tags" }'
        )
    ]


def _parts(name: str, separator: str | None) -> Sequence[str]:
    """Return the names that another separator than the view's would find in a name."""
    found = [[part.strip() for part in name.split(mark)] for mark in SEPARATORS if mark != separator]
    return next((parts for parts in found if len(parts) > 1 and all(parts)), [name])
