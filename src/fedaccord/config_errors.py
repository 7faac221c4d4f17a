"""A wrong experiment file, told in a sentence: where, what, and what was probably meant."""

from __future__ import annotations

import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fedaccord.errors import did_you_mean

SHOWN = 3
_PYDANTICS_OWN = re.compile(r"^(int|float|str|list|literal|dict)$|[\[\]]|constrained")  # types of a union


def sentence(error: ValidationError, root: type[BaseModel], prefix: tuple[str, ...] = ()) -> str:
    """Return the first mistakes of a failed validation, one clause each."""
    clauses: list[str] = []
    for problem in error.errors():
        clause = _clause(problem, root, prefix)
        if clause not in clauses:
            clauses.append(clause)
    more = len(clauses) - SHOWN
    return "; ".join(clauses[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _clause(problem: Any, root: type[BaseModel], prefix: tuple[str, ...]) -> str:
    model, path = _follow(root, problem["loc"])
    place = ".".join([*prefix, *path])
    kind, given, context = problem["type"], problem.get("input"), problem.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key '{place}'; {did_you_mean(path[-1], model.model_fields)}"
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
        known = re.findall(r"'([^']+)'", context["expected"])
        return f"{place} is {given!r}; {did_you_mean(str(given), known)}"
    return f"{place} is {_short(given)}, but {_expectation(problem)}"


def _expectation(problem: Any) -> str:
    text = str(problem["msg"])
    text = re.sub(r"^Input should be ", "should be ", text)
    text = re.sub(r"^(List|Dictionary|String|Value) should ", "should ", text)
    return text[0].lower() + text[1:]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _follow(root: type[BaseModel], location: tuple[int | str, ...]) -> tuple[type[BaseModel], list[str]]:
    """Walk a location through the models; union tags and types in it are pydantic's own and are left out."""
    model, path = root, list[str]()
    candidates = [root]  # the models the next step may enter
    for step in location:
        name = str(step)
        tagged = [candidate for candidate in candidates if name in _tags(candidate)]
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
