"""Describe the host of sites as JSON and tensors, and build it from these in any process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedaccord.data.sensitive import Target
from fedaccord.data.site_data import SiteData, named_samples, site_tensors
from fedaccord.engines.engine import OUR_HOST, HostSpec
from fedaccord.errors import ConfigError
from fedaccord.extensions import trusting
from fedaccord.federation.attack import make_attack
from fedaccord.federation.host import SiteHost
from fedaccord.federation.recipe import Recipe
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import make_view
from fedaccord.messages.message import SiteId
from fedaccord.methods.registry import make_recipe, method_entry
from fedaccord.models.catalogue import build
from fedaccord.models.network import Network
from fedaccord.seeds import derive
from fedaccord.training.local import has_batch_norm
from fedaccord.training.settings import TrainingSettings, place_of


def host_spec(
    sites: Mapping[SiteId, SiteData],
    space: LabelSpace,
    model: Mapping[str, Any],
    method: str,
    settings: TrainingSettings,
    seed: int,
    device: str = "cpu",
    target: Mapping[str, Any] | None = None,
    hostile: Sequence[SiteId] = (),
) -> HostSpec:
    """Describe the sites of a run with the settings that belong to them, so that any process can build their host."""
    spec = {
        "labels": list(space.names),
        "views": {name: data.view.describe() for name, data in sites.items()},
        "model": dict(model),
        "method": method,
        "settings": site_settings(method, settings.model_dump(mode="json"), bool(hostile)),
        "seed": seed,
        "device": device,
        "target": None if target is None else dict(target),
        "hostile": list(hostile),
    }
    return HostSpec(OUR_HOST, spec, site_tensors(sites))


def site_spec(spec: HostSpec, site: SiteData) -> HostSpec:
    """Return the description of one site: its data, its settings, and the names of its labels.

    Labels that the site's view does not name keep their column, which the shape of the model reveals anyway.
    """
    named = set(_words(site.view.describe()))
    informs = site.view.informs().tolist()
    names = [
        name if is_informed or name in named else f"(label {column})"
        for column, (name, is_informed) in enumerate(zip(spec.spec["labels"], informs, strict=True))
    ]
    hostile = [name for name in spec.spec["hostile"] if name == site.name]
    description = spec.spec | {
        "labels": names,
        "views": {site.name: site.view.describe()},
        "settings": site_settings(spec.spec["method"], spec.spec["settings"], bool(hostile)),
        "hostile": hostile,
    }
    return HostSpec(spec.entry, description, site_tensors({site.name: site}))


def site_settings(method: str, settings: Mapping[str, Any], hostile: bool = False) -> dict[str, Any]:
    """Return the settings of a method that belong to the sites, and its attack if a site among them is hostile."""
    fields, places = method_entry(method).settings.model_fields, {"site", "hostile site"} if hostile else {"site"}
    return {key: value for key, value in settings.items() if key in fields and place_of(fields[key]) in places}


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (*_words(key), *_words(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _words(inner)


def build_host(spec: dict[str, Any], tensors: dict[str, Tensor]) -> SiteHost:
    """Build the sites and the model that they share in this process."""
    space, device, seed = LabelSpace(spec["labels"]), torch.device(spec["device"]), spec["seed"]
    with trusting(spec.get("trust", ())):
        sites = {name: _site(name, view, space, tensors, device) for name, view in spec["views"].items()}
        recipe = make_recipe(spec["method"], spec["settings"])
        network = build_network(spec["model"], space.names, recipe, seed).to(device)
        target, attack = Target.read(spec.get("target")), make_attack(recipe.settings)
        hostile, means = spec.get("hostile", ()), spec.get("cohort_means", "never")
        return SiteHost(sites, network, recipe, seed, target, attack, hostile, means)


def build_network(model: Mapping[str, Any], labels: Sequence[str], recipe: Recipe, seed: int) -> Network:
    """Build the initial network, the same at the server and at every site for the same seed.

    If head rows are initialised by label name, a site's rows of labels it cannot name differ; it uses none of them.
    """
    network = build(model["name"], model["settings"], tuple(model["input_shape"]), len(labels), derive(seed, "init"))
    if recipe.network is not None:
        recipe.network(network, labels, seed)
    if recipe.settings.batch == 1 and has_batch_norm(network):
        raise ConfigError(f"method.batch is 1, but the model '{model['name']}' has batch-norm, which needs at least 2")
    return network


def _site(
    name: SiteId, view: dict[str, Any], space: LabelSpace, tensors: dict[str, Tensor], device: torch.device
) -> SiteData:
    train, test = (samples.map(lambda tensor: tensor.to(device)) for samples in named_samples(tensors, name))
    return SiteData(name, make_view(view, space), train, test)
