"""Turn validation errors of an experiment file into one sentence: the key, the mistake and the closest valid name."""

from __future__ import annotations

import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fedaccord.errors import did_you_mean, first_problems

SHOWN = 3
_PYDANTICS_OWN = re.compile(r"^(int|float|str|list|literal|dict)$|[\[\]]|constrained")  # types of a union

# Names that users often write at the top of the file, and where they belong.
_BELONGS = {
    "training train trainer optimiser optimizer optim hyperparameters local algorithm strategy federated aggregation "
    "client_config": "the method, its learning rate, rounds, epochs and batch size are keys of [method]",
    "rounds epochs steps batch batch_size lr learning_rate momentum": "it belongs in [method]: rounds, epochs, steps, "
    "batch, lr and momentum are keys of the method",
    "clients client site hospitals silos nodes parties": "sites with their own files are [[sites]], with two brackets "
    "for each; sites of one data set are made by [data] partition",
    "dataset datasets": "a data set that is split into sites is [data], with the key dataset",
    "label classes class views view": "the names of the labels are [labels] classes; how a site labels is its key view",
    "evaluation eval testing": "the server's test file is [server] test; how often is [run] evaluate_every",
    "output logging log": "the run folder is an option of the command: fedaccord run FILE --out FOLDER",
}

# What a value should be, by pydantic's error type, in words of TOML.
_SHOULD_BE = {
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "string_type": "a string",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "below {lt:g}",
    "too_short": "of at least {min_length} entry",
    "string_too_short": "of at least {min_length} letter",
    "string_too_long": "of at most {max_length} letters",
}


def sentence(error: ValidationError, root: type[BaseModel], prefix: tuple[str, ...] = ()) -> str:
    """Return a sentence with a clause for each of the first `SHOWN` mistakes."""
    problems: dict[str, list[tuple[Any, type[BaseModel]]]] = {}  # by place: a union fails once for each of its types
    for problem in error.errors():
        model, path = _follow(root, problem["loc"])
        problems.setdefault(".".join([*prefix, *path]), []).append((problem, model))
    # If a key inside a table is wrong, do not report that the table does not fit the other types of its union.
    outer = {place for place in problems if any(p.startswith((f"{place}.", f"{place}[")) for p in problems if place)}
    clauses = [_clause(place, found) for place, found in problems.items() if place not in outer]
    return first_problems(clauses, SHOWN)


def _clause(place: str, problems: list[tuple[Any, type[BaseModel]]]) -> str:
    problem, model = problems[0]
    kind, given, context = problem["type"], problem.get("input"), problem.get("ctx", {})
    if len(problems) > 1:
        return f"{place} is {_short(given)}, but should be " + " or ".join(_expectation(p) for p, _ in problems)
    if kind == "extra_forbidden" and "." not in place:
        return _no_section(place, given, model)
    if kind == "extra_forbidden":
        return f"unknown key '{place}'; {did_you_mean(str(problem['loc'][-1]), model.model_fields)}"
    if kind == "missing":
        return f"the key '{place}' is missing"
    if kind == "union_tag_invalid":
        known = re.findall(r"'([^']+)'", context["expected_tags"])
        return f"{place}.kind is '{context['tag']}'; {did_you_mean(context['tag'], known)}"
    if kind == "union_tag_not_found":
        return f"the key '{place}.kind' is missing"
    if kind == "value_error":
        text = str(context["error"])
        return f"{place}: {text}" if place else text
    if kind in ("literal_error", "enum"):
        known = [word.strip("'") for word in re.findall(r"'[^']+'|-?[\d.]+", context["expected"])]
        return f"{place} is {given!r}; {did_you_mean(str(given), known)}"
    return f"{place} is {_short(given)}, but should be {_expectation(problem)}"


def _no_section(name: str, given: Any, model: type[BaseModel]) -> str:
    """Return where a section or key belongs that the file has at its top."""
    is_section = isinstance(given, dict) or (isinstance(given, list) and bool(given) and isinstance(given[0], dict))
    what = f"[{name}] is not a section" if is_section else f"unknown key '{name}'"
    for words, place in _BELONGS.items():
        if name.lower() in words.split():
            return f"{what}; {place}"
    inside = [section for section, field in model.model_fields.items() if _has(field.annotation, name)]
    if inside and not is_section:
        return f"{what}; it belongs in {' or '.join(f'[{section}]' for section in inside)}"
    return f"{what}; {did_you_mean(name, model.model_fields)}"


def _has(annotation: Any, key: str) -> bool:
    return any(key in model.model_fields for model in _models_in(annotation))


def _expectation(problem: Any) -> str:
    if problem["type"] in _SHOULD_BE:
        return _SHOULD_BE[problem["type"]].format(**problem.get("ctx", {}))
    text = re.sub(r"^(Input|Value) should be ", "", str(problem["msg"]))
    return text[0].lower() + text[1:]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _follow(root: type[BaseModel], location: tuple[int | str, ...]) -> tuple[type[BaseModel], list[str]]:
    """Return the model that holds a location, and the keys that lead to it without pydantic's union tags and types."""
    model, path = root, list[str]()
    candidates = [root]  # the models the next step may enter
    for step in location:
        name = str(step)
        # A step is a union tag only if several models are possible; otherwise it is a field with the same name.
        tagged = [candidate for candidate in candidates if name in _tags(candidate)] if len(candidates) > 1 else []
        if tagged:
            model, candidates = tagged[0], tagged
        elif isinstance(step, int) and path:
            path[-1] += f"[{step}]"
        elif not _PYDANTICS_OWN.search(name):
            path.append(name)
            if len(candidates) == 1:
                model = candidates[0]
                candidates = _models_in(model.model_fields[name].annotation) if name in model.model_fields else []
    return model, path


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("kind")
    return get_args(field.annotation) if field else ()
