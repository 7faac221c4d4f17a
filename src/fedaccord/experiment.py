"""From a checked experiment file to a finished run folder."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedaccord import __version__
from fedaccord.config import Experiment, to_toml, with_paths_from
from fedaccord.data.dataset import load_dataset
from fedaccord.data.sites import FederationData, pool_sites, read_sites, split_dataset
from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.errors import ConfigError
from fedaccord.federation.round import Evaluation, RoundRecord, play_round
from fedaccord.federation.server import POOL, Server
from fedaccord.federation.state import RunState, model_digest
from fedaccord.methods.clean import clean_predictions
from fedaccord.methods.hosting import build_network, host_spec
from fedaccord.methods.registry import make_recipe
from fedaccord.methods.settings import PooledSettings
from fedaccord.models.layout import Layout
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.records import Best, confusion_lines, federation_account, round_lines, scopes
from fedaccord.runs.report import write_report


@dataclass
class Watcher:
    """Who is told how a run goes: the command line's display, or nobody."""

    started: Callable[[FederationData], None] = lambda data: None
    round: Callable[[RoundRecord], None] = lambda record: None


def load_federation(experiment: Experiment, base: Path) -> FederationData:
    """Load the data an experiment names and make its sites; relative paths start from `base`."""
    test_file = None if experiment.server.test is None else base / experiment.server.test
    if experiment.sites is not None:
        files = {site.name: (base / site.data, site.view, site.test) for site in experiment.sites}
        return read_sites(files, experiment.labels.classes, test_file, experiment.seed)
    data = experiment.data
    assert data is not None
    return split_dataset(
        load_dataset(data.dataset, base),
        data.partition.model_dump(exclude_none=True),
        data.view,
        data.views,
        data.names,
        experiment.labels.classes,
        experiment.seed,
        test=data.test,
        samples=data.samples,
        test_samples=data.test_samples,
        standardise=data.standardise,
        clean=lambda dataset: clean_predictions(dataset, experiment.seed),
        test_file=test_file,
    )


def run_experiment(
    experiment: Experiment, base: Path, folder: RunFolder, watcher: Watcher | None = None, alone: Path | None = None
) -> dict[str, Any]:
    """Carry out an experiment and write its run folder; returns the summary."""
    watcher = watcher or Watcher()
    folder.write_config(to_toml(with_paths_from(experiment, base)))
    folder.log(f"fedaccord {__version__}, method {experiment.method_name}, seed {experiment.seed}")
    with _one_thread():  # a study's clean classifier is trained here, and its sums too must not depend on the machine
        data = load_federation(experiment, base)
    for note in data.notes:
        folder.log(f"note: {note}")
    with open_server(experiment, data) as server:
        folder.write_json("federation.json", federation_account(data, server.cards))
        watcher.started(data)
        summary = _record(experiment, data, server, folder, watcher)
    folder.write_json("summary.json", summary)
    write_report(folder.path, alone)
    folder.log(f"finished: model {summary['model_sha256']}")
    return summary


@contextmanager
def open_server(experiment: Experiment, data: FederationData) -> Iterator[Server]:
    """Start the sites and the server of an experiment; they end with the context."""
    with _one_thread(), _engine(experiment, data) as engine:
        server = _server(experiment, data, engine)
        server.join()
        server.trainers()  # a method that no site can train under is told before the first round
        yield server


def play(experiment: Experiment, server: Server) -> Iterator[RoundRecord]:
    """Play all rounds of an experiment, one at a time."""
    every, rounds = experiment.run.evaluate_every, experiment.settings.rounds
    for number in range(server.state.round + 1, rounds + 1):
        yield play_round(server, evaluated=every > 0 and (number % every == 0 or number == rounds))


def _record(
    experiment: Experiment, data: FederationData, server: Server, folder: RunFolder, watcher: Watcher
) -> dict[str, Any]:
    every, rounds = experiment.run.checkpoint_every, experiment.settings.rounds
    start, best, last = time.perf_counter(), Best(), None
    for record in play(experiment, server):
        folder.append_metrics(round_lines(record, data.space))
        for drop in record.dropped:
            what = f"{drop.tensor} {drop.reason}".strip()
            folder.log(f"round {record.round}: site '{drop.site}' dropped from {drop.task}: {what}")
            if drop.trace:
                folder.log(drop.trace)
        if record.evaluation is not None:
            last = record.evaluation
            best.look(record.round, last)
        if record.round == rounds or (every and record.round % every == 0):
            folder.write_checkpoint(server.state.to_message(), server.engine.memories())
        watcher.round(record)
    if last is not None:
        folder.append_metrics(confusion_lines(rounds, last, data))
    folder.write_model(server.tensors, _description(experiment, data, server))
    return _summary(experiment, server, best, last, time.perf_counter() - start, worker_count(experiment, data))


def _server(experiment: Experiment, data: FederationData, engine: EmbeddedEngine) -> Server:
    settings = experiment.settings
    network = build_network(
        _model(experiment, data), len(data.space), experiment.method_name, settings.model_dump(), experiment.seed
    )
    counters = {n: b.clone() for n, b in network.named_buffers() if not b.is_floating_point()}
    return Server(
        run=uuid.uuid4().hex,
        seed=experiment.seed,
        space=data.space,
        recipe=make_recipe(experiment.method_name, settings),
        network=network,
        state=RunState(Layout.of(network).read(network), counters),
        engine=engine,
        test=data.test,
        deadline=experiment.run.deadline,
    )


def _engine(experiment: Experiment, data: FederationData) -> EmbeddedEngine:
    sites = dict(data.sites)
    settings = experiment.settings
    if isinstance(settings, PooledSettings):
        sites[POOL] = pool_sites(POOL, data.sites, data.space, settings.labels)
    device = experiment.run.device
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"run.device is '{device}', but torch finds no GPU here; use device = \"cpu\"")
    spec = host_spec(
        sites, data.space, _model(experiment, data), experiment.method_name, settings, experiment.seed, device
    )
    return EmbeddedEngine(spec, list(sites), worker_count(experiment, data))


def worker_count(experiment: Experiment, data: FederationData) -> int:
    """Return how many worker processes a run uses."""
    if experiment.run.workers is not None:
        return experiment.run.workers
    if experiment.run.device != "cpu":
        return 0  # a GPU is shared by all sites of one process
    return min(os.cpu_count() or 1, len(data.sites))


def _model(experiment: Experiment, data: FederationData) -> dict[str, Any]:
    model = experiment.model
    return {"name": model.name, "settings": model.settings, "input_shape": list(data.input_shape)}


def _description(experiment: Experiment, data: FederationData, server: Server) -> dict[str, Any]:
    return {
        "format": 1,
        "fedaccord": __version__,
        "model": _model(experiment, data),
        "method": experiment.method_name,
        "labels": list(data.space.names),
        "layout": server.layout.describe(),
    }


def _summary(
    experiment: Experiment, server: Server, best: Best, last: Evaluation | None, seconds: float, workers: int
) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "method": experiment.method_name,
        "engine": "embedded",
        "workers": workers,
        "seed": experiment.seed,
        "rounds": server.state.round,
        "seconds": round(seconds, 3),
        "final": scopes(last),
        "best": best.account(),
        "dropped": len(server.dropped),
        "dropped_replies": [
            {"round": d.round, "site": d.site, "task": d.task, "tensor": d.tensor, "reason": d.reason}
            for d in server.dropped
        ],
        "model_sha256": model_digest(server.state.model),
        "settings": experiment.method,
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread here: sums split over threads would make results depend on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
