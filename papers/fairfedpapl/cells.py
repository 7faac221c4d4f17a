"""The runs of the FairFedPAPL table: data sets, attacks and defences. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedaccord.adversary.settings import hostile_sites
from papers.harness.cells import Cell, Row, Size, in_order

SITES, HOSTILE = 10, 3
BATCH = 32
MORE_SITES = (50, 100)
NONE, ALONE, PUBLISHED = "none", "honest sites only", "inversion"
ATTACKS = ("plfa", "pafa", "mixup")
# Attack -> strength, chosen so that the attack has an effect on the mean; None: no strength.
GENERAL = {"label-flip": None, "sign-flip": 4.0, "scaling": 100.0, "alie": 40.0, "ipm": 5.0}
PARTITIONS: dict[str, dict[str, Any]] = {"iid": {"kind": "iid"}, "skewed": {"kind": "dirichlet", "alpha": 1.0}}
RULES: dict[str, dict[str, Any]] = {
    rule: {"aggregation": rule, "hostile": HOSTILE} for rule in ("krum", "multi-krum", "trimmed-mean", "median")
}
SCORES: dict[str, dict[str, Any]] = {
    PUBLISHED: {"defence": {"kind": "inversion", "reconstruct": True}},
    "inversion+": {"defence": {"kind": "inversion+", "reconstruct": True}},
    "group-update": {"defence": {"kind": "group-update"}},
    "group-update+": {"defence": {"kind": "group-update+"}},
    "probe": {"defence": {"kind": "probe"}},
}
DEFENCES: dict[str, dict[str, Any]] = {NONE: {}, **RULES, **SCORES}


@dataclass(frozen=True)
class Scenario:
    """A data set, the attacked group and label, and the groups that the figures are measured by."""

    dataset: str
    column: str
    group: str
    label: str
    lr: float
    rounds: int = 50  # as published, if known
    skewed_rounds: int = 50
    ending: str = ""  # suffix of the figures: "" for true groups, or "_candidate"
    samples: int | None = None


SCENARIOS = {
    "COMPAS, African-American": Scenario("compas", "race", "African-American", "High", 0.01),
    "COMPAS, Asian": Scenario("compas", "race", "Asian", "High", 0.01, ending="_candidate"),
    "Student, Asian": Scenario("student", "Ethnicity", "Asian", "F", 0.02, rounds=20, skewed_rounds=60),
    "Adult, women": Scenario("adult", "sex", "Female", "<=50K", 0.01, samples=8000),
}
READINGS = {
    "COMPAS, Low or Higher": Scenario("compas_binary", "race", "African-American", "Higher", 0.01),
    "Student, with GPA": Scenario("student_gpa", "Ethnicity", "Asian", "F", 0.02, rounds=20, skewed_rounds=60),
}
READ_BY = (NONE, PUBLISHED, "group-update", "group-update+")  # the defences run on these readings
STUDY = "COMPAS, African-American"  # the scenario of the studies


@dataclass(frozen=True)
class Scale:
    """The size of a run of the table."""

    seeds: int
    study_seeds: int
    rounds: int | None  # None: as published
    first_seed: int = 0

    def rounds_of(self, scenario: Scenario, partition: str) -> int:
        """Return the number of rounds of a scenario."""
        return self.rounds or (scenario.rounds if partition == "iid" else scenario.skewed_rounds)


SCALES: dict[Size, Scale] = {"quick": Scale(2, 1, 6), "default": Scale(10, 10, 24), "full": Scale(20, 10, None)}


def cells(size: Size) -> list[Cell]:
    """Return all runs of the table: the comparison first, then the studies."""
    scale = SCALES[size]
    return in_order(_comparison(scale, places(size)), () if size == "quick" else _studies(scale))


def places(size: Size) -> list[tuple[str, str]]:
    """Return the pairs of scenario and partition in the comparison."""
    if size == "quick":
        return [("COMPAS, African-American", "iid"), ("Student, Asian", "iid")]
    return [(name, partition) for name in SCENARIOS for partition in PARTITIONS]


def _comparison(scale: Scale, at: Sequence[tuple[str, str]]) -> Iterator[Cell]:
    for seed in range(scale.first_seed, scale.first_seed + scale.seeds):
        for name, partition in at:
            yield _cell(scale, name, partition, NONE, ALONE, _honest(seed), seed)
            for attack in (NONE, *ATTACKS):
                for defence, settings in DEFENCES.items():
                    yield _cell(scale, name, partition, attack, defence, settings, seed)


def _studies(scale: Scale) -> Iterator[Cell]:
    for seed in range(scale.first_seed, scale.first_seed + scale.study_seeds):
        for share in (0.1, 0.2):
            for defence in (NONE, *SCORES):
                yield _cell(scale, STUDY, "iid", "plfa", defence, DEFENCES[defence], seed, share=share)
        for sites in MORE_SITES:
            for attack in (NONE, "plfa"):
                for defence in (NONE, *SCORES):
                    yield _cell(scale, STUDY, "iid", attack, defence, DEFENCES[defence], seed, sites=sites)
        for variant, settings in VARIANTS.items():
            for attack in (NONE, "plfa"):
                yield _cell(scale, STUDY, "iid", attack, variant, {"defence": settings}, seed)
        for attack in GENERAL:
            for defence, settings in DEFENCES.items():
                yield _cell(scale, STUDY, "iid", attack, defence, settings, seed)
        for name, partition in product(READINGS, PARTITIONS):
            for attack in (NONE, "plfa"):
                for defence in READ_BY:
                    yield _cell(scale, name, partition, attack, defence, DEFENCES[defence], seed)


def _inverting(kind: str, **settings: Any) -> dict[str, Any]:
    return {"kind": kind, "reconstruct": True, **settings}


VARIANTS: dict[str, dict[str, Any]] = {
    **{
        f"{kind}, {n} dummies": _inverting(kind, dummies=n) for kind in (PUBLISHED, "inversion+") for n in (10, 30, 300)
    },
    "inversion, corrected sign": _inverting(PUBLISHED, sign="corrected"),
    "inversion+, printed sign": _inverting("inversion+", sign="printed"),
    "inversion, without confidence": _inverting(PUBLISHED, confidence=False),
    "inversion+, with confidence": _inverting("inversion+", confidence=True),
    "group-update, with confidence": {"kind": "group-update", "confidence": True},
    "group-update, two-means": {"kind": "group-update", "rule": "two-means"},
    "group-update, gate 2": {"kind": "group-update", "gate": 2.0},
    "group-update, gate 4": {"kind": "group-update", "gate": 4.0},
    "group-update+, with confidence": {"kind": "group-update+", "confidence": True},
    "group-update+, minority": {"kind": "group-update+", "rule": "minority"},
    "group-update+, gate 2": {"kind": "group-update+", "gate": 2.0},
    "group-update+, gate 4": {"kind": "group-update+", "gate": 4.0},
    "probe, gate 4": {"kind": "probe", "gate": 4.0},
}


def _honest(seed: int) -> dict[str, Any]:
    """Return the settings of a run without the sites that would be hostile."""
    names = [f"site-{n}" for n in range(SITES)]
    return {"sites": [name for name in names if name not in hostile_sites(HOSTILE, names, seed)]}


def batch_of(sites: int) -> int:
    """Return the batch size with which each site takes as many steps per round as with ten sites."""
    return max(1, BATCH * SITES // sites)


def row_of(name: str, partition: str, attack: str, defence: str, share: float = 0.3, sites: int = SITES) -> Row:
    """Return the row of a run."""
    return (name, partition, f"{sites} sites", f"{share:.0%} hostile", attack, defence)


def _cell(
    scale: Scale,
    name: str,
    partition: str,
    attack: str,
    defence: str,
    settings: Mapping[str, Any],
    seed: int,
    share: float = 0.3,
    sites: int = SITES,
) -> Cell:
    of = (SCENARIOS | READINGS)[name]
    rounds = scale.rounds_of(of, partition)
    method = {"name": "fed-clpl", "rounds": rounds, "lr": of.lr, **settings}
    if sites != SITES:
        method["batch"] = batch_of(sites)
    if attack != NONE:
        strength = GENERAL.get(attack)
        method["attack"] = {"kind": attack, "sites": share, **({} if strength is None else {"strength": strength})}
    drawn = {} if of.samples is None else {"samples": of.samples, "test_samples": 4000}
    experiment = {
        "name": "fairfedpapl",
        "data": {
            "dataset": of.dataset,
            "partition": {**PARTITIONS[partition], "sites": sites},
            "view": {"kind": "candidates", "generate": "uniform", "q": 0.3, "drop_full": False},
            "sensitive": {"column": of.column, "q": 0.1},
            "standardise": "federation",
            **drawn,
        },
        "fairness": {"group": of.group, "label": of.label},
        "model": {"name": "mlp", "hidden": [64]},
        "method": method,
        "run": {"evaluate_every": rounds, "batched": "whole"},
    }
    return Cell(row_of(name, partition, attack, defence, share, sites), seed, experiment)
