"""The available models and their settings; importable without torch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.extensions import check_trusted, installed, is_outside

GIVEN = "fedaccord.api:given_model"
"""The name in a config of a module that was handed over in Python; it can be built in that process only."""


@dataclass(frozen=True)
class ModelEntry:
    """A built-in model: its name, builder, summary and the defaults of its settings."""

    name: str
    builder: str
    summary: str
    settings: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)  # allowed values of settings


_CATALOGUE = tomllib.loads(resources.files("fedaccord.models").joinpath("models.toml").read_text(encoding="utf-8"))
MODELS = {name: ModelEntry(name, **entry) for name, entry in _CATALOGUE.items()}


def check_model(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown model, an unknown setting or a wrong value.

    Raise UntrustedError for code that nobody has allowed to run; no code outside FedAccord is imported here.
    """
    if name == GIVEN:
        return
    if name not in MODELS and is_outside(name, "models"):
        check_trusted(name, "models", "model.name")
        return
    if name not in MODELS:
        raise ConfigError(f"unknown model '{name}': {did_you_mean(name, [*MODELS, *installed('models')])}")
    defaults = MODELS[name].settings
    for key, value in settings.items():
        if key not in defaults:
            raise ConfigError(f"the model '{name}' has no setting '{key}': {did_you_mean(key, defaults)}")
        if isinstance(defaults[key], list) and not _are_widths(value):
            wanted = f"a non-empty list of positive whole numbers such as {defaults[key]}"
        elif value not in MODELS[name].choices.get(key, [value]):
            wanted = " or ".join(f'"{choice}"' for choice in MODELS[name].choices[key])
        else:
            continue
        raise ConfigError(f"the setting '{key}' of model '{name}' is {value!r}, but must be {wanted}")


def _are_widths(value: Any) -> bool:
    # `type`, because booleans are instances of int.
    return isinstance(value, list | tuple) and bool(value) and all(type(width) is int and width > 0 for width in value)
