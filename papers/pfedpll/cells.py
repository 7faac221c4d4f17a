"""The runs of the pFedPLL table: candidate labels on real sets and on images, ablations and studies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from papers.harness.cells import Cell, Row, Size, in_order

REAL = {"Lost": "partial_label/lost.npz", "MSRCv2": "partial_label/msrcv2.npz", "FG-NET": "partial_label/fgnet.npz"}
IMAGES = {"MNIST": "mnist", "Fashion-MNIST": "fashion_mnist"}
OURS, PLUS, ALONE = "pFedPLL", "pfedpll+", "local, pFedPLL's loss"
PLUS_LOCAL = "pfedpll+, local head"
LEVERAGED = "Fed_LW, cross-entropy"  # the paper does not state the form; the other stays at chance on images for long
BASELINES: dict[str, dict[str, Any]] = {
    "Fed_LW": {"name": "fed-lw"},
    LEVERAGED: {"name": "fed-lw", "form": "cross-entropy"},
    "Fed_CC": {"name": "fed-cc"},
    "Fed_RC": {"name": "fed-rc"},
    "Fed_CAVL": {"name": "fed-cavl"},
    "Fed_ABS_GCE": {"name": "fed-abs-gce"},
    "FedAvg, uniform targets": {"name": "fed-uniform"},
    "our approximation of LAAR": {"name": "fedpll-la-approx"},
}
CONTROLS: dict[str, dict[str, Any]] = {
    "CC, local head": {"name": "fed-cc", "head": "local"},
    "RC, local head": {"name": "fed-rc", "head": "local"},
    "local, CC": {"name": "local", "loss": "cc"},
    ALONE: {"name": "local", "loss": "pfedpll"},
    # The regularisation of pfedpll+, applied to other methods.
    "Fed_CC, noise and dropout": {"name": "fed-cc", "noise": 0.5, "dropout": 0.3},
    PLUS_LOCAL: {"name": "pfedpll+", "head": "local"},
    "local, noise and dropout": {"name": "local", "loss": "pfedpll", "noise": 0.5, "dropout": 0.3},
}
METHODS: dict[str, dict[str, Any]] = {OURS: {"name": "pfedpll"}, PLUS: {"name": "pfedpll+"}, **BASELINES, **CONTROLS}
# Noise in other methods, and pfedpll+ with a local head, are compared on the real sets only.
ON_IMAGES = tuple(name for name in METHODS if not name.endswith("noise and dropout") and name != PLUS_LOCAL)
COMPONENTS: dict[str, dict[str, Any]] = {
    "pFedPLL_LCI_LCP": {"name": "pfedpll", "score": "samples"},
    "pFedPLL_LCP_KL": {"name": "pfedpll", "isolation": False},
    "pFedPLL_LCP": {"name": "pfedpll", "isolation": False, "score": "samples"},
    "pFedPLL_w/o": {"name": "pfedpll", "isolation": False, "score": "samples", "calibration": False},
}
TERMS: dict[str, dict[str, Any]] = {
    "L_" + " + L_".join(terms): {"name": "pfedpll", "terms": terms}
    for terms in (["s"], ["pc"], ["nc"], ["s", "pc"], ["s", "nc"], ["pc", "nc"])
}
FEW = (OURS, PLUS, "Fed_CC", ALONE)  # methods in parts where a full comparison would take too long
ON_LARGER = (*FEW, PLUS_LOCAL)  # a local head can only help a skewed site with enough samples
RHOS = (0.2, 0.3, 0.4)
MANY = (20, 40, 80)


@dataclass(frozen=True)
class Scale:
    """The size of a run of the table."""

    rounds: int  # of the real sets
    steps: int
    seeds: int
    image_rounds: int
    image_steps: int
    image_batch: int
    image_samples: int
    image_seeds: int
    image_lr: float
    image_test: float = 0.2


SCALES: dict[Size, Scale] = {
    "quick": Scale(30, 20, 2, 5, 10, 64, 2000, 1, 0.1),
    "default": Scale(100, 40, 5, 20, 20, 64, 8000, 3, 0.1),
    "full": Scale(100, 40, 10, 100, 40, 256, 60000, 5, 0.01),
}
LARGER = replace(SCALES["default"], image_rounds=40, image_steps=40, image_samples=20000, image_lr=0.03)


def cells(size: Size) -> list[Cell]:
    """Return all runs of the table, the real sets first."""
    scale = SCALES[size]
    real = (_real(scale, data, name, seed) for data in REAL for name in METHODS for seed in range(scale.seeds))
    if size == "quick":
        return in_order(real, (_image(scale, "MNIST", name, METHODS[name], 0) for name in FEW))
    return in_order(real, _image_cells(scale), _larger_cells() if size == "default" else (), _study_cells(scale))


def _image_cells(scale: Scale) -> Iterator[Cell]:
    for seed in range(scale.image_seeds):
        for data in IMAGES:
            for name in ON_IMAGES:
                yield _image(scale, data, name, METHODS[name], seed)


def _larger_cells() -> Iterator[Cell]:
    """Yield runs of some methods with more images and more steps, closer to the paper's size."""
    for seed in range(LARGER.image_seeds):
        for data in IMAGES:
            for name in ON_LARGER:
                cell = _image(LARGER, data, name, METHODS[name], seed)
                yield replace(cell, row=larger_row(data, name))


def _study_cells(scale: Scale) -> Iterator[Cell]:
    """Yield the studies on MNIST: ablations, sizes of the candidate sets, numbers of sites."""
    for seed in range(scale.image_seeds):
        for name, method in (COMPONENTS | TERMS).items():
            yield _image(scale, "MNIST", name, method, seed)
        for rho in RHOS:
            for name in (*FEW, LEVERAGED):
                yield _image(scale, "MNIST", name, METHODS[name], seed, rho=rho)
        for sites in MANY:
            for name in FEW:
                yield _image(scale, "MNIST", name, METHODS[name], seed, sites=sites)


def _real(scale: Scale, data: str, name: str, seed: int) -> Cell:
    experiment = {
        "name": "pfedpll",
        "data": {
            "dataset": REAL[data],
            "partition": {"kind": "dirichlet", "sites": 4, "alpha": 0.5},
            "view": {"kind": "candidates"},
            "standardise": "federation",
        },
        "server": {"unlabelled": 100},
        "model": {"name": "mlp", "hidden": [128]},
        "method": {
            "rounds": scale.rounds,
            "steps": scale.steps,
            "batch": 32,
            "lr": 0.01,
            "momentum": 0.9,
            **METHODS[name],
        },
        "run": {"evaluate_every": max(1, scale.rounds // 10), "batched": "always"},
    }
    return Cell((data, name), seed, experiment)


def image_row(data: str, name: str, rho: float = 0.4, sites: int = 4) -> Row:
    """Return the row of a run on images."""
    return (data, f"rho {rho}", f"{sites} sites", name)


def larger_row(data: str, name: str) -> Row:
    """Return the row of a run closer to the paper's size."""
    return (data, "larger", name)


def _image(
    scale: Scale, data: str, name: str, method: Mapping[str, Any], seed: int, rho: float = 0.4, sites: int = 4
) -> Cell:
    # With more than four sites a round is one epoch, which bounds the time of the study.
    steps = {"steps": scale.image_steps} if sites == 4 else {"epochs": 1}
    experiment = {
        "name": "pfedpll",
        "data": {
            "dataset": IMAGES[data],
            "samples": scale.image_samples,
            "test": scale.image_test,
            "test_samples": 500,  # only the sites' models are compared, not the global one
            "partition": {"kind": "dirichlet", "sites": sites, "alpha": 0.5},
            "view": {"kind": "candidates", "generate": "instance", "rho": rho},
        },
        "server": {"unlabelled": 640},
        "model": {"name": "lenet5"},
        "method": {
            "rounds": scale.image_rounds,
            "batch": scale.image_batch,
            "lr": scale.image_lr,
            "momentum": 0.9,
            **steps,
            **method,
        },
        "run": {"evaluate_every": max(1, scale.image_rounds // 5)},
    }
    return Cell(image_row(data, name, rho, sites), seed, experiment)
