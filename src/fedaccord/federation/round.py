"""The one loop: seven beats make a round.

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
from fedaccord.evaluation.groups import fairness_figures, pooled_figures
from fedaccord.evaluation.metrics import Metrics, class_metrics, finite, summarise_sites
from fedaccord.federation import streaming
from fedaccord.federation.cohort_mean import needs_only_mean
from fedaccord.federation.server import Dropped, Server
from fedaccord.federation.traffic import Bytes
from fedaccord.labels.judging import global_tag_metrics
from fedaccord.messages.checks import is_finite
from fedaccord.messages.message import Message, SiteId
from fedaccord.messages.names import POOL
from fedaccord.models.predicting import predict_logits


@dataclass
class Evaluation:
    """Figures of one round: the global model's on the server's data, each site's on the site's own."""

    global_: Metrics = field(default_factory=dict)
    confusion: Tensor | None = None
    sites: dict[SiteId, Metrics] = field(default_factory=dict)
    site_confusions: dict[SiteId, Tensor] = field(default_factory=dict)

    def over_sites(self) -> dict[str, Metrics]:
        """Return mean, spread and range over the sites."""
        return summarise_sites(self.sites)

    def pooled(self) -> Metrics:
        """Return how a group was treated over all sites' test rows together; nothing where no site measured it."""
        return finite(pooled_figures(self.sites.values()))


@dataclass
class RoundRecord:
    """What happened in a round."""

    round: int
    asked: list[SiteId] = field(default_factory=list)
    replied: int = 0
    loss: float | None = None
    dropped: list[Dropped] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    bytes: Bytes = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)  # labels that no site of the round could teach
    joined: list[SiteId] = field(default_factory=list)  # who belongs to the federation from this round on
    left: list[SiteId] = field(default_factory=list)  # who no longer does
    warnings: list[str] = field(default_factory=list)
    figures: Metrics = field(default_factory=dict)  # what the server's steps measured
    simulated: float | None = None  # seconds on a simulated network


def play_round(server: Server, evaluated: bool | Callable[[], bool] = True) -> RoundRecord:
    """Play one round; afterwards the server's state is that of the finished round.

    `evaluated` may be a question that is asked when the model is ready to be evaluated.
    """
    record = RoundRecord(server.state.round + 1)
    recipe, warned = server.recipe, len(server.warnings)
    with _beat(record, "prepare"):
        record.joined, record.left = server.update_members()
        for step in recipe.prepare:
            step(server)
    with _beat(record, "brief"):
        record.asked = server.sample_sites()
        tensors = server.tensors
        briefs = {site: server.brief(site, tensors) for site in record.asked}
    if needs_only_mean(recipe) and server.attack is None:
        with _beat(record, "train"):
            fold = streaming.train(server, briefs)
        with _beat(record, "admit"):
            replies = fold.replies(server)
        with _beat(record, "combine"):
            if replies is not None:
                server.adopt(fold.mean.result(), fold.counters)
    else:
        with _beat(record, "train"):
            answers = server.ask("train", briefs)
        with _beat(record, "admit"):
            replies = server.admit(answers)
        with _beat(record, "combine"):
            server.combine(replies)
    with _beat(record, "refine"):
        for step in recipe.refine:
            step(server)
    # Where the server trains on samples of its own, sites that have nothing to say leave no label untaught.
    if replies is not None or not (recipe.server_trains and (record.asked or not recipe.sites_train)):
        record.absent = _untaught(server, replies)
    if replies is not None:
        record.replied = len(replies)
        numbers = [message.numbers for message in replies.messages if is_finite(message.numbers.get("loss"))]
        losses = [(n["loss"], n["samples"]) for n in numbers]
        record.loss = sum(v * n for v, n in losses) / sum(n for _, n in losses) if losses else None
    if evaluated() if callable(evaluated) else evaluated:
        with _beat(record, "evaluate"):
            record.evaluation = evaluate(server)
    server.state.round += 1
    server.replies, server.silent = None, []
    # What was dropped when the sites joined belongs to the first round's account.
    record.dropped = server.dropped[server.recorded_drops :]
    server.recorded_drops = len(server.dropped)
    record.bytes = server.traffic.take()
    record.simulated = server.engine.take_seconds() if isinstance(server.engine, SimulatedNetwork) else None
    record.warnings = server.warnings[warned:]
    record.figures, server.figures = finite(server.figures), {}
    return record


def _untaught(server: Server, replies: Replies | None) -> list[str]:
    """Return the labels that no reply of a round could teach: all of them where nobody replied."""
    if replies is None or not len(replies):
        return list(server.space)
    taught = replies.informs.any(0).tolist()
    return [label for label, seen in zip(server.space, taught, strict=True) if not seen]


def evaluate(server: Server) -> Evaluation:
    """Judge the current model: at the server where it has test data, and at every member on the site's own."""
    result = Evaluation()
    if server.test is not None and server.has_full_model:
        logits, truth = predict_logits(server.load_network(), server.test[0]).cpu(), server.test[1].cpu()
        if truth.dim() == 2:
            metrics = global_tag_metrics(torch.sigmoid(logits), truth)
        else:
            metrics, result.confusion = class_metrics(logits, truth)
        # A rate is of the one label that a row is given; tags have no such thing.
        if server.target is not None and server.test_groups is not None and truth.dim() == 1:
            of = server.target
            metrics |= fairness_figures(logits.argmax(-1), truth, *server.test_groups, of.group, of.label, of.groups)
        result.global_ = finite(metrics)
    tensors = server.tensors
    briefs = {site: server.brief(site, tensors) for site in server.members() if site != POOL}
    for site, answer in server.admit_figures(server.ask("evaluate", briefs)).items():
        if answer.numbers.get("samples"):
            result.sites[site] = site_figures(answer)
            if "confusion" in answer.tensors:
                result.site_confusions[site] = answer.tensors["confusion"]
    return result


def site_figures(answer: Message) -> Metrics:
    """Return the figures in a site's answer."""
    return {name: float(value) for name, value in answer.numbers.items() if name != "round"}


@contextmanager
def _beat(record: RoundRecord, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    record.seconds[name] = time.perf_counter() - start
