"""Write values and lines of TOML, for experiment files and for the lines to paste that messages end with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_line(key: str, value: Any) -> str:
    """Return a key with its value, as one line of a file."""
    return f"{toml_key(key)} = {toml_value(value)}"


def toml_key(key: str) -> str:
    """Return a key, in quotes where TOML needs them."""
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else toml_value(key)


def toml_value(value: Any) -> str:
    """Return a value as TOML; a table becomes an inline table."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(toml_line(k, v) for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML allows it only escaped
    return json.dumps(value)
