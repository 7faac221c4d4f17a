"""Read, check and write experiment files; importable without torch."""

from __future__ import annotations

import datetime
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedaccord.config_errors import sentence
from fedaccord.config_sections import Experiment as Experiment
from fedaccord.config_sections import Model
from fedaccord.config_sections import Stop as Stop
from fedaccord.data.declarations import Reading
from fedaccord.data.registry import check_dataset, locate
from fedaccord.errors import ConfigError, UntrustedError, UserError
from fedaccord.extensions import importable
from fedaccord.methods.registry import ALONE, method_entry
from fedaccord.models.registry import MODELS, check_model
from fedaccord.renamed import refuse_renamed
from fedaccord.toml_text import toml_line
from fedaccord.training.settings import TrainingSettings


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> tuple[Experiment, Path]:
    """Read and check an experiment file; returns it with the folder that relative paths start from.

    Modules that it names are also looked for in its folder, and for a run in the folder of the original file.
    """
    folder = path.resolve().parent
    with importable(folder), importable(_original_folder(folder)):
        return parse_experiment(read_text(path), overrides, str(path)), folder


def _original_folder(folder: Path) -> Path:
    """Return the folder of the experiment file that a run folder was started from; other folders are returned as is."""
    try:
        return Path(json.loads((folder / "run.json").read_bytes())["base"])
    except (OSError, ValueError, KeyError, TypeError):
        return folder


def read_text(path: Path) -> str:
    """Return the text of an experiment file with its line endings."""
    try:
        return path.read_bytes().decode("utf-8-sig")  # some editors write a byte-order mark
    except FileNotFoundError:
        raise ConfigError(f"there is no file '{path}'") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"'{path}' cannot be read: {reason}") from None


def parse_experiment(text: str, overrides: Sequence[str] = (), where: str = "experiment") -> Experiment:
    """Check the text of an experiment file."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply") from None
    refuse_renamed(table, where, f"; run: fedaccord upgrade {where}")
    for override in overrides:
        _override(table, override)
    return check_experiment(table, where)


def check_experiment(table: Mapping[str, Any], where: str = "experiment") -> Experiment:
    """Validate a table as an experiment; raise ConfigError with a sentence for each of the first mistakes."""
    _check_values(table, where)
    refuse_renamed(table, where)
    try:
        experiment = Experiment(**table)
    except ValidationError as error:
        for problem in error.errors():
            if isinstance(problem.get("ctx", {}).get("error"), UntrustedError):
                raise problem["ctx"]["error"] from None
        raise ConfigError(f"{where}: {sentence(error, Experiment)}") from None
    with _at(f"{where}: model: "):
        check_model(experiment.model.name, experiment.model.settings)
    if experiment.data is not None:
        with _at(f"{where}: data.dataset: "):
            check_dataset(experiment.data.dataset)
    with _at(f"{where}: "):
        entry = method_entry(experiment.method_name)
    try:
        settings = experiment.settings
    except ValidationError as error:
        raise ConfigError(f"{where}: {sentence(error, entry.settings, ('method',))}") from None
    for site in experiment.sites or []:
        if reason := settings.view_problem(site.view):
            raise ConfigError(f"{where}: site '{site.name}' {reason}")
    _reach_last_step(experiment.stop, settings, where)
    # Add every default of method and model, so that the written file is complete.
    complete = {"name": entry.name} | settings.model_dump(mode="json", exclude_none=True)
    defaults = MODELS[experiment.model.name].settings if experiment.model.name in MODELS else {}
    model = Model(**{"name": experiment.model.name, **defaults, **experiment.model.settings})
    return experiment.model_copy(update={"method": complete, "model": model})


_BUDGET = (
    *("rounds", "epochs", "steps", "batch", "lr", "schedule"),
    *("optimiser", "momentum", "weight_decay", "clip", "regularise"),
)


def without_federation(experiment: Experiment) -> Experiment:
    """Return the experiment in which every site trains alone, with the same seed, data, model and local budget.

    It never stops early, because the metric of `stop` may be that of a global model.
    """
    settings = {key: experiment.method[key] for key in (*_BUDGET, "participation") if key in experiment.method}
    table = experiment.model_dump(mode="json", exclude_none=True, exclude={"stop", "network"})
    table |= {"name": f"{experiment.name}-alone", "method": {"name": ALONE, **settings}}
    table["run"] = table["run"] | {"track": []}
    return check_experiment(table, "--alone")


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Prefix the messages of user errors in this block with `place`; UntrustedError is raised unchanged."""
    try:
        yield
    except UntrustedError:
        raise
    except UserError as error:
        raise ConfigError(f"{place}{error}") from None


def _reach_last_step(stop: Stop, settings: TrainingSettings, where: str) -> None:
    early = "metric" if stop.metric is not None else "seconds" if stop.seconds is not None else ""
    if early and settings.last_step:
        late = f"stop.{early} may end the run early, but {settings.last_step} only after the last round"
        raise ConfigError(f"{where}: {late}; leave one of them out")


def _check_values(value: Any, where: str, place: str = "") -> None:
    """Raise ConfigError for dates, times and numbers that are not finite, which no setting allows."""
    if isinstance(value, Mapping | list):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            _check_values(inner, where, f"{place}[{key}]" if isinstance(key, int) else f"{place}.{key}".lstrip("."))
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {place} is {value}, but should be a finite number")
    elif isinstance(value, datetime.date | datetime.time):
        raise ConfigError(f"{where}: {place} is a date or a time; write it in quotes, as text")


def with_paths_from(experiment: Experiment, folder: Path) -> Experiment:
    """Return the experiment with absolute paths, so that it can be run from any folder."""
    update: dict[str, Any] = {}
    if experiment.data is not None and experiment.data.dataset.endswith(".npz"):
        update["data"] = experiment.data.model_copy(update={"dataset": str(locate(experiment.data.dataset, folder))})
    if experiment.sites is not None:
        update["sites"] = [s.model_copy(update={"data": str(locate(s.data, folder))}) for s in experiment.sites]
    files = {key: getattr(experiment.server, key) for key in ("test", "labelled", "unlabelled")}
    found = {key: str(locate(name, folder)) for key, name in files.items() if isinstance(name, str)}
    if found:
        update["server"] = experiment.server.model_copy(update=found)
    return experiment.model_copy(update=update)


def _override(table: dict[str, Any], override: str) -> None:
    """Apply one `--set section.key=value` to a table."""
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise ConfigError(f"--set takes section.key=value, not '{override}'")
    value = parse_value(key, text)
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key}: '{part}' is not a table")
    table[path[-1]] = value


def parse_reading(text: str) -> Reading:
    """Return how a table is written from an inline table of TOML, such as `{ decimal = "," }`."""
    try:
        return Reading.model_validate(tomllib.loads(f"read = {text}")["read"])
    except tomllib.TOMLDecodeError as error:
        form = """a table such as '{ separator = ";", decimal = "," }'"""
        raise ConfigError(f"--read takes {form}, not '{text}' ({error})") from None
    except ValidationError as error:
        raise ConfigError(f"--read: {sentence(error, Reading)}") from None


def parse_value(key: str, text: str) -> Any:
    """Return the TOML value of a `--set` for a key; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        value = text.strip()
        if value[:1] in ("[", "{", '"', "'"):
            raise ConfigError(f"--set {key}: {value} is not a TOML value ({error}); are its words in quotes?") from None
        return value


def to_toml(experiment: Experiment) -> str:
    """Write a complete experiment back as TOML."""
    table = experiment.model_dump(mode="json", exclude_none=True)
    sites = table.pop("sites", [])
    lines = [toml_line(key, table.pop(key)) for key in ("name", "seed")]
    for name, section in table.items():
        lines += ["", f"[{name}]", *(toml_line(key, value) for key, value in section.items())]
    for site in sites:
        lines += ["", "[[sites]]", *(toml_line(key, value) for key, value in site.items())]
    return "\n".join(lines) + "\n"
