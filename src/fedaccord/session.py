"""Build and start the engine and the server of an experiment."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from fedaccord.adversary.attacks import TO_SETS, refuse_site
from fedaccord.adversary.settings import attack_of, hostile_sites
from fedaccord.config import Experiment
from fedaccord.data.coverage import one_class_problem
from fedaccord.data.sensitive import Target, find_target
from fedaccord.data.site_data import SiteData, with_tensors
from fedaccord.data.sites import FederationData, pool_sites
from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.engines.engine import Engine, HostSpec
from fedaccord.engines.network import SimulatedNetwork
from fedaccord.errors import ConfigError, DataError, did_you_mean
from fedaccord.extensions import trusted
from fedaccord.federation.attack import make_attack
from fedaccord.federation.cohorts import FEWEST_SITES, MANY_SITES, PIECES, Cohorts, cohort_size
from fedaccord.federation.membership import Membership
from fedaccord.federation.network import draw_links
from fedaccord.federation.server import Server
from fedaccord.federation.site_views import owned_labels, usable_samples
from fedaccord.federation.state import RunState, SiteCard
from fedaccord.federation.streaming import cohort_means
from fedaccord.hosting import build_network, host_spec, site_spec
from fedaccord.messages.message import Message
from fedaccord.messages.names import POOL
from fedaccord.methods.registry import make_recipe
from fedaccord.models.layout import Layout


@contextmanager
def open_server(
    experiment: Experiment,
    data: FederationData,
    run: str = "",
    engine: Engine | None = None,
    state: Message | None = None,
) -> Iterator[Server]:
    """Start the server of an experiment, and its sites unless `engine` is given; close the engine at the end.

    `state` is the checkpoint of a run to resume.
    """
    is_remote = engine is not None
    if problem := one_class_problem(data):
        raise DataError(problem)
    with one_thread(), closing(engine or _engine(experiment, data)) as engine:
        server = _server(experiment, data, engine, run or uuid.uuid4().hex)
        device = experiment.run.device
        if is_remote:
            server.expected_cards = {
                name: SiteCard(
                    name,
                    len(site.train),
                    site.view.kind,
                    owned_labels(site, server.recipe),
                    unexplained=not site.view.is_known,
                )
                for name, site in data.sites.items()
            }
            if _is_missing(device):  # the sites may still have GPUs
                server.warn(f"run.device is '{device}', but torch finds no GPU at the server, which uses its CPU")
                device = "cpu"
        server.move_to(torch.device(device))
        server.averages_cohorts = not is_remote and _averages_cohorts(experiment)
        if state is not None:
            server.state = RunState.from_message(state)
        server.join()
        server.ready()
        yield server


def _server(experiment: Experiment, data: FederationData, engine: Engine, run: str) -> Server:
    recipe = make_recipe(experiment.method_name, experiment.settings)
    network = build_network(describe_model(experiment, data), data.space.names, recipe, experiment.seed)
    counters = {n: b.clone() for n, b in network.named_buffers() if not b.is_floating_point()}
    return Server(
        run=run,
        seed=experiment.seed,
        space=data.space,
        recipe=recipe,
        network=network,
        state=RunState(Layout.of(network).read(network), counters),
        engine=engine,
        test=data.test,
        unlabelled=data.unlabelled,
        labelled=data.labelled,
        input_shape=data.input_shape,
        deadline=experiment.run.deadline,
        admission=experiment.admit,
        memberships=_memberships(experiment, data),
        answers={name: len(site.view.answers) for name, site in data.sites.items()},
        target=_target(experiment, data),
        test_groups=data.test_groups,
        attack=make_attack(experiment.settings),
        hostile=_hostile(experiment, data),
    )


def _target(experiment: Experiment, data: FederationData) -> Target | None:
    fairness = experiment.fairness
    if fairness is None:
        return None
    group, label, normalise = fairness.group, fairness.label, fairness.normalise
    return find_target(data.groups, data.space.names, group, label, data.group_features, normalise)


def _hostile(experiment: Experiment, data: FederationData) -> tuple[str, ...]:
    """Return the hostile sites of a study, sampled from those that may train."""
    attack = attack_of(experiment.settings)
    if attack is None:
        return ()
    trainers = _trainers(experiment, data)
    idle = _attackers_without_effect(experiment, data, attack.kind)
    for name in attack.sites if isinstance(attack.sites, list) else ():
        if name in data.sites and name not in trainers:
            raise ConfigError(f"method.attack.sites: site '{name}' does not train, so it cannot attack")
        if name in idle:
            raise ConfigError(f"method.attack.sites: site '{name}' {idle[name]}")
    hostile = hostile_sites(attack.sites, trainers, experiment.seed, [name for name in trainers if name not in idle])
    for name in hostile:  # checked before the run, because data are poisoned in the workers
        refuse_site(data.sites[name], attack.kind, _target(experiment, data))
    return hostile


def _attackers_without_effect(experiment: Experiment, data: FederationData, kind: str) -> dict[str, str]:
    """Return the sites where an attack on labels would have no effect, with the reason."""
    target = _target(experiment, data)
    if target is None or kind not in TO_SETS:
        return {}
    adds_any_label = kind == "plfa" and experiment.settings.softmax == "full"
    reasons = {}
    for name, site in data.sites.items():
        known = site.view.possible_labels()
        if not known[target.label] and not adds_any_label:
            reasons[name] = f"does not know the label of [fairness], so '{kind}' would not change its training"
        elif known[target.label] and int(known.sum()) == 1:
            reasons[name] = f"knows no label but that of [fairness], so '{kind}' has no other label for its rows"
    return reasons


def _trainers(experiment: Experiment, data: FederationData) -> list[str]:
    """Return the sites that the method selects and that have labelled samples."""
    selected, recipe = experiment.settings.sites, make_recipe(experiment.method_name, experiment.settings)
    return [
        name
        for name, site in data.sites.items()
        if (name in selected if isinstance(selected, list) else selected in ("all", site.view.kind))
        and usable_samples(site, recipe)
        and bool(owned_labels(site, recipe).any())
    ]


def _memberships(experiment: Experiment, data: FederationData) -> dict[str, Membership]:
    for name in experiment.memberships:
        if name not in data.sites:
            key = "joins" if experiment.data is not None and name in experiment.data.joins else "leaves"
            raise ConfigError(f"data.{key}: there is no site '{name}'; {did_you_mean(name, data.sites)}")
    return experiment.memberships


def _engine(experiment: Experiment, data: FederationData) -> Engine:
    sites = dict(data.sites)
    recipe = make_recipe(experiment.method_name, experiment.settings)
    if recipe.is_pooled:
        labels = "truth" if recipe.trains == "pool of truth" else "views"
        sites[POOL] = pool_sites(POOL, data.sites, data.space, labels)
    device = experiment.run.device
    if _is_missing(device):
        raise ConfigError(f"run.device is '{device}', but torch finds no GPU here; use device = \"cpu\"")
    spec = describe_host(experiment, data, sites)
    spec = replace(spec, spec=spec.spec | {"trust": trusted()})
    workers = worker_count(experiment, data)
    links = None if experiment.network is None else draw_links(experiment.network, data.sites, experiment.seed)
    engine: Engine
    if experiment.run.engine == "embedded":
        # Only the server's settings say how it aggregates.
        means = cohort_means(recipe) if _averages_cohorts(experiment) else "never"
        spec = replace(spec, spec=spec.spec | {"cohort_means": means})
        cohorts, names = _cohorts(experiment, data, sites), list(sites)
        # Drop all other references to the samples, so that they are never in memory twice.
        empty = {key: tensor[:0].clone() for key, tensor in spec.tensors.items()}
        for name in data.sites:
            data.sites[name] = with_tensors(data.sites[name], empty)
        sites.clear()
        engine = embedded = EmbeddedEngine(spec, names, workers, cohorts)
        for name in data.sites:
            data.sites[name] = with_tensors(data.sites[name], embedded.tensors)
    else:
        code = [os.path.abspath(entry) for entry in sys.path]
        specs = {name: site_spec(spec, site) for name, site in sites.items()}
        engine = _flower_simulation().simulated_engine(specs, workers, code)
    return engine if links is None else SimulatedNetwork(engine, links)


def _is_missing(device: str) -> bool:
    return device.startswith("cuda") and not torch.cuda.is_available()


def _averages_cohorts(experiment: Experiment) -> bool:
    """Return whether cohorts may reply with their mean; attacks, clipping and a network need each site's own reply."""
    needs_each = attack_of(experiment.settings) is not None or experiment.admit.clip or experiment.network is not None
    return experiment.run.engine == "embedded" and not needs_each


def _cohorts(experiment: Experiment, data: FederationData, sites: Mapping[str, SiteData]) -> Cohorts | None:
    batched = experiment.run.batched
    if batched == "never":
        return None
    recipe = make_recipe(experiment.method_name, experiment.settings)
    network = build_network(describe_model(experiment, data), data.space.names, recipe, experiment.seed)
    fewest = MANY_SITES if batched == "auto" else FEWEST_SITES
    pieces = 1 if batched == "whole" else PIECES
    return Cohorts(sites, cohort_size(recipe, network, torch.device(experiment.run.device)), fewest, pieces)


def describe_host(
    experiment: Experiment, data: FederationData, sites: Mapping[str, SiteData] | None = None
) -> HostSpec:
    """Describe the host of an experiment's sites, by default all of them."""
    target = _target(experiment, data)
    return host_spec(
        data.sites if sites is None else sites,
        data.space,
        describe_model(experiment, data),
        experiment.method_name,
        experiment.settings,
        experiment.seed,
        experiment.run.device,
        target=None if target is None else target.describe(),
        hostile=_hostile(experiment, data),
    )


def _flower_simulation() -> Any:
    try:
        return import_module("fedaccord.engines.flower.simulation")
    except ImportError as error:
        extra = 'pip install "fedaccord[flower-simulation]"'
        raise ConfigError(f'run.engine is "flower", but {error.name} is not installed: {extra}') from None


def worker_count(experiment: Experiment, data: FederationData) -> int:
    """Return the number of worker processes of a run, at most one per site."""
    if experiment.run.workers is not None:
        return min(experiment.run.workers, len(data.sites))
    if experiment.run.device != "cpu":
        return 0  # all sites share the GPU in one process
    return min(os.cpu_count() or 1, len(data.sites))


def describe_model(experiment: Experiment, data: FederationData) -> dict[str, Any]:
    """Describe the model, so that any process can build it."""
    model = experiment.model
    return {"name": model.name, "settings": model.settings, "input_shape": list(data.input_shape)}


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, because sums over several threads depend on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
