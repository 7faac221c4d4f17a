"""Write the experiment file of the chosen setting: the user's text with the chosen values in it."""

from __future__ import annotations

from pathlib import Path

from fedaccord.config import parse_experiment, parse_value, read_text, to_toml, with_paths_from
from fedaccord.durable import write_file
from fedaccord.errors import ConfigError, UserError
from fedaccord.extensions import importable
from fedaccord.renamed import find_keys
from fedaccord.settings_search.grid import Setting
from fedaccord.toml_text import toml_value

HEADER = "# Settings chosen by `fedaccord tune`"


def default_target(file: Path) -> Path:
    """Return the name of the chosen file beside FILE: digits.toml -> digits.tuned.toml."""
    return file.with_name(f"{file.stem}.tuned.toml")


def check_target(target: Path) -> None:
    """Raise UserError if a file is in the way that `fedaccord tune` did not write."""
    if target.is_dir():
        raise UserError(f"--out: '{target}' is a folder; name a file")
    if not target.parent.is_dir():
        raise UserError(f"--out: there is no folder '{target.parent}'")
    if target.exists() and not target.read_bytes().startswith(HEADER.encode()):
        raise UserError(f"'{target}' exists and was not written by tune; give another file with --out")


def write_chosen(file: Path, setting: Setting, target: Path, reason: str) -> Path:
    """Write the chosen setting; in the folder of FILE as FILE with other values, elsewhere with absolute paths."""
    folder, text = file.resolve().parent, None
    if target.resolve().parent == folder:
        with importable(folder):
            text = with_values(read_text(file), setting)
    if text is None:
        text = to_toml(with_paths_from(setting.experiment, folder))
    return write_file(target, f"{HEADER}: {reason}\n{text}", UserError)


def with_values(text: str, setting: Setting) -> str | None:
    """Return the text of a file with a setting's values, all else unchanged; None if the text cannot be edited so."""
    new = text
    for key, value in setting.values.items():
        new = _with_value(new, tuple(key.split(".")), toml_value(parse_value(key, value)))
    try:
        is_right = to_toml(parse_experiment(new)) == to_toml(setting.experiment)
    except ConfigError:
        return None
    return new if is_right else None


def _with_value(text: str, path: tuple[str, ...], value: str) -> str:
    keys = find_keys(text)
    for key in keys:
        if key.path == path and key.value is not None:
            return text[: key.value[0]] + value + text[key.value[1] :]
    line, table = f"{path[-1]} = {value}\n", path[:-1]
    if not table:
        return line + text
    for key in keys:
        if key.path == table and key.value is None:
            end = text.find("\n", key.end)
            return text[: end + 1] + line + text[end + 1 :] if end >= 0 else f"{text}\n{line}"
    return f"{text.rstrip()}\n\n[{'.'.join(table)}]\n{line}"
