"""Every choice of every enumerated setting of a method, on a federation that the method accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import torch
from sklearn.datasets import load_digits

from command_line import command
from fedaccord.adversary.settings import AttackSettings, DefenceSettings
from fedaccord.methods.entry import Choices
from fedaccord.methods.registry import METHODS
from fedaccord.runs.trained_model import TrainedModel
from fedaccord.toml_text import toml_value
from golden.record import UNFAIR

SITES = "abcdef"
SAMPLES = 4  # predicted of each model
DIGITS = """
seed = 5
[data]
dataset = "digits"
samples = 190
test_samples = 20
partition = { kind = "quantity", sizes = [22, 20, 18, 16, 14, 14] }
names = ["a", "b", "c", "d", "e", "f"]
"""


def views(*declared: str) -> str:
    """Return the section with a view for each site; a single one is that of all."""
    given = declared * len(SITES) if len(declared) == 1 else declared
    return "[data.views]\n" + "".join(f"{site} = {view}\n" for site, view in zip(SITES, given, strict=True) if view)


FIRST, LAST = '{ known = ["0", "1", "2", "3", "4", "5"] }', '{ known = ["4", "5", "6", "7", "8", "9"] }'
CANDIDATES, COARSE = '{ kind = "candidates", generate = "uniform" }', '{ kind = "coarse", correspondence = "shape" }'
UNLABELLED = "[server]\nunlabelled = 20\n"
LABELLED = "[server]\nlabelled = { per_class = 3 }\n"
EXACT = DIGITS + views(FIRST, LAST, "", "", "", "")
FEDERATIONS = {
    "accord": DIGITS + views(FIRST, CANDIDATES, COARSE, '{ kind = "unlabelled" }', "", ""),
    "averaging": EXACT,
    "candidate_sets": DIGITS + views(CANDIDATES) + UNLABELLED,
    "mixed_types": DIGITS + views(COARSE) + LABELLED,
    "momentum": DIGITS + LABELLED,
    "private_labels": EXACT + UNLABELLED,
    "tags": DIGITS.replace('"digits"', '"tags.npz"\nview = { kind = "tags" }'),
    "without_federation": DIGITS + views(CANDIDATES),
}
PEOPLE = UNFAIR.replace("UNFAIR", "people.npz")
# Settings that only matter together with another one.
TOGETHER: dict[str, dict[str, Any]] = {
    "norm": {"tuning": "mse"},
    "pairs": {"tuning": "pairwise"},
    "tuning_labels": {"tuning": "mse", "labels": "public"},
    "mask_absent": {"tuning": "pairwise"},
    "tune": {"tuning": "mse"},
    "frequencies": {"tuning": "balance"},
    "block_loss": {"blocks": "common"},
    "strength_against": {"blocks": "common"},
    "psi": {"loss": "clpl"},
    "scores": {"loss": "clpl"},
    "form": {"loss": "lw"},
    "alpha_from": {"loss": "rc"},
    "estimator": {"correspondence": "estimated"},
    "krum": {"hostile": 1},
    "multi-krum": {"hostile": 1},
}
LONGER = ("fedmt", "fedmt+", "semifl", "fedrep", "fedtrans", "single")  # count passes and not steps


def choices(annotation: Any, metadata: tuple[Any, ...] = ()) -> list[Any]:
    """Return the values that an annotation lists: a Literal, a bool or named choices, also as a part of a union."""
    if annotation is bool:
        return [True, False]
    named = [each for data in metadata for each in (data, getattr(data, "func", None)) if isinstance(each, Choices)]
    if named:
        return list(named[0].names())
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) is Annotated:
        return choices(get_args(annotation)[0], get_args(annotation)[1:])
    if get_origin(annotation) in (Union, UnionType):
        return [value for part in get_args(annotation) for value in choices(part)]
    return []


def cases(method: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the settings of each case of a method: its defaults, then one other choice at a time."""
    fields = METHODS[method].settings.model_fields
    listed = {name: choices(field.annotation, tuple(field.metadata)) for name, field in fields.items()}
    yield "defaults", {}
    for name, values in listed.items():
        for value in values:
            if value == fields[name].default and name not in TOGETHER:
                continue
            with_it = {**TOGETHER.get(name, {}), **TOGETHER.get(str(value), {})}
            known = {key: other for key, other in with_it.items() if other in listed.get(key, []) or key == "hostile"}
            yield f"{name} = {toml_value(value)}", {**known, name: value}


def attacks_and_defences() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a case for each kind of attack, and for each kind of defence with each of its choices."""
    attack = {"kind": "plfa", "sites": 1}
    for kind in choices(AttackSettings.model_fields["kind"].annotation):
        yield f"attack {kind}", {"attack": {**attack, "kind": kind}}
    listed = {name: choices(field.annotation) for name, field in DefenceSettings.model_fields.items()}
    for kind in listed.pop("kind"):
        defence = {"kind": kind, "reconstruct": True} if kind.startswith("inversion") else {"kind": kind}
        defence |= {"steps": 2, "dummies": 4} if kind.startswith("inversion") else {}
        yield f"defence {kind}", {"attack": attack, "defence": defence}
        for name, values in listed.items():
            for value in values:
                yield f"defence {kind}, {name} = {value}", {"attack": attack, "defence": {**defence, name: value}}


def experiment(method: str, settings: dict[str, Any]) -> str:
    """Return the experiment file of a case."""
    given: dict[str, Any] = {"name": method, "rounds": 2, "batch": 8}
    given |= {"lr": 0.05} if method in LONGER else {"steps": 2, "lr": 0.05}
    given |= {"threshold": 0.1, "server_epochs": 1} if method in ("fedmt", "fedmt+", "semifl") else {}
    given |= {"lr": 0.005} if settings.get("optimiser") == "adam" else {}
    given |= settings
    section = "\n".join(f"{key} = {toml_value(value)}" for key, value in given.items())
    family = str(METHODS[method].recipe).split(".")[2]
    data = PEOPLE if "attack" in settings else FEDERATIONS[family]
    model = 'name = "sphere-mlp"\nhidden = [8]' if method == "spherefed" else 'name = "mlp"\nhidden = [8]'
    if "bn" in settings and family != "tags":  # tagged digits are rows and not images
        model = 'name = "resnet8"\nwidths = [2, 2, 2]\nnorm = "batch"'
    return f"{data}\n[model]\n{model}\n[method]\n{section}\n[run]\nworkers = 0\n"


def write_data(folder: Path) -> None:
    """Write the files that federations name: digits with tags, and a table of people."""
    digits = load_digits()
    tags = np.stack([np.isin(digits.target, (0, 6, 8, 9)), digits.target % 2 == 0, digits.target > 4], 1)
    names = np.array(["round", "even", "large"])
    np.savez(folder / "tags.npz", X=digits.data, Y=tags.astype(np.int8), label_names=names)
    rng = np.random.default_rng(0)
    x, region = rng.normal(size=(240, 4)).astype(np.float32), rng.choice(["north", "south"], 240)
    y = (x[:, 0] + 0.5 * rng.normal(size=240) > 0).astype(int)
    np.savez(folder / "people.npz", x=x, y=y, label_names=np.array(["low", "high"]), region=region)


def play(folder: Path, name: str, text: str) -> tuple[Literal["played", "refused", "wrong"], str]:
    """Run a case as `fedaccord run` does, reload its model and predict; return how it went and what was wrong."""
    path, out = folder / f"{name}.toml", folder / name
    path.write_text(text, encoding="utf-8")
    done = command("run", path, "--out", out, cwd=folder)
    last = "\n".join(done.err.strip().splitlines()[-3:])
    if done.code == 2 and done.err.startswith("error: "):
        return "refused", last
    if done.code:
        return "wrong", last
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    reason = f"dropped {summary['dropped']}" if summary["dropped"] else _unsound_predictions(out)
    return ("wrong", reason) if reason else ("played", "")


def _unsound_predictions(out: Path) -> str:
    model = TrainedModel.load(out)
    x = torch.rand(SAMPLES, *model.description.model.input_shape, generator=torch.Generator().manual_seed(0))
    for site in (*([None] if model.description.common else []), *model.sites):
        chances = model.predict(x, site)
        if chances.shape != (SAMPLES, len(model.labels)) or not bool(torch.isfinite(chances).all()):
            return f"predictions of {site or 'the global model'} are not finite"
    return ""
