"""Synonyms: the words that files use, and the name that the federation gives to each.

A table of synonyms lists the words of each name, `{ mild = ["Mild", "1"] }`. Several tables are applied in turn: a
site's own first, then the federation's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fedaccord.errors import did_you_mean
from fedaccord.labels.space import is_missing, plain

Synonyms = Mapping[str, Sequence[str]]  # name -> words that stand for it
Renaming = Mapping[str, str]  # word -> name


def check_synonyms(table: Synonyms, names: Collection[str] | None = None, what: str = "labels") -> None:
    """Raise ValueError for a word with two meanings, and for names that are not in `names`, if these are known."""
    meaning: dict[str, str] = {}
    for name, words in table.items():
        if not words:
            raise ValueError(f"synonyms: '{name}' has no words; leave it out")
        if names is not None and name not in names:
            raise ValueError(f"synonyms: '{name}' is not one of the {what}; {did_you_mean(name, names)}")
        for word in words:
            if not word.strip():
                raise ValueError(f"synonyms: '{name}' lists an empty word; an empty cell is missing")
            if meaning.setdefault(word, name) != name:
                raise ValueError(f"synonyms: '{word}' stands for both '{meaning[word]}' and '{name}'")
            if word in table and word != name:
                raise ValueError(f"synonyms: '{word}' stands for '{name}' and is itself a name in this table")
            if names is not None and word in names and word != name:
                raise ValueError(f"synonyms: '{word}' is itself one of the {what}, so it cannot stand for '{name}'")


def check_own_synonyms(own: Synonyms, common: Synonyms, names: Collection[str]) -> None:
    """Raise ValueError as `check_synonyms` does for a site's own table, whose names may be words of the common one."""
    words = [word for words in common.values() for word in words if word in own]
    check_synonyms(own, [*names, *words])


def renaming(*tables: Synonyms) -> dict[str, str]:
    """Return the name of every word that has another name, if the tables are applied in turn."""
    steps = [{word: name for name, words in table.items() for word in words} for table in tables]
    found: dict[str, str] = {}
    for word in dict.fromkeys(word for step in steps for word in step):
        name = word
        for step in steps:
            name = step.get(name, name)
        found[word] = name
    return {word: name for word, name in found.items() if word != name}


def rename(word: str, names: Renaming) -> str:
    """Return the name of a word; `1.0` has the name of `1` unless it has its own."""
    return names.get(word) or names.get(plain(word)) or word


def rename_all(words: Iterable[str], names: Renaming) -> list[str]:
    """Return the names of several words, each once, in the order of the words."""
    return list(dict.fromkeys(rename(word, names) for word in words))


def rename_annotation(value: Any, separator: str | None, names: Renaming) -> Any:
    """Return a raw annotation with names for its words: text, with `separator` between names, or a sequence of names.

    Empty annotations and those without synonyms are returned as they are.
    """
    if not names or is_missing(value):
        return value
    if isinstance(value, str):
        parts = [value.strip()] if separator is None else [part.strip() for part in value.split(separator)]
        return (separator or "").join(rename(part, names) for part in parts)
    if isinstance(value, Iterable):
        return [rename(str(part).strip(), names) for part in value]
    return rename(str(value), names) if str(value) in names or plain(str(value)) in names else value
