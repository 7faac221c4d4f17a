"""Plays the rounds of a run and records each one, so that an interrupted run can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from fedaccord.config import Experiment
from fedaccord.data.sites import FederationData
from fedaccord.engines.network import SimulatedNetwork
from fedaccord.federation.round import Progress, RoundRecord, evaluate, play_round
from fedaccord.federation.server import Server
from fedaccord.federation.state import RunState
from fedaccord.federation.traffic import Bytes, sum_by_site
from fedaccord.labels.headlines import possible_headlines
from fedaccord.messages.message import Message, SiteId
from fedaccord.runs.checkpoint import Past
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.records import Best, ending_lines, last_lines, past_scopes, round_lines, scopes
from fedaccord.runs.tracking import Tracking
from fedaccord.stopping import Clock, Signals, Stopped, Stopping, figure, gain, unknown_metric


@dataclass
class Watcher:
    """Callbacks that report the progress of a run."""

    loaded: Callable[[FederationData], None] = lambda data: None  # before the first round; it may refuse the data
    started: Callable[[FederationData], None] = lambda data: None
    round: Callable[[RoundRecord], None] = lambda record: None
    progress: Callable[[Progress], None] = lambda progress: None  # after the last round
    note: Callable[[str], None] = lambda text: None  # for the user: a rejected checkpoint, an early stop


@dataclass
class RunOutcome:
    """The outcome of all rounds of a run."""

    best: Best = field(default_factory=Best)
    figures: dict[str, Any] = field(default_factory=lambda: scopes(None))  # metrics of the last evaluation
    stopped: str = ""  # the reason for an early stop
    seconds: float = 0.0
    replies: int = 0  # admitted replies, over all rounds
    bytes: Bytes = field(default_factory=dict)  # over all rounds
    simulated: SimulatedTime | None = None


@dataclass
class SimulatedTime:
    """The seconds of a run on its simulated network, and when a metric first reached its target."""

    metric: str
    target: float | None
    seconds: float = 0.0
    reached: dict[str, float] | None = None
    seen: bool = False  # whether any evaluation had the metric

    def look(self, number: int, figures: dict[str, Any]) -> None:
        """Update with the metrics of an evaluation; raise ConfigError if the first one lacks the metric."""
        value = figure(figures, self.metric)
        if self.target is not None and value is None and not self.seen:
            raise unknown_metric("network.metric", self.metric, figures)
        self.seen = True
        if self.target is None or self.reached is not None or value is None:
            return
        if gain(self.metric, value) >= gain(self.metric, self.target):
            self.reached = {"round": number, "seconds": round(self.seconds, 3)}


def play(
    experiment: Experiment, server: Server, out_of_time: Callable[[], bool] = lambda: False
) -> Iterator[RoundRecord]:
    """Yield the record of each round; a round that ends `out_of_time` is evaluated because it is the last."""
    every, rounds = experiment.run.evaluate_every, experiment.settings.rounds
    for number in range(server.state.round + 1, rounds + 1):
        due = every > 0 and (number % every == 0 or number == rounds)
        yield play_round(server, evaluated=due or (every > 0 and out_of_time))


def conclude(
    server: Server, figures: dict[str, Any], each: Callable[[Progress], None] = lambda progress: None
) -> dict[str, Any]:
    """Run the method's steps after the last round, and return the figures of what each site ends with.

    `figures` are those of the last evaluation, whose sites are then under `shared`; without any, nothing is evaluated.
    """
    changed = False
    for step in server.recipe.conclude:
        for progress in step(server):
            changed = changed or progress.changes
            each(progress)
    if not changed:
        return figures
    measured = figures["global"] or figures["sites"]["each"]
    ended = scopes(evaluate(server, server.state.round)) if measured else figures
    return {**ended, "shared": figures["sites"]} if measured else figures


@dataclass(frozen=True)
class Finished:
    """The state of a run after a round, as saved in a checkpoint."""

    state: RunState
    memories: dict[SiteId, Message]
    words: dict[str, str]
    seconds: float

    def message(self) -> Message:
        """Return the state, the run's words and its seconds as one message."""
        message = self.state.to_message()
        message.words |= self.words
        message.numbers["seconds"] = self.seconds
        return message


class Recorder:
    """Records each round of a run; a signal leaves a checkpoint of the last finished round."""

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
        self.outcome = RunOutcome(Best(possible_headlines(data.views.values())), stopped=past.stopped)
        network, before = experiment.network, past_scopes(past.lines)
        if network is not None and isinstance(server.engine, SimulatedNetwork):
            self.outcome.simulated = SimulatedTime(network.metric, network.target)
        for line in past.lines:
            if line["scope"] == "round":
                self._add_simulated(line.get("simulated"))
                if line["round"] in before:
                    self._look(line["round"], before[line["round"]])
        self.outcome.replies = sum(line["replied"] for line in past.lines if line["scope"] == "round")
        self.outcome.bytes = sum_by_site(line.get("bytes", {}) for line in past.lines)
        self._finished = self._snapshot()
        self._checkpointed = past.round  # the round of the last checkpoint
        self._writer = ThreadPoolExecutor(1)
        self._writing: tuple[Future[None], dict[SiteId, Message]] | None = None  # a checkpoint, with its memories

    def play(self, signals: Signals) -> RunOutcome:
        """Play the remaining rounds, until the last one or an early stop."""
        try:
            if not self.outcome.stopped:
                for record in play(self.experiment, self.server, self.stop.out_of_time):
                    with signals.deferred():
                        is_last = self._write(record)
                    if is_last:
                        break
            self._finish_checkpoint()
        except Stopped as stopped:
            signals.ignore()
            self._start_checkpoint()
            self._finish_checkpoint()
            self.folder.log(f"{stopped} after round {self._round}")
            raise
        finally:
            self._writer.shutdown()
        self.outcome.seconds = self.clock.seconds()
        return self.outcome

    def conclude(self) -> None:
        """Run the method's steps after the last round, and record what each site ends with."""
        server, outcome = self.server, self.outcome
        if not outcome.replies:
            return
        try:
            outcome.figures = conclude(server, outcome.figures, self._further)
        except Stopped as stopped:
            self.folder.log(f"{stopped} after the last round; resume repeats what follows it")
            raise
        for drop in server.dropped[server.recorded_drops :]:
            self.folder.log(f"after the last round: {drop}")
        server.recorded_drops = len(server.dropped)
        if "shared" in outcome.figures:
            self.folder.append_metrics(ending_lines(server.state.round, outcome.figures))
        outcome.bytes = sum_by_site([outcome.bytes, server.traffic.take()])
        if isinstance(server.engine, SimulatedNetwork):
            self._add_simulated(server.engine.take_seconds())
        outcome.seconds = self.clock.seconds()

    def _further(self, progress: Progress) -> None:
        """Add the messages of a further round, and show it."""
        if progress.record is not None:
            self.outcome.bytes = sum_by_site([self.outcome.bytes, progress.record.bytes])
            self._add_simulated(progress.record.simulated)
        self.watcher.progress(progress)

    def _write(self, record: RoundRecord) -> bool:
        """Record a round, and return whether it is the last."""
        self._finish_checkpoint()  # an interrupted run then never loses a checkpoint of an earlier round
        every, rounds = self.experiment.run.checkpoint_every, self.experiment.settings.rounds
        outcome = self.outcome
        outcome.replies += record.replied
        outcome.bytes = sum_by_site([outcome.bytes, record.bytes])
        self._add_simulated(record.simulated)
        if record.evaluation is not None:
            self._look(record.round, scopes(record.evaluation))
        # A run only stops after an evaluated round, so that its last model has metrics.
        if record.round < rounds and (record.evaluation is not None or not self.experiment.run.evaluate_every):
            outcome.stopped = self.stop.reason()
        is_last = record.round == rounds or bool(outcome.stopped)
        lines = round_lines(record, self.data.space, self.data.views)
        if is_last:
            lines += last_lines(record, self.server, self.data)
        self.folder.append_metrics(lines)
        self._log_events(record)
        self.tracking.put(lines)
        self._finished = self._snapshot()
        if is_last or (every and record.round % every == 0):
            self._start_checkpoint()
        self.watcher.round(record)
        if outcome.stopped:
            text = f"stopped early, after round {record.round} of {rounds}: {outcome.stopped}"
            self.folder.log(text)
            self.watcher.note(text)
        return is_last

    def _add_simulated(self, seconds: float | None) -> None:
        if self.outcome.simulated is not None:
            self.outcome.simulated.seconds += seconds or 0.0

    def _look(self, number: int, figures: dict[str, Any]) -> None:
        if self.outcome.simulated is not None:
            self.outcome.simulated.look(number, figures)
        self.outcome.figures = figures
        self.outcome.best.look(number, figures)
        self.stop.look(figures)

    def _snapshot(self) -> Finished:
        words = {"run": self.server.run} | ({"stopped": self.outcome.stopped} if self.outcome.stopped else {})
        memories = self.server.engine.memories()
        return Finished(self.server.state.snapshot(), memories, words, self.clock.seconds())

    @property
    def _round(self) -> int:
        return self._finished.state.round

    def _start_checkpoint(self) -> None:
        """Start writing a checkpoint of the last finished round in the background, unless it has one."""
        if self._round > self._checkpointed:
            self._finish_checkpoint()
            message, memories = self._finished.message, self._finished.memories
            writing = self._writer.submit(lambda: self.folder.write_checkpoint(message(), memories))
            self._writing, self._checkpointed = (writing, memories), self._round

    def _finish_checkpoint(self) -> None:
        """Wait for the checkpoint being written, and confirm it to the engine."""
        if self._writing is not None:
            writing, memories = self._writing
            wait([writing])  # a signal that arrives here leaves the checkpoint pending
            self._writing = None
            writing.result()
            self.server.engine.checkpointed(memories)

    def _log_events(self, record: RoundRecord) -> None:
        for event in record.events():
            self.folder.log(event)
        if record.figures:
            metrics = ", ".join(f"{name} {value:.4g}" for name, value in record.figures.items())
            self.folder.log(f"round {record.round}: {metrics}")
        if record.absent:
            self.folder.log(f"round {record.round}: no participating site knows {', '.join(record.absent)}")
        for drop in record.dropped:
            self.folder.log(str(drop))
            if drop.trace:
                self.folder.log(drop.trace)
