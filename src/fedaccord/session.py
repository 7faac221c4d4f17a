"""Start the sites and the server of an experiment: which model, on which engine, who trains together, who attacks."""

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

from fedaccord.adversary.choice import hostile_sites
from fedaccord.adversary.data_attacks import TO_SETS, refuse_site
from fedaccord.config import Experiment
from fedaccord.data.sensitive import Target, find_target
from fedaccord.data.site_data import SiteData, with_tensors
from fedaccord.data.sites import FederationData, pool_sites
from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.engines.engine import Engine, HostSpec
from fedaccord.engines.network import SimulatedNetwork
from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.extensions import trusted
from fedaccord.federation.attack import make_attack
from fedaccord.federation.cohorts import FEWEST_SITES, MANY_SITES, PIECES, Cohorts, cohort_size
from fedaccord.federation.host import owned_labels, usable_samples
from fedaccord.federation.membership import Membership
from fedaccord.federation.network import draw_links
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.server import Server
from fedaccord.federation.state import RunState, SiteCard
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
    """Start the sites and the server of an experiment, or the server for an engine that is there; both end with it.

    `state` is that of a checkpoint from which a run goes on.
    """
    elsewhere = engine is not None
    with one_thread(), closing(engine or _engine(experiment, data)) as engine:
        server = _server(experiment, data, engine, run or uuid.uuid4().hex)
        device = experiment.run.device
        if elsewhere:
            server.expected_cards = _known(data, server.recipe)
            if _lacks(device):  # the sites may have GPUs all the same
                server.warn(f"run.device is '{device}', but torch finds no GPU at the server: its steps take the CPU")
                device = "cpu"
        server.move_to(torch.device(device))
        server.averages_cohorts = not elsewhere and _folds(experiment)
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
        deadline=experiment.run.deadline,
        memberships=_memberships(experiment, data),
        target=_target(experiment, data),
        test_groups=data.test_groups,
        attack=make_attack(experiment.settings),
        hostile=_hostile(experiment, data),
    )


def _known(data: FederationData, recipe: Recipe) -> dict[str, SiteCard]:
    """Return what is known of sites elsewhere whatever they say: their views, and so which labels are theirs."""
    return {n: SiteCard(n, len(s.train), s.view.kind, owned_labels(s, recipe)) for n, s in data.sites.items()}


def _target(experiment: Experiment, data: FederationData) -> Target | None:
    asked = experiment.fairness
    if asked is None:
        return None
    return find_target(data.groups, data.space.names, asked.group, asked.label, data.group_features, asked.normalise)


def _hostile(experiment: Experiment, data: FederationData) -> tuple[str, ...]:
    """Return the sites that a study makes hostile: some of those that may train."""
    attack = getattr(experiment.settings, "attack", None)
    if attack is None:
        return ()
    able = _may_train(experiment, data)
    for name in attack.sites if isinstance(attack.sites, list) else ():
        if name in data.sites and name not in able:
            raise ConfigError(f"method.attack.sites: site '{name}' does not train, so it cannot attack")
    idle = _idle_attackers(experiment, data, attack.kind)
    for name in attack.sites if isinstance(attack.sites, list) else ():
        if name in idle:
            raise ConfigError(f"method.attack.sites: site '{name}' {idle[name]}")
    hostile = hostile_sites(attack.sites, able, experiment.seed, [name for name in able if name not in idle])
    for name in hostile:  # here and not where its data are attacked: that may be a worker, or many rounds later
        refuse_site(data.sites[name], attack.kind, _target(experiment, data))
    return hostile


def _idle_attackers(experiment: Experiment, data: FederationData, kind: str) -> dict[str, str]:
    """Return the sites at which an attack on labels would do nothing, each with the reason."""
    target = _target(experiment, data)
    if target is None or kind not in TO_SETS:
        return {}
    seen = kind == "plfa" and experiment.settings.softmax == "full"  # a softmax over all labels sees any label given
    found = {}
    for name, site in data.sites.items():
        known = site.view.possible_labels()
        if not known[target.label] and not seen:
            found[name] = f"does not know the label of [fairness], so that '{kind}' would change nothing that it trains"
        elif known[target.label] and int(known.sum()) == 1:
            found[name] = f"knows no label but that of [fairness], so that '{kind}' has no other to move rows to"
    return found


def _may_train(experiment: Experiment, data: FederationData) -> list[str]:
    """Return the sites that the method asks for and that have something to teach."""
    wanted, recipe = experiment.settings.sites, make_recipe(experiment.method_name, experiment.settings)
    return [
        name
        for name, site in data.sites.items()
        if (name in wanted if isinstance(wanted, list) else wanted in ("all", site.view.kind))
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
    if _lacks(device):
        raise ConfigError(f"run.device is '{device}', but torch finds no GPU here; use device = \"cpu\"")
    spec = describe_host(experiment, data, sites)
    spec = replace(spec, spec=spec.spec | {"trust": trusted()})
    workers = worker_count(experiment, data)
    links = None if experiment.network is None else draw_links(experiment.network, data.sites, experiment.seed)
    engine: Engine
    if experiment.run.engine == "embedded":
        spec = replace(spec, spec=spec.spec | {"folds": _folds(experiment)})
        cohorts, names = _cohorts(experiment, data, sites), list(sites)
        # One copy of all samples is enough, also while they are moved.
        without = {key: tensor[:0].clone() for key, tensor in spec.tensors.items()}
        for name in data.sites:
            data.sites[name] = with_tensors(data.sites[name], without)
        sites.clear()
        engine = here = EmbeddedEngine(spec, names, workers, cohorts)
        for name in data.sites:
            data.sites[name] = with_tensors(data.sites[name], here.tensors)
    else:
        code = [os.path.abspath(entry) for entry in sys.path]
        own = {name: site_spec(spec, site) for name, site in sites.items()}
        engine = _flower_simulation().simulated_engine(own, workers, code)
    return engine if links is None else SimulatedNetwork(engine, links)


def _lacks(device: str) -> bool:
    return device.startswith("cuda") and not torch.cuda.is_available()


def _folds(experiment: Experiment) -> bool:
    """Say whether sites that train together may hand over their mean: not where each one's messages are charged."""
    return experiment.run.engine == "embedded" and experiment.network is None


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
    """Describe the sites' side of an experiment, for all its sites or for these."""
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
    """Return how many worker processes a run uses; more than there are sites would idle."""
    if experiment.run.workers is not None:
        return min(experiment.run.workers, len(data.sites))
    if experiment.run.device != "cpu":
        return 0  # a GPU is shared by all sites of one process
    return min(os.cpu_count() or 1, len(data.sites))


def describe_model(experiment: Experiment, data: FederationData) -> dict[str, Any]:
    """Describe the model so that any process can build it."""
    model = experiment.model
    return {"name": model.name, "settings": model.settings, "input_shape": list(data.input_shape)}


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread here: sums split over threads would make results depend on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
