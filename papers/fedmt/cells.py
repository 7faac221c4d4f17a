"""The runs of the FedMT table: mixed-type labels on texts (CLINC150) and on images (CIFAR-100).

Settings for texts were chosen on CLINC150's validation part, on a seed that the table does not use
(`benchmarks/mixed_types.py`); those for images in the same way, on held-out training images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from papers.harness.cells import Cell, Row, Size, in_order

TEXTS, IMAGES = "CLINC150", "CIFAR-100"
KNOWN, FOUND, PLUS = "FedMT (T)", "FedMT (E)", "fedmt+"
BASELINES = ("SemiFL", "FedRep", "FedTrans", "Single")
AVERAGED, LEARNED, LEARNED_AVERAGED = "FedMT (E) + Average", "Learnable", "Learnable + Average"
ESTIMATORS = (FOUND, AVERAGED, LEARNED, LEARNED_AVERAGED)
LIKELIHOOD, POOLED_LIKELIHOOD, POSTERIOR = "likelihood only (T)", "likelihood only (em-pool)", "FedMT (T), posterior"
CONTROLS = (LIKELIHOOD, POOLED_LIKELIHOOD, POSTERIOR)
PAPER = "FedMT (E), the paper's threshold and weight, no warm-up"
PAPERS_OWN = {"threshold": 0.95, "lambda2": 0.0625, "warmup": 0, "project_on": "confident"}
LABELS = (3, 5, 10, 25)
IMAGE_LABELS = (5, 10, 25)
GAMMAS = (0.9, 0.99)
SITES = (10, 20, 40, 80)
SIZES = (188, 375, 750)  # texts at each site
THRESHOLDS = (0.2, 0.3, 0.5, 0.7, 0.9, 0.95)
WEIGHTS = (1.0, 0.25, 0.0625, 0.015625)
USUAL_THRESHOLD, USUAL_WEIGHT = 0.3, 1.0
MANY = 10  # from this number of labels per class the server takes a third of the epochs
AT = 5  # labels per class in studies of other settings
OVER_ROUNDS = (FOUND, AVERAGED, LEARNED, PLUS)  # methods whose matrix error is plotted over the rounds
STUDIED = (KNOWN, FOUND, "SemiFL", PLUS)

METHODS: dict[str, dict[str, Any]] = {
    "Single": {"name": "single"},
    "FedTrans": {"name": "fedtrans"},
    "FedRep": {"name": "fedrep"},
    "SemiFL": {"name": "semifl"},
    KNOWN: {"name": "fedmt", "correspondence": "known"},
    FOUND: {"name": "fedmt"},
    PLUS: {"name": "fedmt+"},
    POSTERIOR: {"name": "fedmt", "correspondence": "known", "pseudo_label": "posterior"},
    LIKELIHOOD: {"name": "fedmt", "correspondence": "known", "project_on": "all", "lambda2": 0.0},
    POOLED_LIKELIHOOD: {"name": "fedmt", "estimator": "em-pool", "project_on": "all", "lambda2": 0.0},
    AVERAGED: {"name": "fedmt", "correspondence": "estimated-average"},
    LEARNED: {"name": "fedmt", "correspondence": "learnable"},
    LEARNED_AVERAGED: {"name": "fedmt", "correspondence": "learnable-average"},
}
MAIN = ("Single", "FedTrans", "FedRep", "SemiFL", KNOWN, FOUND, PLUS, *CONTROLS)
# Without a hidden layer there is no encoder to share, so FedTrans and FedRep would equal Single.
WITHOUT_LAYER = ("Single", "SemiFL", KNOWN, FOUND, PLUS)
SKEWED = ("SemiFL", KNOWN, *ESTIMATORS, PLUS, LIKELIHOOD, POOLED_LIKELIHOOD)
IMAGE_METHODS = ("Single", "FedTrans", "FedRep", "SemiFL", KNOWN, FOUND, PLUS)


@dataclass(frozen=True)
class Settings:
    """The settings on a data set: common ones, those of methods with pseudo-labels, and those of single methods."""

    common: Mapping[str, Any]
    pseudo: Mapping[str, Any]
    coarse: Mapping[str, Any]  # methods with pseudo-labels and coarse labels
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    thinned: bool = True

    def of(self, name: str, rounds: int, labels: int, **changed: Any) -> dict[str, Any]:
        """Return the section `[method]` of a method."""
        method = METHODS[name]
        given = {**self.common, "rounds": rounds}
        if method["name"] in ("semifl", "fedmt", "fedmt+"):
            given |= self.pseudo
        if method["name"].startswith("fedmt"):
            given |= self.coarse
        given |= self.own.get(name, {})
        if labels >= MANY and self.thinned:  # an epoch of the server then has more steps
            given["server_epochs"] = -(-given["server_epochs"] // 3)
        return given | method | changed


# docs/mixed-types.md lists the settings tried for each method, with their accuracy on the validation part.
ON_TEXTS = Settings(
    common={
        "lr": 1.0,
        "server_lr": 0.5,
        "clip": 1.0,
        "weight_decay": 1e-5,
        "batch": 128,
        "server_batch": 32,
        "augment": "words",
    },
    pseudo={"lr": 3.0, "threshold": USUAL_THRESHOLD, "warmup": 450, "epochs": 2, "server_epochs": 3},
    coarse={"lambda2": USUAL_WEIGHT, "project_on": "all"},
    own={
        "Single": {"warmup": 450, "server_epochs": 12, "server_lr": 0.2, "weight_decay": 5e-4},
        "FedTrans": {"epochs": 5, "server_epochs": 60, "server_lr": 0.2, "weight_decay": 5e-4},
        "FedRep": {"epochs": 1, "server_epochs": 12, "server_weight": 0.5, "weight_decay": 5e-4},
        PLUS: {"threshold": 0.5, "weight_decay": 1e-4},
        POSTERIOR: {"threshold": 0.5, "weight_decay": 1e-4},
    },
)
LIKE_LIKELIHOOD = {"threshold": 0.2, "lambda2": 0.0625, "epochs": 4}
ON_TEXTS_LINEAR = Settings(
    common={
        "lr": 40.0,
        "server_lr": 5.0,
        "clip": 0.0,
        "weight_decay": 0.0,
        "batch": 128,
        "server_batch": 32,
        "augment": "words",
    },
    pseudo={"threshold": 0.5, "warmup": 450, "epochs": 2, "server_epochs": 3},
    coarse={"lambda2": USUAL_WEIGHT, "project_on": "all"},
    own={
        "Single": {"warmup": 450, "server_epochs": 12},
        KNOWN: LIKE_LIKELIHOOD,
        FOUND: LIKE_LIKELIHOOD,
        PLUS: {"project_on": "confident"},
    },
)
ON_IMAGES = Settings(
    common={
        "lr": 0.1,
        "server_lr": 0.05,
        "clip": 0.0,
        "weight_decay": 5e-4,
        "batch": 32,
        "server_batch": 32,
        "participation": 3,
        "epochs": 2,
        "server_epochs": 9,
    },
    pseudo={"threshold": 0.5, "warmup": 0},
    coarse={"lambda2": 0.0625, "project_on": "all"},
    own={
        "FedTrans": {"server_epochs": 225, "server_lr": 0.02},
        "FedRep": {"server_weight": 0.5},
        "SemiFL": {"lr": 0.05, "epochs": 1},
    },
)
PUBLISHED_SETTINGS = Settings(  # of the paper: ResNet-18, 200 rounds, five local epochs
    common={"lr": 0.03, "weight_decay": 5e-4, "batch": 64, "server_batch": 64, "epochs": 5},
    pseudo={"threshold": 0.95, "server_epochs": 5},
    coarse={"lambda2": 0.0625},
    own={
        "Single": {"server_epochs": 5},
        "FedTrans": {"server_epochs": 100, "server_lr": 0.01},
        "FedRep": {"server_epochs": 5},
        PLUS: {"warmup": 300, "threshold": 0.5, "lambda2": 1.0},
    },
    thinned=False,
)


IMAGE_MODEL = {"name": "resnet8", "widths": [16, 32, 64], "norm": "batch"}


@dataclass(frozen=True)
class Scale:
    """The size of a run of the table."""

    rounds: int
    seeds: int
    few: int  # seeds of the studies of sites, thresholds and weights
    labels: tuple[int, ...]
    studies: bool
    image_rounds: int
    image_labels: Mapping[int, int]  # labels per class -> seeds
    image_samples: int  # over all sites
    image_methods: tuple[str, ...] = IMAGE_METHODS
    image_model: Mapping[str, Any] = field(default_factory=lambda: IMAGE_MODEL)
    on_images: Settings = ON_IMAGES
    image_test: int | None = None


SCALES: dict[Size, Scale] = {
    "quick": Scale(5, 1, 1, (3, 5), False, 2, {25: 1}, 1000, ("Single", KNOWN, FOUND), image_test=1000),
    "default": Scale(5, 5, 2, LABELS, True, 25, {25: 3, 10: 1, 5: 1}, 8000),
    "full": Scale(
        5,
        10,
        10,
        LABELS,
        True,
        200,
        {5: 3, 10: 3, 25: 3},
        10000,
        image_model={"name": "resnet18"},
        on_images=PUBLISHED_SETTINGS,
    ),
}


def cells(size: Size) -> list[Cell]:
    """Return all runs of the table, the texts first."""
    scale = SCALES[size]
    studies = (_skewed(scale), _studies(scale)) if scale.studies else ()
    return in_order(
        _main(scale), *studies, _without_layer(scale), _images(scale, most=True), _images(scale, most=False)
    )


def text_row(
    name: str,
    labels: int = AT,
    gamma: float = 0.0,
    sites: int = 10,
    size: int = 750,
    threshold: float | None = None,
    weight: float | None = None,
    linear: bool = False,
) -> Row:
    """Return the row of a run on texts; default values are not in it, so that studies share such rows."""
    changed = [f"threshold {threshold}"] if threshold not in (None, USUAL_THRESHOLD) else []
    changed += [f"lambda2 {weight}"] if weight not in (None, USUAL_WEIGHT) else []
    changed += ["linear"] if linear else []
    return (TEXTS, f"{labels} labels", f"gamma {gamma}", f"{sites} sites of {size}", *changed, name)


def image_row(name: str, labels: int) -> Row:
    """Return the row of a run on images."""
    return (IMAGES, f"{labels} labels", name)


def _main(scale: Scale) -> Iterator[Cell]:
    for seed in range(scale.seeds):
        for labels in scale.labels:
            for name in MAIN:
                yield text_cell(scale, name, seed, labels=labels)


def _without_layer(scale: Scale) -> Iterator[Cell]:
    """Yield the runs of a linear model, which with few labels learns these texts better than the MLP."""
    for seed in range(scale.seeds):
        for labels in scale.labels:
            for name in WITHOUT_LAYER:
                yield text_cell(scale, name, seed, labels=labels, linear=True)


def _skewed(scale: Scale) -> Iterator[Cell]:
    """Yield the runs of the matrix estimators, with an even and with the gamma split."""
    for seed in range(scale.seeds):
        for name in ESTIMATORS:
            yield text_cell(scale, name, seed)
        for gamma in GAMMAS:
            for name in SKEWED:
                yield text_cell(scale, name, seed, gamma=gamma)


def _studies(scale: Scale) -> Iterator[Cell]:
    for seed in range(scale.seeds):
        for size in SIZES:
            for name in (FOUND, PLUS):
                yield text_cell(scale, name, seed, size=size)
    for seed in range(scale.few):
        for sites in SITES:
            for name in STUDIED:
                yield text_cell(scale, name, seed, sites=sites, size=7500 // sites)
        for threshold in THRESHOLDS:
            for name in ("SemiFL", FOUND):
                yield text_cell(scale, name, seed, threshold=threshold)
        for weight in WEIGHTS:
            for name in (KNOWN, FOUND):
                yield text_cell(scale, name, seed, weight=weight)
        yield text_cell(scale, FOUND, seed, row=PAPER, given=PAPERS_OWN)


def text_cell(
    scale: Scale,
    name: str,
    seed: int,
    labels: int = AT,
    gamma: float = 0.0,
    sites: int = 10,
    size: int = 750,
    threshold: float | None = None,
    weight: float | None = None,
    linear: bool = False,
    row: str = "",
    given: Mapping[str, Any] | None = None,
) -> Cell:
    """Return one run on texts; `given` holds further settings of a row with its own name."""
    changed: dict[str, Any] = dict(given or {})
    changed |= {} if threshold is None else {"threshold": threshold}
    changed |= {} if weight is None else {"lambda2": weight}
    partition: dict[str, Any] = {"kind": "iid", "sites": sites, "stratified": True}
    data: dict[str, Any] = {"samples": sites * size}
    if gamma:
        partition, data = {"kind": "gamma", "sites": sites, "gamma": gamma, "samples": size}, {}
    named = text_row(row or name, labels, gamma, sites, size, threshold, weight, linear)
    drawn = named in {text_row(each) for each in OVER_ROUNDS}
    experiment = {
        "name": "fedmt",
        "data": {"dataset": "clinc150", "test": 0.1, "partition": partition, "view": _coarse(), **data},
        "server": {"labelled": {"per_class": labels, "reserve": max(LABELS)}},
        "model": {"name": "linear"} if linear else {"name": "mlp", "hidden": [128]},
        "method": (ON_TEXTS_LINEAR if linear else ON_TEXTS).of(name, scale.rounds, labels, **changed),
        "run": {"evaluate_every": 1 if drawn else scale.rounds},
    }
    return Cell(named, seed, experiment)


def _images(scale: Scale, most: bool) -> Iterator[Cell]:
    """Yield the runs on images with the largest number of labels, or those with all other numbers."""
    for labels, seeds in scale.image_labels.items():
        if (labels == max(scale.image_labels)) == most:
            for seed in range(seeds):
                for name in scale.image_methods:
                    yield image_cell(scale, name, seed, labels)


def image_cell(scale: Scale, name: str, seed: int, labels: int) -> Cell:
    """Return one run on images."""
    limit = {} if scale.image_test is None else {"test_samples": scale.image_test}
    experiment = {
        "name": "fedmt",
        "data": {
            "dataset": "cifar100",
            "samples": scale.image_samples,
            "test": 0.05,
            "view": _coarse(),
            "partition": {"kind": "iid", "sites": 10, "stratified": True},
            **limit,
        },
        "server": {"labelled": {"per_class": labels, "reserve": max(IMAGE_LABELS)}},
        "model": dict(scale.image_model),
        "method": scale.on_images.of(name, scale.image_rounds, labels),
        "run": {"evaluate_every": scale.image_rounds},
    }
    return Cell(image_row(name, labels), seed, experiment)


def _coarse() -> dict[str, str]:
    return {"kind": "coarse", "correspondence": "coarse"}
