"""A run is played and written down round by round, so that it can be cut at any moment and go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fedaccord.config import Experiment
from fedaccord.data.sites import FederationData
from fedaccord.federation.round import RoundRecord, play_round
from fedaccord.federation.server import Server
from fedaccord.federation.traffic import Bytes, added
from fedaccord.messages.message import Message, SiteId
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.records import (
    Best,
    confusion_lines,
    correspondence_lines,
    method_lines,
    past_scopes,
    round_lines,
    scopes,
)
from fedaccord.runs.resume import Past
from fedaccord.runs.tracking import Tracking
from fedaccord.stopping import Clock, Signals, Stopped, Stopping


@dataclass
class Watcher:
    """Who is told how a run goes: the command line's display, or nobody."""

    started: Callable[[FederationData], None] = lambda data: None
    round: Callable[[RoundRecord], None] = lambda record: None
    note: Callable[[str], None] = lambda text: None  # what a person should know: a refused checkpoint, an early stop


@dataclass
class Played:
    """What the rounds of a run came to."""

    best: Best = field(default_factory=Best)
    figures: dict[str, Any] = field(default_factory=lambda: scopes(None))  # of the last evaluation
    stopped: str = ""  # why it ended before its last round
    seconds: float = 0.0
    replies: int = 0  # admitted, over all rounds
    bytes: Bytes = field(default_factory=dict)  # over all rounds


def play(
    experiment: Experiment, server: Server, out_of_time: Callable[[], bool] = lambda: False
) -> Iterator[RoundRecord]:
    """Play all rounds of an experiment, one at a time; one that is `out_of_time` is evaluated, since it is the last."""
    every, rounds = experiment.run.evaluate_every, experiment.settings.rounds
    for number in range(server.state.round + 1, rounds + 1):
        due = every > 0 and (number % every == 0 or number == rounds)
        yield play_round(server, evaluated=due or (every > 0 and out_of_time))


def comings_and_goings(record: RoundRecord) -> list[str]:
    """Say who belongs to the federation from a round on, and who no longer does."""
    joined = [f"site '{site}' joins the federation" for site in record.joined]
    return joined + [f"site '{site}' has left the federation" for site in record.left]


class Recorder:
    """Writes down each round of a run; a stop by a signal leaves a checkpoint of the last finished one."""

    def __init__(
        self, experiment: Experiment, data: FederationData, server: Server, folder: RunFolder, past: Past,
        watcher: Watcher, tracking: Tracking,
    ) -> None:  # fmt: skip
        self.experiment, self.data, self.server, self.folder = experiment, data, server, folder
        self.watcher, self.tracking = watcher, tracking
        self.clock = Clock(past.seconds)
        self.stop = Stopping(experiment.stop, self.clock)
        self.played = Played(stopped=past.stopped)
        for number, figures in sorted(past_scopes(past.lines).items()):
            self._look(number, figures)
        self.played.replies = sum(line["replied"] for line in past.lines if line["scope"] == "round")
        self.played.bytes = added(line.get("bytes", {}) for line in past.lines)
        self._finished = self._snapshot()
        self._kept = past.round  # the round of the last checkpoint

    def play(self, signals: Signals) -> Played:
        """Play the rounds that are left, until the last one or an early stop."""
        try:
            if not self.played.stopped:
                for record in play(self.experiment, self.server, self.stop.out_of_time):
                    with signals.held():
                        is_last = self._write(record)
                    if is_last:
                        break
        except Stopped as stopped:
            signals.ignore()
            self._keep()
            self.folder.log(f"{stopped} after round {self._round}")
            raise
        self.played.seconds = self.clock.seconds()
        return self.played

    def _write(self, record: RoundRecord) -> bool:
        """Write down a round, and say whether it is the last."""
        every, rounds = self.experiment.run.checkpoint_every, self.experiment.settings.rounds
        played = self.played
        played.replies += record.replied
        played.bytes = added([played.bytes, record.bytes])
        if record.evaluation is not None:
            self._look(record.round, scopes(record.evaluation))
        # Without an evaluation the clock alone ends no run: the last model is to be judged.
        if record.round < rounds and (record.evaluation is not None or not self.experiment.run.evaluate_every):
            played.stopped = self.stop.reason()
        is_last = record.round == rounds or bool(played.stopped)
        lines = round_lines(record, self.data.space)
        if is_last and record.evaluation is not None:
            lines += confusion_lines(record.round, record.evaluation, self.data)
        if is_last:
            lines += correspondence_lines(record.round, self.server, self.data)
            lines += method_lines(record.round, self.server)
        self.folder.append_metrics(lines)
        self._log_drops(record)
        self.tracking.put(lines)
        self._finished = self._snapshot()
        if is_last or (every and record.round % every == 0):
            self._keep()
        self.watcher.round(record)
        if played.stopped:
            said = f"stopped early, after round {record.round} of {rounds}: {played.stopped}"
            self.folder.log(said)
            self.watcher.note(said)
        return is_last

    def _look(self, number: int, figures: dict[str, Any]) -> None:
        self.played.figures = figures
        self.played.best.look(number, figures)
        self.stop.look(figures)

    def _snapshot(self) -> tuple[Message, dict[SiteId, Message]]:
        """Return state and memories between two rounds; a round replaces tensors and never writes into them."""
        state = self.server.state.to_message()
        state.words["run"], state.numbers["seconds"] = self.server.run, self.clock.seconds()
        if self.played.stopped:
            state.words["stopped"] = self.played.stopped
        return state, self.server.engine.memories()

    @property
    def _round(self) -> int:
        return int(self._finished[0].numbers["round"])

    def _keep(self) -> None:
        """Write a checkpoint of the last finished round, if there is none."""
        if self._round > self._kept:
            self.folder.write_checkpoint(*self._finished)
            self.server.engine.settle(self._finished[1])
            self._kept = self._round

    def _log_drops(self, record: RoundRecord) -> None:
        for said in [*comings_and_goings(record), *(f"warning: {warning}" for warning in record.warnings)]:
            self.folder.log(f"round {record.round}: {said}")
        if record.absent:
            self.folder.log(f"round {record.round}: no site that took part knows {', '.join(record.absent)}")
        for drop in record.dropped:
            self.folder.log(str(drop))
            if drop.trace:
                self.folder.log(drop.trace)
