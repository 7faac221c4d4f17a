"""The verdict on a run, in words: better than guessing, and better than training alone, as far as intervals say.

Pure functions of the standings of sites (`evaluation.differences`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedaccord.evaluation.differences import FEWEST_FOR_VERDICT, Standing
from fedaccord.runs.page import listed
from fedaccord.runs.reading import NO_VERDICT, Federation

MOST_NAMES = 6
FEW_ROWS = 60  # training rows of a site, from which a model learns little


def verdict(
    guessing: Mapping[str, Standing], overall: Standing | None = None, alone: Mapping[str, Standing] | None = None
) -> str:
    """Return the verdict on a run from the standing of each site, and of the global model if it was measured.

    `alone` compares with each site training alone; None if nothing was compared.
    """
    said = [_sentence("guessing", guessing) + "."] if guessing else []
    if overall is not None:
        said.append(_GLOBAL[overall])
    if not said:
        return NO_VERDICT
    if alone is not None:
        said.append(_beside_alone(alone))
    return " ".join(said)


_GLOBAL: dict[Standing, str] = {
    "better": "The global model is better than guessing.",
    "worse": "The global model is worse than guessing.",
    "unclear": "The global model cannot be told apart from guessing.",
    "unmeasured": "The global model could not be compared with guessing.",
}
_REST: dict[Standing, str] = {"worse": "worse at", "unclear": "cannot tell at", "unmeasured": "not measured at"}


def _beside_alone(standings: Mapping[str, Standing]) -> str:
    if not standings:
        return "No site can be compared with training alone."
    harmless = "unclear" in standings.values() and "worse" not in standings.values()
    return f"{_sentence('training alone', standings)}{'; no site is worse' if harmless else ''}."


def _sentence(than: str, standings: Mapping[str, Standing]) -> str:
    """Return where the model is better, and where it is not; without a full stop."""
    by_standing = {which: [site for site, s in standings.items() if s == which] for which in ("better", *_REST)}
    total, better = len(standings), by_standing["better"]
    if len(better) == total:
        everywhere = {1: "its only site", 2: "both sites"}.get(total, f"all {total} sites")
        return f"Better than {than} at {everywhere}"
    if len(by_standing["unmeasured"]) == total:
        return f"No site has enough test rows to compare the model with {than}"
    where = f"{len(better)} of {total} sites ({_names(better)})" if better else "no site"
    rest = [f"{words} {_counted(by_standing[which])}" for which, words in _REST.items() if by_standing[which]]
    return f"Better than {than} at {where}; {'; '.join(rest)}"


def _counted(sites: Sequence[str]) -> str:
    return f"{len(sites)} ({_names(sites)})"


def _names(sites: Sequence[str]) -> str:
    return listed(sites, most=MOST_NAMES)


def in_words(which: Standing, rows: int | None = None) -> str:
    """Return a standing in words; few rows allow no verdict, even if their interval excludes zero."""
    few = which == "unclear" and rows is not None and rows < FEWEST_FOR_VERDICT
    return "cannot tell: too few rows" if few else _WORDS[which]


_WORDS: dict[Standing, str] = {
    "better": "better",
    "worse": "worse",
    "unclear": "cannot tell",
    "unmeasured": "not measured",
}


def missing_parts(federation: Federation, alone: Mapping[str, Standing]) -> list[str]:
    """Return one or two sentences on what a federation lacks in which no site is better than alone."""
    teaching = [site for site in federation.sites.values() if site.informs]
    owners = Counter(label for site in teaching for label in site.informs)
    unknown = [label for label in federation.labels if not owners[label]]
    single = [label for label in federation.labels if owners[label] == 1]
    few = sum(site.train < FEW_ROWS for site in teaching)
    said = []
    if len(teaching) > 1 and 2 * len(single) >= len(owners):
        said.append(f"Labels that only one site has: {_names(single)}; sites help each other with labels they share.")
    if 2 * few > len(teaching):
        said.append(f"{few} of {len(teaching)} sites have fewer than {FEW_ROWS} training rows; annotate more rows.")
    if unknown:
        said.append(f"Labels that no site has: {_names(unknown)}; add a site that does.")
    if not said and "unclear" in alone.values():
        said.append("More test rows would make the intervals narrower.")
    return said[:2]
