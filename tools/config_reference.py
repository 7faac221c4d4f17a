"""Write the reference of the experiment file: `python tools/config_reference.py > docs/config.md`.

Sections and keys are in the order of the models that validate them. Importable without torch.
"""

from __future__ import annotations

import json
import re
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from fedaccord import methods
from fedaccord.adversary.settings import AttackSettings, DefenceSettings
from fedaccord.config import Experiment
from fedaccord.data.declarations import Partition
from fedaccord.data.registry import DATASETS
from fedaccord.labels.views.registry import ViewConfig
from fedaccord.methods.entry import Choices, MethodEntry
from fedaccord.methods.registry import METHODS
from fedaccord.models.registry import MODELS
from fedaccord.training.settings import TrainingSettings, place_of

HEAD = """\
# The experiment file

<!-- Written by `python tools/config_reference.py > docs/config.md`; do not edit by hand. -->

An experiment is one TOML file. `fedaccord run FILE` runs it, and `--set section.key=value` changes a key for one run.
An unknown key is an error. A run folder contains the file with all defaults filled in (`config.toml`), which can be run
again. Paths are relative to the folder of the file; a file that is not found there is looked for in the folder named by
the environment variable `FEDACCORD_DATA`.
"""
VIEWS = """\
A view states how a site observes the true label. A view without `kind` is exact. A `kind` may also name your own class,
as in `"package.module:View"`, or a view that an installed package registers; such code runs only with
`--trust package` ([how to write one](new-view.md)).
"""
_WORDS: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_PLURALS = {
    "text": "texts",
    "number": "numbers",
    "list": "lists",
    "table": "tables",
    "[view](#views)": "[views](#views)",
}
# Tables in a method's settings that are too long for a row, with the names of their sections.
_APART: dict[Any, str] = {AttackSettings: "attack", DefenceSettings: "defence"}
_LIMITS = (
    (Ge, "ge", "at least {:g}"),
    (Gt, "gt", "above {:g}"),
    (Le, "le", "at most {:g}"),
    (Lt, "lt", "below {:g}"),
    (MaxLen, "max_length", "at most {:g} letters"),
)


def reference() -> str:
    """Return the whole page as Markdown."""
    parts = [HEAD, *_top_level()]
    for name, field in sections().items():
        model = _model_of(field)
        head = f"## `[[{name}]]`" if get_origin(_without_none(field.annotation)) is list else f"## `[{name}]`"
        if model is None:
            parts += [head, *_method_parts()]
        else:
            parts += [head, _sentence(model), *_table(model.model_fields)]
            parts += _model_parts() if name == "model" else _dataset_parts() if name == "data" else []
    parts += ["## Views", VIEWS]
    parts += _kinds(ViewConfig)
    parts += ["## Partitions", "A partition states how one data set is divided among sites."]
    parts += _kinds(Partition)
    for model, name in _APART.items():
        parts += [f"## {name.capitalize()}s", _sentence(model), *_table(model.model_fields)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def sections() -> dict[str, FieldInfo]:
    """Return the fields of an experiment that are sections of the file, in order."""
    return {n: f for n, f in Experiment.model_fields.items() if _model_of(f) or get_origin(f.annotation) is dict}


def undescribed() -> list[str]:
    """Return the keys of the experiment file that have no description; there should be none."""
    models = {f"[{name}]": model for name, field in sections().items() if (model := _model_of(field))}
    models |= {f"{kind} view": model for kind, model in by_kind(ViewConfig).items()}
    models |= {f"{kind} partition": model for kind, model in by_kind(Partition).items()}
    models |= {f"method.{name}": model for model, name in _APART.items()}
    models |= {f"method {entry.name}": entry.settings for entry in METHODS.values()}
    top = [name for name in Experiment.model_fields if name not in sections()]
    missing = [name for name in top if not Experiment.model_fields[name].description]
    for place, model in models.items():
        keys = [key for key, field in model.model_fields.items() if key != "kind" and not field.description]
        missing += [f"{place}.{key}" for key in keys] + ([] if model.__doc__ else [place])
    return missing


def by_kind(union: Any) -> dict[str, type[BaseModel]]:
    """Return the models of a union that is discriminated by `kind`."""
    return {get_args(model.model_fields["kind"].annotation)[0]: model for model in _models_in(union)}


def in_words(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Describe the type of a key in words: `list[str]` is "list of texts"."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        limits = [limit for one in more for limit in (one.metadata if isinstance(one, FieldInfo) else [one])]
        return in_words(inner, (*limits, *metadata))
    offered = [m.func.names() for m in metadata if isinstance(m, AfterValidator) and isinstance(m.func, Choices)]
    if offered:
        return " or ".join(f"`{_toml(name)}`" for name in offered[0])
    limits = [text.format(getattr(m, key)) for kind, key, text in _LIMITS for m in metadata if isinstance(m, kind)]
    filled = "non-empty " if any(isinstance(m, MinLen) for m in metadata) else ""
    return filled + _plain_words(annotation) + (f" ({', '.join(limits)})" if limits else "")


def _plain_words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        choices = [argument for argument in arguments if argument is not NoneType]
        if choices == _models_in(ViewConfig):
            return "[view](#views)"
        if choices == _models_in(Partition):
            return "[partition](#partitions)"
        return " or ".join(in_words(choice) for choice in choices)
    if origin is Literal:
        return " or ".join(f"`{_toml(argument)}`" for argument in arguments)
    if origin is list:
        return f"list of {_plural(arguments[0])}"
    if origin is dict:
        return f"table of {_plural(arguments[1])}"
    if origin is tuple:
        return f"list of {len(arguments)} {_plural(arguments[0])}"
    if annotation in _APART:
        return f"[{_APART[annotation]}](#{_APART[annotation]}s)"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):  # an inline table
        keys = [f"{key} = {in_words(f.annotation, tuple(f.metadata))}" for key, f in annotation.model_fields.items()]
        return "`{ " + ", ".join(keys) + " }`"
    return _WORDS[annotation]


def _plural(annotation: Any) -> str:
    words = in_words(annotation).split(" ")
    at = 1 if words[0] in ("whole", "non-empty") else 0
    words[at] = _PLURALS.get(words[at], words[at])
    return " ".join(words).replace(" or table ", " or tables ")


def _top_level() -> list[str]:
    fields = {name: field for name, field in Experiment.model_fields.items() if name not in sections()}
    return ["## Top level", *_table(fields)]


def _method_parts() -> list[str]:
    default = Experiment.model_construct(method={}).method_name
    parts = [
        "The method and its settings. `fedaccord methods` lists the methods. Settings with the place `site` are sent "
        "to the sites; those with the place `server` never leave the server.",
        _rows([("`name`", "a name of `fedaccord methods`", f"`{_toml(default)}`", "the method")]),
    ]
    families: dict[str, list[MethodEntry]] = {}
    for entry in METHODS.values():
        families.setdefault(_family_of(str(entry.recipe)), []).append(entry)
    parts += _group_parts("")
    for family, entries in families.items():
        groups, level = _group_parts(family), "###"
        if len(entries) > 1:
            parts.append(f"### {family.replace('_', ' ').capitalize()}")
            level = "####"
        parts += [*groups, *(part for entry in entries for part in _entry_parts(entry, level))]
    return parts


def _group_parts(family: str) -> list[str]:
    """Document the settings that several methods share, within a family or (`family` is "") across families."""
    level = "####" if family else "###"
    groups = [c for entry in METHODS.values() for c in _settings_classes(entry.settings)]
    found = [c for c in dict.fromkeys(groups) if _is_group(c) and _family_of(c.__module__) == family]
    return [part for c in found for part in (f"{level} {_group_title(c)}", *_settings_table(_new_settings(c)))]


def _entry_parts(entry: MethodEntry, level: str) -> list[str]:
    """Document one method: links to its shared settings, then its own settings and those with another default."""
    links: list[str] = []
    own: dict[str, FieldInfo] = {}
    for c in _settings_classes(entry.settings):
        owner = next((other for other in METHODS.values() if other.settings is c), entry)
        if _is_group(c):
            links.append(_link(_group_title(c)))
        elif owner is not entry:
            links.append(_link(f"`{owner.name}`"))
        else:
            own |= _new_settings(c)
    shared = ", ".join(links)
    return [
        f"{level} `{entry.name}`",
        entry.summary,
        f"Settings: {shared}{'; and, new or with another default:' if own else '.'}",
        *_settings_table(own),
    ]


def _settings_classes(settings: type[TrainingSettings]) -> list[type[TrainingSettings]]:
    """Return the classes that declare a method's settings, most general first."""
    classes = [c for c in reversed(settings.__mro__) if issubclass(c, TrainingSettings)]
    return [c for c in classes if _new_settings(c)]


def _new_settings(settings: type[TrainingSettings]) -> dict[str, FieldInfo]:
    """Return the settings that a class declares itself: new ones, and those with another default."""
    fields = settings.model_fields
    return {name: fields[name] for name in get_annotations(settings) if name in fields}


def _is_group(settings: type[TrainingSettings]) -> bool:
    """Return whether a class has its own section, because several methods share its settings."""
    doc = settings.__doc__ or ""
    described = {entry.settings: entry.summary for entry in METHODS.values()}
    return not doc.startswith("Settings of `") and described.get(settings) != doc.partition("\n")[0]


def _group_title(settings: type[TrainingSettings]) -> str:
    title = re.split("[;:.]", (settings.__doc__ or "").removeprefix("Settings of "))[0]
    return title[:1].upper() + title[1:]


def _family_of(module: str) -> str:
    """Return the folder of the family that a module belongs to; empty for a module that families share."""
    inside = module.removeprefix(f"{methods.__name__}.").split(".")
    return inside[0] if len(inside) == 2 else ""


def _link(title: str) -> str:
    return f"[{title[:1].lower() + title[1:]}](#{re.sub('[^a-z0-9_ -]', '', title.lower()).replace(' ', '-')})"


def _settings_table(settings: dict[str, FieldInfo]) -> list[str]:
    rows = [
        (*row[:3], str(place_of(field)), row[3]) for row, field in zip(_lines(settings), settings.values(), strict=True)
    ]
    return [_rows(rows, ("key", "takes", "default", "place", "meaning"))] if rows else []


def _model_parts() -> list[str]:
    rows = []
    for entry in MODELS.values():
        settings = ", ".join(f"`{key} = {_toml(value)}`" for key, value in entry.settings.items())
        rows.append((f"`{entry.name}`", entry.summary, settings or "none"))
    return [
        "Names of models, with their settings and defaults:",
        _rows(rows, ("name", "network", "settings")),
    ]


def _dataset_parts() -> list[str]:
    rows = [(f"`{entry.name}`", entry.summary) for entry in DATASETS.values()]
    return ["Names for `dataset`:", _rows(rows, ("name", "data set"))]


def _kinds(union: Any) -> list[str]:
    parts = []
    for kind, model in by_kind(union).items():
        fields = {name: field for name, field in model.model_fields.items() if name != "kind"}
        parts += [f'### `kind = "{kind}"`', _sentence(model), *_table(fields)]
    return parts


def _table(fields: dict[str, FieldInfo]) -> list[str]:
    return [_rows(_lines(fields))] if fields else []


def _lines(fields: dict[str, FieldInfo]) -> list[tuple[str, str, str, str]]:
    return [
        (f"`{name}`", in_words(field.annotation, tuple(field.metadata)), _default(field), field.description or "")
        for name, field in fields.items()
    ]


def _rows(rows: list[Any], head: tuple[str, ...] = ("key", "takes", "default", "meaning")) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "left out" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, BaseModel):
        return _toml(value.model_dump(exclude_none=True))
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }" if value else "{}"
    return json.dumps(value, ensure_ascii=False)


def _sentence(model: type[BaseModel]) -> str:
    text = " ".join((model.__doc__ or "").split())
    text = text.partition("`: ")[2] or text  # "`[labels]`: the ..."; the heading already names the section
    return text[:1].upper() + text[1:]


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    models = _models_in(field.annotation)
    return models[0] if len(models) == 1 else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _without_none(annotation: Any) -> Any:
    kept = [part for part in get_args(annotation) if part is not NoneType]
    return kept[0] if NoneType in get_args(annotation) and len(kept) == 1 else annotation


if __name__ == "__main__":
    print(reference(), end="")
