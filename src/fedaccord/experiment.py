"""From a checked experiment file to a finished run folder."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedaccord import __version__
from fedaccord.config import Experiment, load_experiment, to_toml, with_paths_from
from fedaccord.data.dataset import load_dataset
from fedaccord.data.site_tables import read_table_sites
from fedaccord.data.sites import FederationData, pool_sites, read_sites, split_dataset
from fedaccord.data.tables import is_table
from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.errors import ConfigError
from fedaccord.federation.round import RoundRecord, play_round
from fedaccord.federation.server import POOL, Server
from fedaccord.federation.state import RunState, model_digest
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.clean import clean_predictions
from fedaccord.methods.hosting import build_network, host_spec
from fedaccord.methods.registry import make_recipe
from fedaccord.methods.settings import PooledSettings
from fedaccord.models.layout import Layout
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.records import (
    Best,
    confusion_lines,
    federation_account,
    past_drops,
    past_scopes,
    round_lines,
    scopes,
)
from fedaccord.runs.report import write_report
from fedaccord.runs.resume import Past, read_past, read_run
from fedaccord.stopping import Clock, Stopped, Stopping, signals_stop


@dataclass
class Watcher:
    """Who is told how a run goes: the command line's display, or nobody."""

    started: Callable[[FederationData], None] = lambda data: None
    round: Callable[[RoundRecord], None] = lambda record: None


def load_federation(experiment: Experiment, base: Path) -> FederationData:
    """Load the data an experiment names and make its sites; relative paths start from `base`."""
    test_file = None if experiment.server.test is None else base / experiment.server.test
    if experiment.sites is not None:
        tables = [site.name for site in experiment.sites if is_table(base / site.data)]
        if tables and len(tables) < len(experiment.sites):
            other = next(site.name for site in experiment.sites if site.name not in tables)
            raise ConfigError(f"site '{tables[0]}' brings a table, site '{other}' does not; all must be of one kind")
        if tables:
            return read_table_sites(
                experiment.sites, experiment.features, base, experiment.labels.classes, test_file,
                experiment.server.label, experiment.seed,
            )  # fmt: skip
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
    run = {"run": uuid.uuid4().hex, "fedaccord": __version__, "alone": None if alone is None else str(alone.resolve())}
    folder.write_config(to_toml(with_paths_from(experiment, base)))
    folder.write_json("run.json", run)
    folder.log(f"fedaccord {__version__}, method {experiment.method_name}, seed {experiment.seed}")
    return _carry_on(experiment, folder, run, Past(), watcher or Watcher(), base)


def resume_experiment(folder: RunFolder, watcher: Watcher | None = None, workers: int | None = None) -> dict[str, Any]:
    """Go on with a cut run from its last good checkpoint; it ends as if it had never been cut."""
    change = [] if workers is None else [f"run.workers={workers}"]
    experiment, base = load_experiment(folder.path / "config.toml", change)
    run = read_run(folder.path)
    past = read_past(folder.path, run["run"])
    for reason in past.refused:
        folder.log(reason)
    folder.trim_metrics(past.lines)
    folder.log(f"resumed after round {past.round}")
    return _carry_on(experiment, folder, run, past, watcher or Watcher(), base)


def _carry_on(
    experiment: Experiment, folder: RunFolder, run: dict[str, Any], past: Past, watcher: Watcher, base: Path
) -> dict[str, Any]:
    with _one_thread():  # a study's clean classifier is trained here, and its sums too must not depend on the machine
        data = load_federation(experiment, base)
    for note in data.notes:
        folder.log(f"note: {note}")
    with signals_stop(), open_server(experiment, data, run["run"]) as server:
        if past.state is not None:
            server.state = RunState.from_message(past.state)
            server.engine.restore(past.memories)
            server.dropped += past_drops(past.lines)
        folder.write_json("federation.json", federation_account(data, server.cards))
        watcher.started(data)
        summary = _record(experiment, data, server, folder, watcher, past)
    folder.write_json("summary.json", summary)
    write_report(folder.path, None if run["alone"] is None else Path(run["alone"]))
    folder.log(f"finished: model {summary['model_sha256']}")
    return summary


@contextmanager
def open_server(experiment: Experiment, data: FederationData, run: str = "") -> Iterator[Server]:
    """Start the sites and the server of an experiment; they end with the context."""
    with _one_thread(), _engine(experiment, data) as engine:
        server = _server(experiment, data, engine, run or uuid.uuid4().hex)
        server.join()
        server.trainers()  # a method that no site can train under is told before the first round
        yield server


def play(experiment: Experiment, server: Server) -> Iterator[RoundRecord]:
    """Play all rounds of an experiment, one at a time."""
    every, rounds = experiment.run.evaluate_every, experiment.settings.rounds
    for number in range(server.state.round + 1, rounds + 1):
        yield play_round(server, evaluated=every > 0 and (number % every == 0 or number == rounds))


def _record(
    experiment: Experiment, data: FederationData, server: Server, folder: RunFolder, watcher: Watcher, past: Past
) -> dict[str, Any]:
    """Play the rounds that are left and write down each; a stop leaves a checkpoint of the last finished one."""
    every, rounds = experiment.run.checkpoint_every, experiment.settings.rounds
    clock = Clock(0.0 if past.state is None else past.state.numbers["seconds"])
    stop = Stopping(experiment.stop, clock)
    best, last, figures = Best(), None, scopes(None)
    for number, figures in sorted(past_scopes(past.lines).items()):
        best.look(number, figures)
        stop.look(figures)
    finished = _snapshot(server, clock)
    try:
        for record in play(experiment, server):
            finished = _snapshot(server, clock)
            folder.append_metrics(round_lines(record, data.space))
            _log_drops(record, folder)
            if record.evaluation is not None:
                last, figures = record.evaluation, scopes(record.evaluation)
                best.look(record.round, figures)
                stop.look(figures)
            reason = stop.reason()
            if record.round == rounds or reason or (every and record.round % every == 0):
                folder.write_checkpoint(*finished)
            watcher.round(record)
            if reason:
                folder.log(f"stopped after round {record.round}: {reason}")
                break
    except Stopped as stopped:
        folder.write_checkpoint(*finished)
        folder.log(f"{stopped} after round {int(finished[0].numbers['round'])}")
        raise
    if last is not None:
        folder.append_metrics(confusion_lines(server.state.round, last, data))
    folder.write_model(server.tensors, _description(experiment, data, server))
    return _summary(experiment, server, best, figures, clock.seconds(), worker_count(experiment, data), stop.reason())


def _snapshot(server: Server, clock: Clock) -> tuple[Message, dict[SiteId, Message]]:
    """Return state and memories as they are between two rounds; a round replaces tensors and never writes into them."""
    state = server.state.to_message()
    state.words["run"], state.numbers["seconds"] = server.run, clock.seconds()
    return state, server.engine.memories()


def _log_drops(record: RoundRecord, folder: RunFolder) -> None:
    for drop in record.dropped:
        what = f"{drop.tensor} {drop.reason}".strip()
        folder.log(f"round {record.round}: site '{drop.site}' dropped from {drop.task}: {what}")
        if drop.trace:
            folder.log(drop.trace)


def _server(experiment: Experiment, data: FederationData, engine: EmbeddedEngine, run: str) -> Server:
    settings = experiment.settings
    network = build_network(
        _model(experiment, data), len(data.space), experiment.method_name, settings.model_dump(), experiment.seed
    )
    counters = {n: b.clone() for n, b in network.named_buffers() if not b.is_floating_point()}
    return Server(
        run=run,
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
    experiment: Experiment, server: Server, best: Best, figures: dict[str, Any], seconds: float, workers: int,
    stopped: str,
) -> dict[str, Any]:  # fmt: skip
    return {
        "name": experiment.name,
        "method": experiment.method_name,
        "engine": "embedded",
        "workers": workers,
        "seed": experiment.seed,
        "rounds": server.state.round,
        "seconds": round(seconds, 3),
        "stopped": stopped or None,
        "final": figures,
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
