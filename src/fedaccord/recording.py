"""A run is played and written down round by round, so that it can be cut at any moment and go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fedaccord.config import Experiment
from fedaccord.data.sites import FederationData
from fedaccord.engines.network import SimulatedNetwork
from fedaccord.federation.round import RoundRecord, play_round
from fedaccord.federation.server import Server
from fedaccord.federation.state import RunState
from fedaccord.federation.traffic import Bytes, added
from fedaccord.messages.message import Message, SiteId
from fedaccord.runs.background import Background
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
from fedaccord.stopping import Clock, Signals, Stopped, Stopping, figure, gain, unknown_figure


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
    simulated: SimulatedTime | None = None


@dataclass
class SimulatedTime:
    """The seconds of a run on its simulated network, and when a figure first reached its target."""

    metric: str
    target: float | None
    seconds: float = 0.0
    reached: dict[str, float] | None = None
    seen: bool = False  # whether any evaluation had the figure

    def look(self, number: int, figures: dict[str, Any]) -> None:
        """Take the figures of an evaluation into account; a figure that the first does not have is an unknown one."""
        value = figure(figures, self.metric)
        if self.target is not None and value is None and not self.seen:
            raise unknown_figure("network.metric", self.metric, figures)
        self.seen = True
        if self.target is None or self.reached is not None or value is None:
            return
        if gain(self.metric, value) >= gain(self.metric, self.target):
            self.reached = {"round": number, "seconds": round(self.seconds, 3)}


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


@dataclass(frozen=True)
class Finished:
    """A run between two rounds, as a checkpoint keeps it."""

    state: RunState
    memories: dict[SiteId, Message]
    words: dict[str, str]
    seconds: float

    def message(self) -> Message:
        """Return the state with what else is known of the run."""
        message = self.state.to_message()
        message.words |= self.words
        message.numbers["seconds"] = self.seconds
        return message


class Recorder:
    """Writes down each round of a run; a stop by a signal leaves a checkpoint of the last finished one."""

    def __init__(
        self,
        experiment: Experiment,
        data: FederationData,
        server: Server,
        folder: RunFolder,
        past: Past,
        watcher: Watcher,
        tracking: Tracking,
    ) -> None:
        self.experiment, self.data, self.server, self.folder = experiment, data, server, folder
        self.watcher, self.tracking = watcher, tracking
        self.clock = Clock(past.seconds)
        self.stop = Stopping(experiment.stop, self.clock)
        self.played = Played(stopped=past.stopped)
        network, before = experiment.network, past_scopes(past.lines)
        if network is not None and isinstance(server.engine, SimulatedNetwork):
            self.played.simulated = SimulatedTime(network.metric, network.target)
        for line in past.lines:
            if line["scope"] == "round":
                self._pass(line.get("simulated"))
                if line["round"] in before:
                    self._look(line["round"], before[line["round"]])
        self.played.replies = sum(line["replied"] for line in past.lines if line["scope"] == "round")
        self.played.bytes = added(line.get("bytes", {}) for line in past.lines)
        self._finished = self._snapshot()
        self._kept = past.round  # the round of the last checkpoint
        self._writer = Background()
        self._unsettled: dict[SiteId, Message] | None = None  # the memories in a checkpoint that is being written

    def play(self, signals: Signals) -> Played:
        """Play the rounds that are left, until the last one or an early stop."""
        try:
            if not self.played.stopped:
                for record in play(self.experiment, self.server, self.stop.out_of_time):
                    with signals.held():
                        is_last = self._write(record)
                    if is_last:
                        break
            self._settle()
        except Stopped as stopped:
            signals.ignore()
            self._keep()
            self._settle()
            self.folder.log(f"{stopped} after round {self._round}")
            raise
        finally:
            self._writer.rest()
        self.played.seconds = self.clock.seconds()
        return self.played

    def _write(self, record: RoundRecord) -> bool:
        """Write down a round, and say whether it is the last."""
        self._settle()  # so that a cut run never goes back further than to the checkpoint before this round
        every, rounds = self.experiment.run.checkpoint_every, self.experiment.settings.rounds
        played = self.played
        played.replies += record.replied
        played.bytes = added([played.bytes, record.bytes])
        self._pass(record.simulated)
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
        self._log_events(record)
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

    def _pass(self, seconds: float | None) -> None:
        if self.played.simulated is not None:
            self.played.simulated.seconds += seconds or 0.0

    def _look(self, number: int, figures: dict[str, Any]) -> None:
        if self.played.simulated is not None:
            self.played.simulated.look(number, figures)
        self.played.figures = figures
        self.played.best.look(number, figures)
        self.stop.look(figures)

    def _snapshot(self) -> Finished:
        words = {"run": self.server.run} | ({"stopped": self.played.stopped} if self.played.stopped else {})
        memories = self.server.engine.memories()
        return Finished(self.server.state.snapshot(), memories, words, self.clock.seconds())

    @property
    def _round(self) -> int:
        return self._finished.state.round

    def _keep(self) -> None:
        """Begin to write a checkpoint of the last finished round, if there is none; training goes on meanwhile."""
        if self._round > self._kept:
            self._settle()
            finished = self._finished
            self._writer.do(lambda: self.folder.write_checkpoint(finished.message(), finished.memories))
            self._unsettled, self._kept = finished.memories, self._round

    def _settle(self) -> None:
        """Wait for the checkpoint that is being written, and tell the engine of it."""
        self._writer.wait()
        if self._unsettled is not None:
            self.server.engine.settle(self._unsettled)
            self._unsettled = None

    def _log_events(self, record: RoundRecord) -> None:
        for said in [*comings_and_goings(record), *(f"warning: {warning}" for warning in record.warnings)]:
            self.folder.log(f"round {record.round}: {said}")
        if record.figures:
            told = ", ".join(f"{name} {value:.4g}" for name, value in record.figures.items())
            self.folder.log(f"round {record.round}: {told}")
        if record.absent:
            self.folder.log(f"round {record.round}: no site that took part knows {', '.join(record.absent)}")
        for drop in record.dropped:
            self.folder.log(str(drop))
            if drop.trace:
                self.folder.log(drop.trace)
