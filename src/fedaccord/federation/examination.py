"""The examination of a trained model: figures with intervals, computed where the test rows are.

A site sends numbers only. It keeps the first figure of every resample in its memory, because with the seed of the run
these values tell which test rows are answered correctly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedaccord.evaluation.differences import Gain
from fedaccord.evaluation.intervals import FEWEST_RESAMPLES, MOST_RESAMPLES, Estimate, Resampling
from fedaccord.evaluation.quality import Quality, class_quality, tag_quality
from fedaccord.federation.server import Server
from fedaccord.federation.site_evaluation import Trial
from fedaccord.federation.site_gain import gain_numbers, take_gain
from fedaccord.federation.traffic import Bytes
from fedaccord.labels.views import view_class
from fedaccord.messages.message import Message, SiteId
from fedaccord.messages.names import CALIBRATION, POOL
from fedaccord.models.network import predict_logits
from fedaccord.seeds import derive

RESAMPLED = "resampled"  # in a site's memory: the first figure of every resample
_ALL_SITES = 50_000  # resamples over all sites; more sites draw fewer
_COUNTS = ("rows", "classes", "resamples")
_ENDS = (".low", ".high")


@dataclass
class Examination:
    """The quality of the global model on the server's test data, and of each site's model on its own.

    `gains` compare the model that a site ends with and its model alone, at the sites that have both.
    """

    overall: Quality | None = None
    sites: dict[SiteId, Quality] = field(default_factory=dict)
    gains: dict[SiteId, Gain] = field(default_factory=dict)
    bytes: Bytes = field(default_factory=dict)


def examine_site(trial: Trial | None, brief: Message, seed: int) -> tuple[Message, Tensor | None]:
    """Return a site's reply, and the first figure of each resample for its memory."""
    if trial is None or not trial.view.is_known:
        return Message(numbers={"rows": 0}), None
    site = trial.site
    # The same resamples in every run of this seed, so that two methods can be compared on them.
    wanted = int(brief.numbers.get("resamples", MOST_RESAMPLES))
    resampling = Resampling(derive(seed, "resample", site.name), min(max(wanted, FEWEST_RESAMPLES), MOST_RESAMPLES))
    logits = predict_logits(trial.model, site.test.x).cpu()
    if not bool(torch.isfinite(logits).all()):
        return Message(numbers={"rows": 0}), None
    quality = trial.view.examine(logits, trial.target, trial.truth, site.train.target.cpu(), resampling)
    reply = _reply(quality)
    reply.numbers |= gain_numbers(trial, logits, quality, resampling)
    return reply, None if quality.replicates is None else torch.from_numpy(quality.replicates)


def examine(server: Server) -> Examination:
    """Examine the model of the last round on the server's test data, if any, and at every member on its own."""
    found = Examination()
    if server.test is not None and server.has_full_model:
        found.overall = _examine_global(server, *server.test)
    server.state.round -= 1  # the examination is part of the round that is over
    try:
        tensors = server.tensors
        briefs = {site: server.brief(site, tensors) for site in server.members() if site != POOL}
        for brief in briefs.values():
            brief.numbers["resamples"] = min(MOST_RESAMPLES, max(FEWEST_RESAMPLES, _ALL_SITES // len(briefs)))
        answers = server.admit_figures(server.ask("examine", briefs), "examine")
    finally:
        server.state.round += 1
    for site, answer in answers.items():
        found.sites[site], gain = _read_reply(answer, view_class(server.cards[site].view).headlines)
        if gain is not None:
            found.gains[site] = gain
    found.bytes = server.traffic.take()
    return found


def _examine_global(server: Server, x: Tensor, truth: Tensor) -> Quality | None:
    logits, truth = predict_logits(server.load_network(), x).cpu(), truth.cpu()
    if not bool(torch.isfinite(logits).all()):
        return None
    resampling = Resampling(derive(server.seed, "resample", "global"))
    if truth.dim() == 2:
        return tag_quality(torch.sigmoid(logits).numpy(), truth.numpy(), resampling)
    # The server does not know how often sites see a class, so it guesses the best constant answer on the test rows.
    return class_quality(torch.softmax(logits, -1).numpy(), truth.numpy(), None, resampling)


def _reply(quality: Quality) -> Message:
    numbers: dict[str, int | float] = {name: getattr(quality, name) for name in _COUNTS}
    for name, measure in quality.measures.items():
        ends = zip(("", *_ENDS), (measure.value, measure.low, measure.high), strict=True)
        numbers |= {name + ending: value for ending, value in ends if value is not None}
    curve = quality.calibration
    return Message({CALIBRATION: torch.tensor(curve, dtype=torch.float64)} if curve else {}, numbers)


def _read_reply(reply: Message, headlines: Sequence[str]) -> tuple[Quality, Gain | None]:
    numbers = {name: float(value) for name, value in reply.numbers.items() if name != "round"}
    rows, classes, resamples = (int(numbers.pop(name, 0)) for name in _COUNTS)
    gain = take_gain(numbers, headlines, rows)
    names = [name for name in numbers if not name.endswith(_ENDS)]
    measures = {name: Estimate(numbers[name], *(numbers.get(name + end) for end in _ENDS)) for name in names}
    curve = reply.tensors.get(CALIBRATION)
    return Quality(rows, classes, measures, [] if curve is None else curve.tolist(), resamples), gain
