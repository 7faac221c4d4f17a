"""Modules handed over in Python: a config names one by a key, which only the process that has the module knows."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from typing import Any

from torch import nn

from fedaccord.errors import ConfigError
from fedaccord.models.registry import GIVEN

_given: dict[str, nn.Module] = {}


def give_model(module: nn.Module) -> dict[str, Any]:
    """Keep a copy of a module for this process; return the `[model]` table that names it."""
    key = uuid.uuid4().hex
    _given[key] = copy.deepcopy(module)
    return {"name": GIVEN, "key": key}


def given_model(settings: Mapping[str, Any]) -> nn.Module:
    """Return a copy of the module that a `[model]` table names; raise ConfigError in any other process."""
    if settings.get("key") not in _given:
        raise ConfigError(
            "the model was handed over as a module of another process; use workers=0, or name it as "
            "'package.module:factory'"
        )
    return copy.deepcopy(_given[settings["key"]])
