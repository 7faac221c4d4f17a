"""Run an experiment: load its data, run its rounds and write its run folder."""

from __future__ import annotations

import json
import tomllib
import uuid
from dataclasses import dataclass, replace
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
from fedaccord.errors import FedAccordError, RunFolderError
from fedaccord.extensions import importable
from fedaccord.federation.final_model import send_final_model
from fedaccord.federation.membership import membership_notes
from fedaccord.federation.server import Server
from fedaccord.recording import Recorder, Watcher
from fedaccord.runs.checkpoint import Past, check_same_data, config_digest, read_past, read_run
from fedaccord.runs.examined import alone_folder, conclude, examine_run
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.model_folder import write_model_folder
from fedaccord.runs.problems import find_problems
from fedaccord.runs.reading import read_metrics
from fedaccord.runs.records import describe_federation, past_drops, past_warnings
from fedaccord.runs.report import write_report
from fedaccord.runs.tracking import tracking
from fedaccord.session import describe_model, one_thread, open_server, worker_count
from fedaccord.stopping import Signals, signals_stop
from fedaccord.summary import summarise, untrained


def load_federation(experiment: Experiment, base: Path) -> FederationData:
    """Load the data of an experiment as sites; relative paths start from `base`. Raise DataError for flawed data."""
    with one_thread():  # a study's clean classifier is trained here, with the same bits on every machine
        return read_federation(experiment, base).without_flaws()


def read_federation(experiment: Experiment, base: Path) -> FederationData:
    """Load the data as `load_federation` does, but return flaws that `fedaccord check` can report with the data."""
    server = experiment.server
    test_file = None if server.test is None else locate(server.test, base)
    labelled = locate(server.labelled, base) if isinstance(server.labelled, str) else server.labelled
    unlabelled = locate(server.unlabelled, base) if isinstance(server.unlabelled, str) else server.unlabelled
    data = _read(experiment, base, test_file, labelled, unlabelled)
    # Samples out of [data] are separated from the test set when they are taken.
    held = {"labelled": (labelled, data.labelled and data.labelled[0]), "unlabelled": (unlabelled, data.unlabelled)}
    for key, (file, samples) in held.items():
        if isinstance(file, Path):
            with data.collecting_flaws():
                data.notes += check_apart_from_test(samples, data.test, f"server.{key}, {file.name}")
    return data


def _read(
    experiment: Experiment,
    base: Path,
    test_file: Path | None,
    labelled: PerClass | Path | None,
    unlabelled: int | Path | None,
) -> FederationData:
    if experiment.sites is not None:
        return read_own_files(
            replace(
                site_files(experiment, base),
                test_file=test_file,
                labelled=labelled if isinstance(labelled, Path) else None,
                unlabelled=unlabelled if isinstance(unlabelled, Path) else None,
            )
        )
    as_input, normalise = _group_inputs(experiment)
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
        synonyms=experiment.labels.synonyms,
        clean=lambda dataset: clean_predictions(dataset, experiment.seed),
        test_file=test_file,
        unlabelled=unlabelled,
        labelled=labelled,
        unseen=experiment.server.unseen,
    )
    return split_dataset(dataset, request)


def site_files(experiment: Experiment, base: Path) -> SiteFiles:
    """Return how the sites of an experiment are read, without the server's files."""
    as_input, normalise = _group_inputs(experiment)
    return SiteFiles(
        experiment.sites or [],
        experiment.features,
        base,
        experiment.labels.classes,
        test_label=experiment.server.label,
        seed=experiment.seed,
        groups_as_input=as_input,
        normalise_groups=normalise,
        server_read=experiment.server.read,
        synonyms=experiment.labels.synonyms,
        missing=experiment.labels.missing,
    )


def _group_inputs(experiment: Experiment) -> tuple[bool, bool]:
    """Return whether groups are inputs of the model, and whether those of a row sum to 1."""
    fairness = experiment.fairness
    return fairness is not None and fairness.input, fairness is not None and fairness.normalise


def startup_error(experiment: Experiment, base: Path, data: FederationData) -> str | None:
    """Return the error that a run of the experiment would raise before its first round, or None."""
    run = experiment.run.model_copy(update={"workers": 0, "engine": "embedded"})
    local = experiment.model_copy(update={"run": run})
    try:
        with importable(base), open_server(local, data):
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
    """Sites on other machines: their engine, and their description at the server."""

    data: FederationData
    engine: Engine


def run_experiment(
    experiment: Experiment,
    base: Path,
    folder: RunFolder,
    watcher: Watcher | None = None,
    alone: Path | None = None,
    data: FederationData | None = None,
    remote: RemoteSites | None = None,
) -> dict[str, Any]:
    """Run an experiment, write its run folder and return the summary.

    `alone` is the folder of a run without federation, for the report. `data` replaces the files of the experiment by
    samples in memory; they are moved to shared memory, so `data` is unusable if that fails. `remote` describes sites
    on other machines.
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
            folder.write_json("run.json", run)  # first: a folder with a config.toml can be resumed
            folder.write("config.toml", config)
            folder.log(f"fedaccord {__version__}, method {experiment.method_name}, seed {experiment.seed}")
        return _run(experiment, base, folder, run, Past(), watcher or Watcher(), signals, data, remote)


def resume_experiment(
    folder: RunFolder, watcher: Watcher | None = None, workers: int | None = None, remote: RemoteSites | None = None
) -> dict[str, Any]:
    """Resume an interrupted run from its last valid checkpoint; the result is that of an uninterrupted run."""
    watcher = watcher or Watcher()
    change = [] if workers is None else [f"run.workers={workers}"]
    file, run = folder.path / "config.toml", read_run(folder.path)
    experiment, base = load_experiment(file, change)
    if str(run.get("fedaccord", "")).startswith("0.1"):
        formerly, given = experiment.settings.formerly.items(), tomllib.loads(file.read_text(encoding="utf-8"))
        change += [f"method.{key}={json.dumps(value)}" for key, value in formerly if key not in given["method"]]
        experiment, base = load_experiment(file, change)
    if run.get("deployed") and remote is None:
        raise RunFolderError(f"'{folder.path}' is a run of a deployment: resume it with run.sh in the server's folder")
    with signals_stop() as signals, importable(Path(run["base"])):
        past = read_past(folder.path, run["run"])
        for name, reason in past.refused.items():
            folder.set_aside(name)
            folder.log(reason)
            watcher.note(reason)
        folder.drop_old_checkpoints()
        folder.trim_metrics(past.lines)
        start = f"resumed after round {past.round}" if past.round else "no checkpoint: starts from round 1"
        folder.log(start)
        watcher.note(start)
        return _run(experiment, base, folder, run, past, watcher, signals, remote=remote)


def _run(
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
    def note(text: str) -> None:
        folder.log(text)
        watcher.note(text)

    with tracking(experiment.run.track, folder.path, experiment.name, past.lines, note) as tracked:
        engine = None if remote is None else remote.engine
        data = remote.data if remote is not None else data or load_federation(experiment, base)
        for text in data.notes:
            folder.log(f"note: {text}")
        watcher.loaded(data)
        if experiment.network is not None and remote is not None:
            note("sites on other machines have a real network, so [network] is ignored")
        if past.state is not None:
            check_same_data(folder.path, describe_federation(data, {}, experiment.memberships))
        with open_server(experiment, data, run["run"], engine, past.state) as server:
            federation = describe_federation(data, server.cards, server.memberships)
            warning = server.recipe.settings.lr_warning(experiment.method_name)
            parts = server.recipe.parts(server) if server.recipe.parts else []
            notes = membership_notes(server.memberships, experiment.settings.rounds)
            for text in parts:
                folder.log(f"{experiment.method_name}: {text}")
            if warning:
                (folder.log if remote is None else note)(warning)  # `fedaccord check` and `run` print it
            for text in notes:
                note(text)
            if past.state is not None:
                _restore(server, past)
            folder.write_json("federation.json", federation)
            watcher.started(data)
            recorder = Recorder(experiment, data, server, folder, past, watcher, tracked)
            outcome = recorder.play(signals)
            recorder.conclude()
            for text in server.concluded:
                folder.log(f"{experiment.method_name}: {text}")
            for text in untrained(experiment, server, outcome):
                note(text)
            problems = find_problems(read_metrics(folder.path), len(data.space))
            for problem in problems:
                folder.log(f"problem: {problem.text}")
            model, header = describe_model(experiment, data), experiment.features.header
            # The personal parts of remote sites are not available here.
            local = set(data.sites) if remote is None else set()
            write_model_folder(folder, server, data, model, experiment.method_name, header, local)
            for text in send_final_model(server) if remote is not None else ():
                note(text)
            workers = worker_count(experiment, data) if remote is None else len(data.sites)
            quality = examine_run(server, data.views, folder) if experiment.run.evaluate_every else {}
            summary = summarise(experiment, server, outcome, workers, federation) | quality
            parts += server.concluded
            summary |= {"parts": parts} if parts else {}
            summary["problems"] = [problem.as_dict() for problem in problems]
        summary["verdict"] = conclude(folder.path, alone_folder(run), summary, federation)
        (folder.path / "report.html").unlink(missing_ok=True)  # one that was written before the end
        folder.write_json("summary.json", summary)
        finish_report(folder.path, run)
        folder.log(f"finished: model {summary['model_sha256']}")
    return summary


def finish_report(folder: Path, run: dict[str, Any]) -> Path:
    """Write the report of a finished run, compared with the run without federation if that still exists."""
    return write_report(folder, alone_folder(run))


def _restore(server: Server, past: Past) -> None:
    """Restore warnings, memories and drops from a checkpoint."""
    values = server.state.model.numel()
    if values != server.layout.size:
        raise RunFolderError(
            f"the checkpoint's model has {values} values, but the network now has {server.layout.size}; "
            "was its code changed since the run started?"
        )
    server.warnings = past_warnings(past.lines)
    server.engine.restore(past.memories)
    recorded = past_drops(past.lines)
    server.dropped = recorded + server.dropped  # those of the new `join` are not recorded yet
    server.recorded_drops = len(recorded)
