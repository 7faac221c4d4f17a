"""Problems of a run, found in the lines of its metrics.jsonl: divergence, dropped replies, an unusable model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedaccord.errors import listed
from fedaccord.federation.defence import EXCLUDED
from fedaccord.messages.checks import NOT_FINITE
from fedaccord.runs.reading import Line

GROWTH = 10.0  # a loss that grows by this factor has diverged
LOWER = "lower method.lr or set method.clip"


@dataclass(frozen=True)
class Problem:
    """Something that went wrong in a run; a fatal problem means that its model should not be used."""

    kind: str  # "diverged", "not finite", "dropped" or "not updated"
    text: str
    fatal: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as written to summary.json."""
        return {"kind": self.kind, "text": self.text, "fatal": self.fatal}


def find_problems(lines: Sequence[Line], labels: int) -> list[Problem]:
    """Return the problems of a run on `labels` labels, fatal ones first; `lines` are sorted by round."""
    rounds = [line for line in lines if line.scope == "round"]
    if not rounds:
        return []
    diverged = _worse_than_guessing(lines, labels) or _growth(rounds) or _huge_loss(rounds, labels)
    return [*_failures(rounds[-1]), *([diverged] if diverged else []), *_drops(rounds)]


def _failures(last: Line) -> Iterator[Problem]:
    """Yield the reasons why the model after the last round should not be used."""
    if not last.finite:
        yield Problem("not finite", f"the model holds NaN or infinite values; {LOWER}", fatal=True)
    dropped = {drop["site"] for drop in last.dropped if drop["task"] != "evaluate"}
    why = ""
    if last.asked and not last.replied:  # silent sites, which are neither admitted nor dropped, are no failure
        if dropped >= set(last.asked):
            why = ", because every site was dropped"
        elif last.figures.get(EXCLUDED) == 1.0:
            why = ", because the defence excluded every site"
    if why:
        text = f"no reply was admitted in the last round, {last.round}{why}; do not use its model"
        yield Problem("not updated", text, fatal=True)
    for reason in (drop["reason"] for drop in last.dropped if not drop["site"]):
        yield Problem("not updated", f"the last round, {last.round}, had no effect: {reason}", fatal=True)


def _growth(rounds: Sequence[Line]) -> Problem | None:
    """Return a problem if the last training loss is ten times the lowest one and also above the first."""
    losses = [line.loss for line in rounds if line.loss is not None]
    # A loss near zero may grow tenfold by chance; above the first loss, everything learned is lost.
    if len(losses) < 2 or losses[-1] <= max(losses[0], 0.0) or losses[-1] < GROWTH * min(losses):
        return None
    text = f"training diverged: the loss grew from {min(losses):.3g} to {losses[-1]:.3g}; {LOWER}"
    return Problem("diverged", text)


def _worse_than_guessing(lines: Sequence[Line], labels: int) -> Problem | None:
    """Return a fatal problem if the last test loss is ten times that of equal probabilities."""
    candidates = [
        ("test loss of the global model", [line.metrics for line in lines if line.scope == "global"]),
        ("mean test loss of the sites", [line.mean for line in lines if line.scope == "sites"]),
    ]
    for name, tables in candidates:
        last = next((table for table in reversed(tables) if "nll" in table), {"nll": 0.0})
        # The loss of a sample with tags is a sum over its tags; only such samples have a Hamming loss.
        guessed = _tags_guess(labels) if "hamming" in last else math.log(max(labels, 2))
        if last["nll"] >= GROWTH * guessed:
            return _far_worse(name, last["nll"], fatal=True)
    return None


def _huge_loss(rounds: Sequence[Line], labels: int) -> Problem | None:
    """Return a problem if the last training loss is ten times that of guessing; a huge first step leads to this.

    It is not fatal, because a method may add terms to the loss.
    """
    last = next((line.loss for line in reversed(rounds) if line.loss is not None), 0.0)
    return _far_worse("training loss", last) if last >= GROWTH * _tags_guess(labels) else None


def _tags_guess(labels: int) -> float:
    """Return the loss of equal probabilities for a sample with tags, which is above that for one label."""
    return max(labels, 2) * math.log(2)


def _far_worse(name: str, loss: float, fatal: bool = False) -> Problem:
    text = f"training diverged: the {name} is {loss:.3g}, more than ten times that of guessing; {LOWER}"
    return Problem("diverged", f"{text}; do not use its model" if fatal else text, fatal)


def _drops(rounds: Sequence[Line]) -> Iterator[Problem]:
    """Yield problems for sites that were dropped in more than half of their rounds, or sent NaN or infinite values."""
    asked = Counter(site for line in rounds for site in line.asked)
    drops = {(drop["site"], line.round): drop["reason"] for line in rounds for drop in line.dropped if drop["site"]}
    mostly: dict[str, list[str]] = {}  # reason -> sites
    broken: list[str] = []
    for site in sorted({site for site, _ in drops}):
        reasons = Counter(reason for (name, _), reason in drops.items() if name == site)
        if reasons.total() > asked[site] / 2:
            mostly.setdefault(reasons.most_common(1)[0][0], []).append(site)
        elif reasons[NOT_FINITE]:
            broken.append(site)
    for reason, sites in mostly.items():
        text = f"dropped in more than half of the rounds: {listed(sites)} ({reason})"
        yield Problem("not finite" if reason == NOT_FINITE else "dropped", text)
    if broken:
        yield Problem("not finite", f"some replies held NaN or infinite values: {listed(broken)}; {LOWER}")
