"""Which methods there are: a name, a line, its settings and where its recipe is; importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.methods import settings as s
from fedaccord.training.settings import TrainingSettings

if TYPE_CHECKING:
    from fedaccord.federation.recipe import Recipe


@dataclass(frozen=True)
class MethodEntry:
    """A method as the command line lists it."""

    name: str
    summary: str
    settings: type[TrainingSettings]
    recipe: str  # "package.module:function", imported when work begins


_ENTRIES = (
    MethodEntry(
        "accord",
        "every site minimises the likelihood of its own annotations; head rows are averaged per label (ours, default)",
        s.AccordSettings,
        "fedaccord.methods.accord:accord",
    ),
    MethodEntry(
        "fedavg",
        "federated averaging (McMahan et al. 2017): one shared softmax, models averaged by sample count",
        s.ClassicSettings,
        "fedaccord.methods.classic:fedavg",
    ),
    MethodEntry(
        "fedprox",
        "federated averaging with a proximal term that holds sites near the shared model (Li et al. 2020)",
        s.FedProxSettings,
        "fedaccord.methods.classic:fedprox",
    ),
    MethodEntry(
        "private-labels",
        "sites know some labels each and need not say which; head rows averaged over their owners (arXiv 2508.18774)",
        s.PrivateLabelsSettings,
        "fedaccord.methods.private_labels:private_labels",
    ),
    MethodEntry(
        "local",
        "every site trains alone on its own data; what federation has to beat",
        s.LocalSettings,
        "fedaccord.methods.classic:local",
    ),
    MethodEntry(
        "pooled",
        "all samples in one place, for comparison in studies; it moves data, so no federation can do it",
        s.PooledSettings,
        "fedaccord.methods.classic:pooled",
    ),
)
METHODS: dict[str, MethodEntry] = {entry.name: entry for entry in _ENTRIES}


def method_entry(name: str) -> MethodEntry:
    """Return a method by name; an unknown one is an error that says the closest."""
    if name not in METHODS:
        raise ConfigError(f"method.name: unknown method '{name}'; {did_you_mean(name, METHODS)}")
    return METHODS[name]


def make_recipe(name: str, settings: TrainingSettings | Mapping[str, Any]) -> Recipe:
    """Build a method's recipe from its settings."""
    entry = method_entry(name)
    module, _, function = entry.recipe.partition(":")
    checked = settings if isinstance(settings, TrainingSettings) else entry.settings(**settings)
    recipe: Recipe = getattr(import_module(module), function)(checked)
    return recipe
