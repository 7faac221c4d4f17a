"""From a checked experiment file to a finished run folder."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedaccord import __version__
from fedaccord.clean_classifier import clean_predictions
from fedaccord.config import Experiment, load_experiment, to_toml, with_paths_from
from fedaccord.data.dataset import load_dataset
from fedaccord.data.declarations import PerClass, SiteFiles, Split
from fedaccord.data.own_files import read_own_files
from fedaccord.data.registry import locate
from fedaccord.data.sensitive import with_groups
from fedaccord.data.server_data import check_apart_from_test
from fedaccord.data.sites import FederationData
from fedaccord.data.study import split_dataset
from fedaccord.engines.engine import Engine
from fedaccord.engines.network import SimulatedNetwork
from fedaccord.errors import FedAccordError, RunFolderError
from fedaccord.extensions import importable
from fedaccord.federation.defence import ALL_LEFT_OUT
from fedaccord.federation.membership import membership_notes
from fedaccord.federation.server import Server
from fedaccord.federation.state import model_digest
from fedaccord.recording import Recorder, RunOutcome, Watcher, play
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.model_folder import write_model_folder
from fedaccord.runs.records import describe_federation, past_drops, past_warnings
from fedaccord.runs.report import write_report
from fedaccord.runs.resume import Past, check_same_data, config_digest, read_past, read_run
from fedaccord.runs.tracking import tracking
from fedaccord.session import describe_model, one_thread, open_server, worker_count
from fedaccord.stopping import Signals, signals_stop

__all__ = [
    "Watcher",
    "finish_report",
    "load_federation",
    "open_server",
    "play",
    "read_federation",
    "resume_experiment",
    "run_experiment",
    "startup_error",
    "worker_count",
]


def load_federation(experiment: Experiment, base: Path) -> FederationData:
    """Load the data an experiment names and make its sites; relative paths start from `base`."""
    return read_federation(experiment, base).without_flaws()


def read_federation(experiment: Experiment, base: Path) -> FederationData:
    """Load the data as `load_federation` does, but with flaws where they can be looked at all the same."""
    test_file = None if experiment.server.test is None else locate(experiment.server.test, base)
    asked = experiment.server.labelled
    labelled = locate(asked, base) if isinstance(asked, str) else asked
    found = _read(experiment, base, test_file, labelled)
    if isinstance(labelled, Path):  # samples out of [data] are kept from the test where they are taken
        with found.collecting_flaws():
            found.notes += check_apart_from_test(found.labelled, found.test, f"server.labelled, {labelled.name}")
    return found


def _read(
    experiment: Experiment, base: Path, test_file: Path | None, labelled: PerClass | Path | None
) -> FederationData:
    as_input = experiment.fairness is not None and experiment.fairness.input
    normalise = experiment.fairness is not None and experiment.fairness.normalise
    if experiment.sites is not None:
        files = SiteFiles(
            experiment.sites,
            experiment.features,
            base,
            experiment.labels.classes,
            test_file,
            experiment.server.label,
            experiment.seed,
            labelled if isinstance(labelled, Path) else None,
            as_input,
            normalise,
        )
        return read_own_files(files)
    data = experiment.data
    assert data is not None
    dataset = load_dataset(data.dataset, base)
    if data.sensitive is not None:
        dataset = with_groups(dataset, data.sensitive, experiment.seed, as_input, normalise)
    request = Split(
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
        unlabelled=experiment.server.unlabelled,
        labelled=labelled,
        unseen=experiment.server.unseen,
    )
    return split_dataset(dataset, request)


def startup_error(experiment: Experiment, base: Path, data: FederationData) -> str | None:
    """Say what a run of the experiment with these data would refuse before its first round; None: nothing."""
    here = experiment.model_copy(update={"run": experiment.run.model_copy(update={"workers": 0, "engine": "embedded"})})
    try:
        with importable(base), open_server(here, data):
            pass
    except FedAccordError as error:
        return str(error)
    network = experiment.network
    timed = network.metric if network is not None and network.target is not None else None
    for where, metric in (("stop.metric", experiment.stop.metric), ("network.metric", timed)):
        if metric is not None and metric.startswith("global.") and data.test is None:
            return f"{where}: unknown metric '{metric}'; {data.test_source}"
    return None


@dataclass(frozen=True)
class RemoteSites:
    """Sites that run on other machines: the engine that reaches them, and all that is known of them here."""

    data: FederationData
    engine: Engine


UNTRAINED = "no site's reply was ever admitted, so the model is as it began; see the dropped replies"
UNTRUSTED = "every reply that was admitted was left out by the defence '{}', so the model is as it began"


def run_experiment(
    experiment: Experiment,
    base: Path,
    folder: RunFolder,
    watcher: Watcher | None = None,
    alone: Path | None = None,
    data: FederationData | None = None,
    remote: RemoteSites | None = None,
) -> dict[str, Any]:
    """Carry out an experiment and write its run folder; returns the summary.

    `data` stands in for the files the experiment names, for sites whose samples are in memory already: these are moved
    to memory that all processes share, so where that fails, `data` has lost them. `elsewhere` is for sites on other
    machines.
    """
    config = to_toml(with_paths_from(experiment, base))
    run = {
        "run": uuid.uuid4().hex,
        "fedaccord": __version__,
        "alone": None if alone is None else str(alone.resolve()),
        "config": config_digest(config),
        "in_memory": data is not None,
        "deployed": remote is not None,
        "base": str(base.resolve()),
    }
    with signals_stop() as signals, importable(base):
        with signals.deferred():
            folder.write_json("run.json", run)  # first, since what has a config.toml can be resumed
            folder.write_config(config)
            folder.log(f"fedaccord {__version__}, method {experiment.method_name}, seed {experiment.seed}")
        return _carry_on(experiment, base, folder, run, Past(), watcher or Watcher(), signals, data, remote)


def resume_experiment(
    folder: RunFolder, watcher: Watcher | None = None, workers: int | None = None, remote: RemoteSites | None = None
) -> dict[str, Any]:
    """Go on with a cut run from its last good checkpoint; it ends as if it had never been cut."""
    watcher = watcher or Watcher()
    change = [] if workers is None else [f"run.workers={workers}"]
    experiment, base = load_experiment(folder.path / "config.toml", change)
    run = read_run(folder.path)
    if run.get("deployed") and remote is None:
        raise RunFolderError(f"'{folder.path}' is a run of a deployment: go on with run.sh in the server's folder")
    with signals_stop() as signals, importable(Path(run["base"])):
        past = read_past(folder.path, run["run"])
        for name, reason in past.refused.items():
            folder.set_aside(name)
            folder.log(reason)
            watcher.note(reason)
        folder.drop_old_checkpoints()
        folder.trim_metrics(past.lines)
        begin = (
            f"resumed after round {past.round}" if past.round else "no checkpoint to go on from: begins with round 1"
        )
        folder.log(begin)
        watcher.note(begin)
        return _carry_on(experiment, base, folder, run, past, watcher, signals, remote=remote)


def _carry_on(
    experiment: Experiment,
    base: Path,
    folder: RunFolder,
    run: dict[str, Any],
    past: Past,
    watcher: Watcher,
    signals: Signals,
    data: FederationData | None = None,
    remote: RemoteSites | None = None,
) -> dict[str, Any]:
    def tell(text: str) -> None:
        folder.log(text)
        watcher.note(text)

    with tracking(experiment.run.track, folder.path, experiment.name, past.lines, tell) as tracked:
        engine = None if remote is None else remote.engine
        data = remote.data if remote is not None else data or load_data(experiment, base)
        for note in data.notes:
            folder.log(f"note: {note}")
        if experiment.network is not None and remote is not None:
            tell("sites on other machines have a network of their own, so [network] is not used")
        if past.state is not None:
            check_same_data(folder.path, describe_federation(data, {}, experiment.memberships))
        with open_server(experiment, data, run["run"], engine, past.state) as server:
            account = describe_federation(data, server.cards, server.memberships)
            said = server.recipe.settings.lr_warning(experiment.method_name)
            for text in [*([said] if said else []), *membership_notes(server.memberships, experiment.settings.rounds)]:
                tell(text)
            if past.state is not None:
                _restore(server, past)
            folder.write_json("federation.json", account)
            watcher.started(data)
            outcome = Recorder(experiment, data, server, folder, past, watcher, tracked).play(signals)
            for text in _untrained(experiment, server, outcome):
                tell(text)
            model, header = describe_model(experiment, data), experiment.features.header
            # What sites elsewhere have of their own stays with them.
            here = set(data.sites) if remote is None else set()
            write_model_folder(folder, server, data, model, experiment.method_name, header, here)
            workers = worker_count(experiment, data) if remote is None else len(data.sites)
            summary = _summary(experiment, server, outcome, workers, account)
        folder.write_json("summary.json", summary)
        finish_report(folder.path, run)
        folder.log(f"finished: model {summary['model_sha256']}")
    return summary


def finish_report(folder: Path, run: dict[str, Any]) -> Path:
    """Write the report of a run that has its summary, beside the run without federation where that is still there."""
    alone = None if run["alone"] is None else Path(run["alone"])
    return write_report(folder, alone if alone is not None and (alone / "summary.json").is_file() else None)


def _restore(server: Server, past: Past) -> None:
    """Put back what a checkpoint holds beside the state."""
    values = server.state.model.numel()
    if values != server.layout.size:
        raise RunFolderError(
            f"the checkpoint's model has {values} values, but the network now has {server.layout.size}; "
            "was its code changed since the run began?"
        )
    server.warnings = past_warnings(past.lines)
    server.engine.restore(past.memories)
    before = past_drops(past.lines)
    server.dropped, server.recorded_drops = (
        before + server.dropped,
        len(before),
    )  # what was dropped just now is still to be told


def load_data(experiment: Experiment, base: Path) -> FederationData:
    """Load the data of a run, as every machine does: on one thread."""
    with one_thread():  # a study's clean classifier is trained here, and its sums too must not depend on the machine
        return load_federation(experiment, base)


def _summary(
    experiment: Experiment, server: Server, outcome: RunOutcome, workers: int, account: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "method": experiment.method_name,
        "engine": experiment.run.engine,
        "workers": workers,
        "seed": experiment.seed,
        "rounds": server.state.round,
        "seconds": round(outcome.seconds, 3),
        "stopped": outcome.stopped or None,
        "final": outcome.figures,
        "best": outcome.best.summary(),
        "bytes": {
            "sent": sum(sent for sent, _ in outcome.bytes.values()),
            "received": sum(received for _, received in outcome.bytes.values()),
            "sites": {site: list(both) for site, both in sorted(outcome.bytes.items())},
        },
        **_simulated(server, outcome),
        "dropped": len(server.dropped),
        "dropped_replies": [drop.as_dict() for drop in server.dropped],
        "warnings": [*server.warnings, *_untrained(experiment, server, outcome)],
        **({"fairness": experiment.fairness.model_dump()} if experiment.fairness is not None else {}),
        **({"hostile": list(server.hostile)} if server.hostile else {}),
        "set_sizes": {name: site["set_size"] for name, site in account["sites"].items() if "set_size" in site},
        "model_sha256": model_digest(server.state.model),
        "settings": experiment.method,
    }


def _untrained(experiment: Experiment, server: Server, outcome: RunOutcome) -> list[str]:
    """Say why the model is as it began, if nothing that sites sent ever reached it."""
    if outcome.replies or server.recipe.server_trains:
        return []
    defence = getattr(experiment.settings, "defence", None)
    if defence is not None and ALL_LEFT_OUT.format(defence.kind) in server.warnings:
        return [UNTRUSTED.format(defence.kind)]
    return [UNTRAINED]


def _simulated(server: Server, outcome: RunOutcome) -> dict[str, Any]:
    """Return the summary's account of a simulated network; nothing where there was none."""
    if outcome.simulated is None or not isinstance(server.engine, SimulatedNetwork):
        return {}
    told = asdict(outcome.simulated) | {"seconds": round(outcome.simulated.seconds, 3)}
    del told["seen"]
    told["sites_work"] = server.recipe.sites_train
    return {"simulated": told | {"sites": {site: asdict(link) for site, link in server.engine.links.items()}}}
