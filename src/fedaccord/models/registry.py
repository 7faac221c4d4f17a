"""The available models and their settings; importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)  # allowed values of settings


_CATALOGUE = "fedaccord.models.catalogue"
_RESNET = "fedaccord.models.resnet"

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        ModelEntry("linear", f"{_CATALOGUE}:linear", "softmax or logistic regression on the flattened input"),
        ModelEntry("mlp", f"{_CATALOGUE}:mlp", "dense layers of the widths in `hidden`, with ReLU", {"hidden": [128]}),
        ModelEntry(
            "sphere-mlp",
            f"{_CATALOGUE}:sphere_mlp",
            "dense layers with features of unit norm, for `spherefed`",
            {"hidden": [128]},
        ),
        ModelEntry("lenet5", f"{_CATALOGUE}:lenet5", "LeNet-5 with ReLU and max-pooling, for small images"),
        ModelEntry("cnn", f"{_CATALOGUE}:cnn", "two 5x5 convolutions (32, 64) and a dense layer of 512, for images"),
        ModelEntry(
            "cnn1d", f"{_CATALOGUE}:cnn1d", "convolutions over time (16, 32) and a dense layer of 64, for signals"
        ),
        ModelEntry(
            "resnet8",
            f"{_RESNET}:resnet8",
            'residual network for a CPU: one block per entry of `widths`, stem of stride 2; `norm`: "group" or "batch"',
            {"widths": [32, 64, 128], "norm": "group"},
            {"norm": ("group", "batch")},
        ),
        ModelEntry("resnet18", f"{_RESNET}:resnet18", "ResNet-18 for 32x32 images: 3x3 stem, no first max-pool"),
        ModelEntry("resnet34", f"{_RESNET}:resnet34", "ResNet-34 for 32x32 images: 3x3 stem, no first max-pool"),
    )
}


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
            raise ConfigError(
                f"the setting '{key}' of model '{name}' is {value!r}, "
                f"but must be a non-empty list of positive whole numbers such as {defaults[key]}"
            )
        choices = MODELS[name].choices.get(key)
        if choices and value not in choices:
            known = " or ".join(f'"{choice}"' for choice in choices)
            raise ConfigError(f"the setting '{key}' of model '{name}' is {value!r}, but must be {known}")


def _are_widths(value: Any) -> bool:
    # In Python booleans are integers, but not valid widths.
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(width, int) and not isinstance(width, bool) and width > 0 for width in value)
    )
