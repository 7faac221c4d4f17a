"""A round and its seven phases.

prepare -> brief -> train -> admit -> combine -> refine -> evaluate
server     server   site     server   server     server    both
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.engines.network import SimulatedNetwork
from fedaccord.evaluation.confusion import received
from fedaccord.evaluation.groups import fairness_figures, pooled_figures
from fedaccord.evaluation.metrics import Metrics, class_metrics, finite, summarise_sites, tag_metrics
from fedaccord.federation import streaming
from fedaccord.federation.server import Server
from fedaccord.federation.state import Dropped
from fedaccord.federation.traffic import Bytes
from fedaccord.labels.judging import correlation_error
from fedaccord.messages.checks import all_finite, is_finite
from fedaccord.messages.message import SiteId
from fedaccord.messages.names import CONFUSION, POOL
from fedaccord.models.network import predict_logits


@dataclass
class Evaluation:
    """Metrics of one round: of the global model on the server's test data, and of each site on its own."""

    global_: Metrics = field(default_factory=dict)
    confusion: Tensor | None = None
    sites: dict[SiteId, Metrics] = field(default_factory=dict)
    site_confusions: dict[SiteId, Tensor] = field(default_factory=dict)

    def over_sites(self) -> dict[str, Metrics]:
        """Return mean, standard deviation and range over the sites."""
        return summarise_sites(self.sites)

    def pooled(self) -> Metrics:
        """Return the fairness metrics over the test rows of all sites; empty if no site has any."""
        return finite(pooled_figures(self.sites.values()))


@dataclass
class RoundRecord:
    """The record of a round."""

    round: int
    asked: list[SiteId] = field(default_factory=list)
    replied: int = 0
    loss: float | None = None
    dropped: list[Dropped] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    bytes: Bytes = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)  # labels that no reply of the round informs
    joined: list[SiteId] = field(default_factory=list)  # members from this round on
    left: list[SiteId] = field(default_factory=list)  # members until the last round
    warnings: list[str] = field(default_factory=list)
    figures: Metrics = field(default_factory=dict)  # measured by the server's steps
    simulated: float | None = None  # seconds on a simulated network
    finite: bool = True  # whether the model after the round is finite

    def events(self) -> list[str]:
        """Return a line for each site that joins or has left, and for each warning."""
        events = [f"site '{site}' joins the federation" for site in self.joined]
        events += [f"site '{site}' has left the federation" for site in self.left]
        events += [f"warning: {warning}" for warning in self.warnings]
        return [f"round {self.round}: {event}" for event in events]


@dataclass(frozen=True)
class Progress:
    """Progress of a method after the last round: further rounds that are done, out of `total`."""

    doing: str
    done: int
    total: int
    record: RoundRecord | None = None  # of the further round, if the server aggregated a model
    changes: bool = True  # False: a trial, which leaves the models as they are


def play_round(server: Server, evaluated: bool | Callable[[], bool] = True) -> RoundRecord:
    """Run one round, which updates the server's state, and return its record.

    `evaluated` may be a function, called before the evaluation.
    """
    record = RoundRecord(server.state.round + 1)
    recipe, warned = server.recipe, len(server.warnings)
    with _phase(record, "prepare"):
        record.joined, record.left = server.joining.update_members()
        for step in recipe.prepare:
            step(server)
    with _phase(record, "brief"):
        record.asked = server.sample_sites()
        tensors = server.tensors
        briefs = {site: server.brief(site, tensors) for site in record.asked}
    if streaming.needs_only_mean(recipe) and server.attack is None and not server.admission.clip:
        with _phase(record, "train"):
            streamed = streaming.train(server, briefs)
        with _phase(record, "admit"):
            replies = streamed.replies(server)
        with _phase(record, "combine"):
            if replies is not None:
                server.adopt(streamed.mean.result(), streamed.counters)
    else:
        with _phase(record, "train"):
            answers = server.ask("train", briefs)
        with _phase(record, "admit"):
            replies = server.admit(answers)
        with _phase(record, "combine"):
            server.combine(replies)
    with _phase(record, "refine"):
        for step in recipe.refine:
            step(server)
    record.finite = all_finite(server.state.model)
    # A server that trains on its own samples informs all labels, even if no site replies.
    if replies is not None or not (server.trains and (record.asked or not recipe.sites_train)):
        record.absent = _labels_without_reply(server, replies)
    if replies is not None:
        record.replied = len(replies)
        numbers = [message.numbers for message in replies.messages if is_finite(message.numbers.get("loss"))]
        losses = [(n["loss"], n["samples"]) for n in numbers]
        record.loss = sum(v * n for v, n in losses) / sum(n for _, n in losses) if losses else None
    if evaluated() if callable(evaluated) else evaluated:
        with _phase(record, "evaluate"):
            record.evaluation = evaluate(server)
    server.state.round += 1
    server.replies, server.silent = None, []
    # Sites that were dropped while joining are part of the first round's record.
    record.dropped = server.dropped[server.recorded_drops :]
    server.recorded_drops = len(server.dropped)
    record.bytes = server.traffic.take()
    record.simulated = server.engine.take_seconds() if isinstance(server.engine, SimulatedNetwork) else None
    record.warnings = server.warnings[warned:]
    record.figures, server.figures = finite(server.figures), {}
    return record


def _labels_without_reply(server: Server, replies: Replies | None) -> list[str]:
    """Return the labels that no reply of a round informs."""
    if replies is None or not len(replies):
        return list(server.space)
    informed = replies.informs.any(0).tolist()
    return [label for label, is_informed in zip(server.space, informed, strict=True) if not is_informed]


def evaluate(server: Server, round_: int | None = None) -> Evaluation:
    """Evaluate the current model on the server's test data, if any, and at every member on its own.

    Members are those of a round, by default the next one.
    """
    result = Evaluation()
    if server.test is not None and server.has_full_model:
        logits, truth = predict_logits(server.load_network(), server.test[0]).cpu(), server.test[1].cpu()
        if truth.dim() == 2:
            scores = torch.sigmoid(logits)
            metrics = tag_metrics(scores, truth) | correlation_error(scores, truth)
        else:
            metrics, result.confusion = class_metrics(logits, truth)
        # Fairness metrics need one predicted label per row, which tags do not have.
        if server.target is not None and server.test_groups is not None and truth.dim() == 1:
            target, predicted = server.target, logits.argmax(-1)
            metrics |= fairness_figures(
                predicted, truth, *server.test_groups, target.group, target.label, target.groups
            )
        result.global_ = finite(metrics)
    tensors = server.tensors
    briefs = {site: server.brief(site, tensors) for site in server.members(round_) if site != POOL}
    for site, answer in server.admit_figures(server.ask("evaluate", briefs)).items():
        if answer.numbers.get("samples"):
            result.sites[site] = {name: float(value) for name, value in answer.numbers.items() if name != "round"}
            if CONFUSION in answer.tensors:
                counts = received(answer.tensors[CONFUSION], server.reported.answers(site))
                result.site_confusions[site] = counts
    return result


@contextmanager
def _phase(record: RoundRecord, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    record.seconds[name] = time.perf_counter() - start
