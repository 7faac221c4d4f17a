"""From a checked experiment file to a finished run folder."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from fedaccord import __version__
from fedaccord.adversary.choice import hostile_sites
from fedaccord.config import Experiment, load_experiment, to_toml, with_paths_from
from fedaccord.data.dataset import load_dataset
from fedaccord.data.own_files import read_own_files
from fedaccord.data.registry import locate
from fedaccord.data.sensitive import Target, find_target, with_groups
from fedaccord.data.site_data import SiteData
from fedaccord.data.sites import FederationData, pool_sites, split_dataset
from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.engines.engine import Engine, HostSpec
from fedaccord.engines.network import SimulatedNetwork
from fedaccord.errors import ConfigError, FedAccordError, RunFolderError, did_you_mean
from fedaccord.federation.cohorts import FEWEST_SITES, MANY_SITES, Cohorts, cohort_size
from fedaccord.federation.host import with_tensors
from fedaccord.federation.membership import Stay, planned
from fedaccord.federation.network import draw_links
from fedaccord.federation.server import Server
from fedaccord.federation.state import RunState, model_digest
from fedaccord.messages.message import Message
from fedaccord.messages.names import POOL
from fedaccord.methods.clean import clean_predictions
from fedaccord.methods.hosting import build_network, host_spec, site_spec
from fedaccord.methods.registry import make_recipe
from fedaccord.methods.settings import PooledSettings
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network
from fedaccord.recording import Played, Recorder, Watcher, play
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.model_folder import write_model_folder
from fedaccord.runs.records import federation_account, past_drops, past_warnings
from fedaccord.runs.report import write_report
from fedaccord.runs.resume import Past, check_same_data, config_digest, read_past, read_run
from fedaccord.runs.tracking import tracking
from fedaccord.stopping import Signals, signals_stop

__all__ = [
    "Watcher", "finish_report", "load_federation", "open_server", "play", "read_federation", "refusal",
    "resume_experiment", "run_experiment", "worker_count",
]  # fmt: skip


def load_federation(experiment: Experiment, base: Path) -> FederationData:
    """Load the data an experiment names and make its sites; relative paths start from `base`."""
    return read_federation(experiment, base).sound()


def read_federation(experiment: Experiment, base: Path) -> FederationData:
    """Load the data as `load_federation` does, but with flaws where they can be looked at all the same."""
    test_file = None if experiment.server.test is None else locate(experiment.server.test, base)
    asked = experiment.server.labelled
    labelled = locate(asked, base) if isinstance(asked, str) else asked
    as_input = experiment.fairness is not None and experiment.fairness.input
    if experiment.sites is not None:
        return read_own_files(
            experiment.sites, experiment.features, base, experiment.labels.classes, test_file,
            experiment.server.label, experiment.seed, labelled if isinstance(labelled, Path) else None, as_input,
        )  # fmt: skip
    data = experiment.data
    assert data is not None
    dataset = load_dataset(data.dataset, base)
    if data.sensitive is not None:
        dataset = with_groups(dataset, data.sensitive, experiment.seed, as_input)
    return split_dataset(
        dataset,
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


def refusal(experiment: Experiment, base: Path, data: FederationData) -> str | None:
    """Say what a run of the experiment with these data would refuse before its first round; None: nothing."""
    here = experiment.model_copy(update={"run": experiment.run.model_copy(update={"workers": 0, "engine": "embedded"})})
    try:
        with _importable(base), open_server(here, data):
            pass
    except FedAccordError as error:
        return str(error)
    metric = experiment.stop.metric
    if metric is not None and metric.startswith("global.") and data.test is None:
        return f"stop.metric: there is no figure '{metric}'; {data.test_source}"
    return None


@dataclass(frozen=True)
class Elsewhere:
    """Sites that run on other machines: the engine that reaches them, and all that is known of them here."""

    data: FederationData
    engine: Engine


UNTRAINED = "no site's reply was ever admitted, so the model is as it began; see the dropped replies"


def run_experiment(
    experiment: Experiment, base: Path, folder: RunFolder, watcher: Watcher | None = None, alone: Path | None = None,
    data: FederationData | None = None, elsewhere: Elsewhere | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Carry out an experiment and write its run folder; returns the summary.

    `data` stands in for the files the experiment names, for sites whose samples are in memory already; `elsewhere` for
    sites on other machines.
    """
    config = to_toml(with_paths_from(experiment, base))
    run = {
        "run": uuid.uuid4().hex,
        "fedaccord": __version__,
        "alone": None if alone is None else str(alone.resolve()),
        "config": config_digest(config),
        "in_memory": data is not None,
        "deployed": elsewhere is not None,
        "base": str(base.resolve()),
    }
    with signals_stop() as signals, _importable(base):
        with signals.held():
            folder.write_json("run.json", run)  # first, since what has a config.toml can be resumed
            folder.write_config(config)
            folder.log(f"fedaccord {__version__}, method {experiment.method_name}, seed {experiment.seed}")
        return _carry_on(experiment, base, folder, run, Past(), watcher or Watcher(), signals, data, elsewhere)


def resume_experiment(
    folder: RunFolder, watcher: Watcher | None = None, workers: int | None = None, elsewhere: Elsewhere | None = None
) -> dict[str, Any]:
    """Go on with a cut run from its last good checkpoint; it ends as if it had never been cut."""
    watcher = watcher or Watcher()
    change = [] if workers is None else [f"run.workers={workers}"]
    experiment, base = load_experiment(folder.path / "config.toml", change)
    run = read_run(folder.path)
    if run.get("deployed") and elsewhere is None:
        raise RunFolderError(f"'{folder.path}' is a run of a deployment: go on with run.sh in the server's folder")
    with signals_stop() as signals, _importable(Path(run["base"])):
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
        return _carry_on(experiment, base, folder, run, past, watcher, signals, elsewhere=elsewhere)


def _carry_on(
    experiment: Experiment, base: Path, folder: RunFolder, run: dict[str, Any], past: Past, watcher: Watcher,
    signals: Signals, data: FederationData | None = None, elsewhere: Elsewhere | None = None,
) -> dict[str, Any]:  # fmt: skip
    def tell(text: str) -> None:
        folder.log(text)
        watcher.note(text)

    with tracking(experiment.run.track, folder.path, experiment.name, past.lines, tell) as tracked:
        engine = None if elsewhere is None else elsewhere.engine
        data = elsewhere.data if elsewhere is not None else data or load_data(experiment, base)
        for note in data.notes:
            folder.log(f"note: {note}")
        if experiment.network is not None and elsewhere is not None:
            tell("sites on other machines have a network of their own, so [network] is not used")
        with open_server(experiment, data, run["run"], engine, past.state) as server:
            account = federation_account(data, server.cards, server.stays)
            for said in planned(server.stays, server.recipe.settings.rounds):
                tell(said)
            if past.state is not None:
                check_same_data(folder.path, account)
                _restore(server, past)
            folder.write_json("federation.json", account)
            watcher.started(data)
            played = Recorder(experiment, data, server, folder, past, watcher, tracked).play(signals)
            if not played.replies and not server.recipe.needs_labelled:
                tell(UNTRAINED)
            model, header = _model(experiment, data), experiment.features.header
            # What sites elsewhere have of their own stays with them.
            here = set(data.sites) if elsewhere is None else set()
            write_model_folder(folder, server, data, model, experiment.method_name, header, here)
            workers = worker_count(experiment, data) if elsewhere is None else len(data.sites)
            summary = _summary(experiment, server, played, workers, account)
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
    server.dropped = past_drops(past.lines)  # those at joining are among them
    server.told = len(server.dropped)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let an experiment name a model, "module:factory", whose module stands beside it."""
    place = str(folder.resolve())
    sys.path.append(place)
    try:
        yield
    finally:
        sys.path.remove(place)


def load_data(experiment: Experiment, base: Path) -> FederationData:
    """Load the data of a run, as every machine does: on one thread."""
    with _one_thread():  # a study's clean classifier is trained here, and its sums too must not depend on the machine
        return load_federation(experiment, base)


@contextmanager
def open_server(
    experiment: Experiment, data: FederationData, run: str = "", engine: Engine | None = None,
    state: Message | None = None,
) -> Iterator[Server]:  # fmt: skip
    """Start the sites and the server of an experiment, or the server for an engine that is there; both end with it.

    `state` is that of a checkpoint from which a run goes on.
    """
    with _one_thread(), closing(engine or _engine(experiment, data)) as engine:
        server = _server(experiment, data, engine, run or uuid.uuid4().hex)
        if state is not None:
            server.state = RunState.from_message(state)
        server.join()
        server.ready()
        yield server


def _server(experiment: Experiment, data: FederationData, engine: Engine, run: str) -> Server:
    network = _network(experiment, data)
    counters = {n: b.clone() for n, b in network.named_buffers() if not b.is_floating_point()}
    return Server(
        run=run,
        seed=experiment.seed,
        space=data.space,
        recipe=make_recipe(experiment.method_name, experiment.settings),
        network=network,
        state=RunState(Layout.of(network).read(network), counters),
        engine=engine,
        test=data.test,
        unlabelled=data.unlabelled,
        labelled=data.labelled,
        deadline=experiment.run.deadline,
        stays=_stays(experiment, data),
        target=_target(experiment, data),
        test_groups=data.test_groups,
        hostile=_hostile(experiment, data),
    )


def _network(experiment: Experiment, data: FederationData) -> Network:
    model, settings = _model(experiment, data), experiment.settings.model_dump()
    return build_network(model, len(data.space), experiment.method_name, settings, experiment.seed)


def _target(experiment: Experiment, data: FederationData) -> Target | None:
    asked = experiment.fairness
    return None if asked is None else find_target(data.groups, data.space.names, asked.group, asked.label, data.block)


def _hostile(experiment: Experiment, data: FederationData) -> tuple[str, ...]:
    """Return the sites that a study makes hostile."""
    attack = getattr(experiment.settings, "attack", None)
    return () if attack is None else hostile_sites(attack.sites, list(data.sites), experiment.seed)


def _stays(experiment: Experiment, data: FederationData) -> dict[str, Stay]:
    for name in experiment.stays:
        if name not in data.sites:
            key = "joins" if experiment.data is not None and name in experiment.data.joins else "leaves"
            raise ConfigError(f"data.{key}: there is no site '{name}'; {did_you_mean(name, data.sites)}")
    return experiment.stays


def _engine(experiment: Experiment, data: FederationData) -> Engine:
    sites = dict(data.sites)
    settings = experiment.settings
    if isinstance(settings, PooledSettings):
        sites[POOL] = pool_sites(POOL, data.sites, data.space, settings.labels)
    device = experiment.run.device
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"run.device is '{device}', but torch finds no GPU here; use device = \"cpu\"")
    spec = describe_host(experiment, data, sites)
    workers = worker_count(experiment, data)
    links = None if experiment.network is None else draw_links(experiment.network, data.sites, experiment.seed)
    engine: Engine
    if experiment.run.engine == "embedded":
        engine = here = EmbeddedEngine(spec, list(sites), workers, _cohorts(experiment, data, sites))
        for name in data.sites:  # one copy of all samples is enough
            data.sites[name] = with_tensors(data.sites[name], here.tensors)
    else:
        code = [os.path.abspath(entry) for entry in sys.path]
        own = {name: site_spec(spec, site) for name, site in sites.items()}
        engine = _flower_simulation().simulated_engine(own, workers, code)
    return engine if links is None else SimulatedNetwork(engine, links)


def _cohorts(experiment: Experiment, data: FederationData, sites: Mapping[str, SiteData]) -> Cohorts | None:
    if experiment.run.batched == "never":
        return None
    recipe = make_recipe(experiment.method_name, experiment.settings)
    network = _network(experiment, data)
    fewest = MANY_SITES if experiment.run.batched == "auto" else FEWEST_SITES
    return Cohorts(sites, cohort_size(recipe, network, torch.device(experiment.run.device)), fewest)


def describe_host(
    experiment: Experiment, data: FederationData, sites: Mapping[str, SiteData] | None = None
) -> HostSpec:
    """Describe the sites' side of an experiment, for all its sites or for these."""
    target = _target(experiment, data)
    return host_spec(
        data.sites if sites is None else sites, data.space, _model(experiment, data), experiment.method_name,
        experiment.settings, experiment.seed, experiment.run.device,
        target=None if target is None else target.describe(), hostile=_hostile(experiment, data),
    )  # fmt: skip


def _flower_simulation() -> Any:
    try:
        return import_module("fedaccord.engines.flower.simulation")
    except ImportError as error:
        extra = 'pip install "fedaccord[flower-simulation]"'
        raise ConfigError(f'run.engine is "flower", but {error.name} is not installed: {extra}') from None


def worker_count(experiment: Experiment, data: FederationData) -> int:
    """Return how many worker processes a run uses; more than there are sites would idle."""
    if experiment.run.workers is not None:
        return min(experiment.run.workers, len(data.sites))
    if experiment.run.device != "cpu":
        return 0  # a GPU is shared by all sites of one process
    return min(os.cpu_count() or 1, len(data.sites))


def _model(experiment: Experiment, data: FederationData) -> dict[str, Any]:
    model = experiment.model
    return {"name": model.name, "settings": model.settings, "input_shape": list(data.input_shape)}


def _summary(
    experiment: Experiment, server: Server, played: Played, workers: int, account: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "method": experiment.method_name,
        "engine": experiment.run.engine,
        "workers": workers,
        "seed": experiment.seed,
        "rounds": server.state.round,
        "seconds": round(played.seconds, 3),
        "stopped": played.stopped or None,
        "final": played.figures,
        "best": played.best.account(),
        "bytes": {
            "sent": sum(sent for sent, _ in played.bytes.values()),
            "received": sum(received for _, received in played.bytes.values()),
            "sites": {site: list(both) for site, both in sorted(played.bytes.items())},
        },
        **_simulated(server, played),
        "dropped": len(server.dropped),
        "dropped_replies": [drop.account() for drop in server.dropped],
        "warnings": [*server.warnings, *([] if played.replies or server.recipe.needs_labelled else [UNTRAINED])],
        **({"fairness": experiment.fairness.model_dump()} if experiment.fairness is not None else {}),
        **({"hostile": list(server.hostile)} if server.hostile else {}),
        "set_sizes": {name: site["set_size"] for name, site in account["sites"].items() if "set_size" in site},
        "model_sha256": model_digest(server.state.model),
        "settings": experiment.method,
    }


def _simulated(server: Server, played: Played) -> dict[str, Any]:
    """Return the summary's account of a simulated network; nothing where there was none."""
    if played.simulated is None or not isinstance(server.engine, SimulatedNetwork):
        return {}
    told = asdict(played.simulated) | {"seconds": round(played.simulated.seconds, 3)}
    return {"simulated": told | {"sites": {site: asdict(link) for site, link in server.engine.links.items()}}}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread here: sums split over threads would make results depend on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
