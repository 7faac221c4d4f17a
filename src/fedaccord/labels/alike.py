"""Words that look like one name: they differ in case, accents, spaces, punctuation or plural, or are abbreviations.

Digits and symbols are never ignored, so `grade 1` and `grade 2`, `C` and `C++`, or `1-2` and `12` stay apart.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

# Two opposite words: spelled out, and as one-character codes. A code counts only among codes of the same pair.
PAIRS: Mapping[str, tuple[tuple[tuple[str, ...], str], tuple[tuple[str, ...], str]]] = {
    "yes or no": ((("yes", "true", "ja", "oui", "si"), "yt1j"), (("no", "false", "nein", "non"), "nf0")),
    "sex": ((("male", "man"), "m"), (("female", "woman"), "fw")),
    "sign": ((("positive", "pos"), "+"), (("negative", "neg"), "-")),
    "side": ((("left",), "l"), (("right",), "r")),
}
_SYMBOLS = frozenset("+<>=#%*&@$^~|§°")  # they carry meaning, as in C++ or >5
_LETTERS = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ı": "i", "æ": "ae", "œ": "oe", "−": "-", "–": "-"})
_LATIN_MARKS = 200  # combining classes from here on are accents; lower ones are vowels and tones of other scripts
_PLURALS = ((r"(\w{3,})ies", r"\1y"), (r"(\w{2,}(?:ss|x|ch|sh|z))es", r"\1"), (r"(\w{3,}[^sui])s", r"\1"))


def folded(word: str) -> str:
    """Return a word without case, accents, spaces, punctuation and plural; digits and symbols stay."""
    text = unicodedata.normalize("NFD", word.strip().casefold().translate(_LETTERS))
    text = unicodedata.normalize("NFC", "".join(c for c in text if unicodedata.combining(c) < _LATIN_MARKS))
    runs = [(is_letter, "".join(run)) for is_letter, run in groupby(text, _is_letter)]
    for place in reversed(range(len(runs))):
        if runs[place][0]:
            runs[place] = (True, _singular(runs[place][1]))
            break
    kept = []
    for place, (is_letter, run) in enumerate(runs):
        before = runs[place - 1][1][-1] if place else ""
        after = runs[place + 1][1][0] if place + 1 < len(runs) else ""
        kept.append(run if is_letter else _separator(run, before, after))
    return "".join(kept) or word


def groups_alike(vocabularies: Sequence[Collection[str]]) -> list[list[str]]:
    """Return groups of words that look like one name, sorted; each vocabulary is the words of one source.

    The source matters for codes: `1` means "yes" beside `0` alone, but not beside `2`.
    """
    words = sorted({word for vocabulary in vocabularies for word in vocabulary})
    folds = {word: folded(word) for word in words}
    names = dict(folds)
    codes = [{folds[w] for w in words if len(folds[w]) == 1 or _is_number(folds[w])} for words in vocabularies]
    for word in words:
        meanings = {
            _meaning(folds[word], among) for among, known in zip(codes, vocabularies, strict=True) if word in known
        }
        if len(meanings) == 1 and (meaning := meanings.pop()):
            names[word] = meaning
    alike: dict[str, list[str]] = {}
    for word in words:
        alike.setdefault(names[word], []).append(word)
    return [group for group in alike.values() if len(group) > 1]


def _meaning(short: str, codes: Collection[str]) -> str | None:
    """Return the side of the pair that a folded word stands for among the codes of its source, or None if unclear."""
    codes = set(codes)
    found = []
    for pair, sides in PAIRS.items():
        for side, (spelled, letters) in enumerate(sides):
            if short in spelled:
                return f"{pair} {side}"
            if len(short) == 1 and short in letters and codes <= {c for _, code in sides for c in code}:
                both = all(codes & set(code) for _, code in sides)
                found.append((not both, f"{pair} {side}"))
    clear = [meaning for one_sided, meaning in found if not one_sided] or [meaning for _, meaning in found]
    return clear[0] if len(clear) == 1 else None


def _is_letter(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character).startswith("M")


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).replace(",", "", 1).lstrip("-").isdigit()


def _separator(run: str, before: str, after: str) -> str:
    """Return what is kept of characters between letters: all between digits, else symbols and a sign at an end."""
    if before.isdigit() and after.isdigit():
        return run.strip() or " "
    is_sign = "-" in run and (not after or (not before and after.isdigit()))
    return "".join(c for c in run if c in _SYMBOLS or (c == "-" and is_sign))


def _singular(word: str) -> str:
    if len(word) < 4 or not word.isalpha():
        return word
    for plural, singular in _PLURALS:
        if re.fullmatch(plural, word):
            return re.sub(plural, singular, word)
    return word
