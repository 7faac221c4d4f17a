"""The data sets of the table: who has which samples, how each site sees the labels, and the size of the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from papers.accord.made_data import FLAMBY, FLAMBY_RAW, GOEMOTIONS, HEART

Kind = Literal["candidates", "exact", "few labels", "coarse", "tags", "mixture", "flamby"]
GROUPS: tuple[dict[str, list[str]], ...] = (
    {"low": ["0", "1", "2"], "mid": ["3", "4", "5"], "high": ["6", "7"], "top": ["8", "9"]},
    {"round": ["0", "6", "8", "9"], "straight": ["1", "4", "7"], "open": ["2", "3", "5"]},
)
POSITIVE = [
    *("joy", "amusement", "approval", "excitement", "gratitude", "love"),
    *("optimism", "relief", "pride", "admiration", "desire", "caring"),
]
SURPRISE = ["surprise", "realization", "confusion", "curiosity"]
SADNESS = ["sadness", "disappointment", "embarrassment", "grief", "remorse"]
FEAR, ANGER = ["fear", "nervousness"], ["anger", "annoyance", "disapproval"]
# The published mappings of GoEmotions to Ekman's emotions and to sentiments; neutral texts are a group of their own.
EKMAN = {
    "joyful": POSITIVE,
    "surprised": SURPRISE,
    "sad": SADNESS,
    "disgusted": ["disgust"],
    "afraid": FEAR,
    "angry": ANGER,
    "calm": ["neutral"],
}
SENTIMENT = {
    "positive": POSITIVE,
    "negative": [*SADNESS, "disgust", *FEAR, *ANGER],
    "ambiguous": SURPRISE,
    "calm": ["neutral"],
}
MLP, MLP64, LENET = {"name": "mlp", "hidden": [128]}, {"name": "mlp", "hidden": [64]}, {"name": "lenet5"}


@dataclass(frozen=True)
class DataSet:
    """A federation of the table."""

    kind: Kind
    data: Mapping[str, Any]  # the section [data]; empty if the sites have files
    model: Mapping[str, Any] = field(default_factory=lambda: MLP)
    server: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 50
    work: Mapping[str, Any] = field(default_factory=lambda: {"epochs": 2})  # of a site in a round
    batch: int = 32
    lr: float = 0.03  # the middle of the rates that are tried
    table: bool = True  # rows of numbers, on which trees are trained as well
    sites: Mapping[str, str] = field(default_factory=dict)  # site -> its file
    standardise: str = "none"  # of the sites' files
    classes: tuple[str, ...] = ()

    @property
    def metric(self) -> str:
        """The figure that heads the view: mean average precision of tags, otherwise accuracy."""
        return "map" if self.kind == "tags" else "accuracy"


def _skewed(sites: int = 8, alpha: float = 0.3) -> dict[str, Any]:
    return {"kind": "dirichlet", "sites": sites, "alpha": alpha, "min_size": 10}


def _of(dataset: str, partition: Mapping[str, Any], view: str = "exact", **more: Any) -> dict[str, Any]:
    return {"dataset": dataset, "partition": partition, "view": {"kind": view}, **more}


def _mixture(dataset: str, samples: int) -> dict[str, Any]:
    """Return eight sites: two exact, two that know three classes, two with coarse names, two with candidate sets."""
    exact: list[dict[str, Any]] = [{"kind": "exact"}] * 2
    some = [{"kind": "exact", "known": list(known)} for known in ("012", "567")]
    coarse = [{"kind": "coarse", "correspondence": groups} for groups in GROUPS]
    candidates: list[dict[str, Any]] = [{"kind": "candidates", "generate": "uniform", "q": 0.3}] * 2
    views = {f"site-{i}": view for i, view in enumerate([*exact, *some, *coarse, *candidates])}
    return {"dataset": dataset, "partition": _skewed(), "samples": samples, "views": views, "test": 0.3}


def _emotions() -> dict[str, Any]:
    """Return ten sites: four with Ekman's emotions, four with sentiments, two with the fine ones."""
    coarse = [{"kind": "coarse", "correspondence": groups} for groups in (EKMAN, SENTIMENT)]
    views = {f"site-{i}": coarse[i % 2] if i < 8 else {"kind": "exact"} for i in range(10)}
    partition = {"kind": "iid", "sites": 10}
    return {"dataset": GOEMOTIONS, "partition": partition, "samples": 4000, "views": views, "standardise": "none"}


INPUTS = {"unlabelled": 100}  # for the scores of pFedPLL; no site has them, whatever the method
LABELLED = {"labelled": {"per_class": 3}}
ADAM = {"epochs": 2, "optimiser": "adam"}  # of all contestants on tags, because FedHarmony uses it
PEOPLE = {"kind": "natural", "by": "subject"}
THREE_LABELS = {"kind": "label-sets", "sites": 10, "labels": 3, "samples": 300}
DOMAINS = {"view": {"kind": "coarse", "correspondence": "coarse"}}
GENERATED = {"view": {"kind": "candidates", "generate": "uniform", "q": 0.4}}
SETS: dict[str, DataSet] = {
    "Lost": DataSet("candidates", _of("partial_label/lost.npz", _skewed(4, 0.5), "candidates"), server=INPUTS),
    "MSRCv2": DataSet("candidates", _of("partial_label/msrcv2.npz", _skewed(4, 0.5), "candidates"), server=INPUTS),
    "FG-NET": DataSet("candidates", _of("partial_label/fgnet.npz", _skewed(4, 0.5), "candidates"), server=INPUTS),
    "Fashion-MNIST, sets": DataSet(
        "candidates",
        _of("fashion_mnist", _skewed(4, 0.5), samples=3000, test_samples=500) | GENERATED,
        server=INPUTS,
        table=False,
        rounds=30,
    ),
    "digits": DataSet("exact", _of("digits", _skewed(), test=0.3), model=MLP64, table=False),
    "Fashion-MNIST": DataSet(
        "exact", _of("fashion_mnist", _skewed(), samples=4000, test_samples=500), table=False, rounds=30
    ),
    "CIFAR-10": DataSet("exact", _of("cifar10", _skewed(), samples=3000), model=LENET, table=False, rounds=20),
    "heart, 4 hospitals": DataSet("exact", _of(HEART, {"kind": "natural", "by": "hospital"}, test=0.3)),
    "UCI-HAR, 30 people": DataSet(
        "exact", _of("uci_har", PEOPLE, samples=3000, test=0.3), model={"name": "cnn1d"}, table=False, rounds=30
    ),
    "COMPAS": DataSet("exact", _of("compas", _skewed(), samples=3000)),
    "Fashion-MNIST, 3 labels": DataSet(
        "few labels", _of("fashion_mnist", THREE_LABELS, test=0.3, test_samples=500), table=False, rounds=30
    ),
    "MNIST, 3 labels": DataSet(
        "few labels", _of("mnist", THREE_LABELS, test=0.3, test_samples=500), table=False, rounds=30
    ),
    "CLINC150": DataSet(
        "coarse",
        _of("clinc150", {"kind": "iid", "sites": 8}, samples=4000, test=0.2, test_samples=1000) | DOMAINS,
        server=LABELLED,
        table=False,
        lr=1.0,
        rounds=20,
    ),
    "CIFAR-100": DataSet(
        "coarse",
        _of("cifar100", {"kind": "iid", "sites": 8}, samples=4000, test=0.2, test_samples=500) | DOMAINS,
        server=LABELLED,
        model=LENET,
        table=False,
        lr=0.1,
        rounds=20,
    ),
    "GoEmotions": DataSet("coarse", _emotions(), server=LABELLED, table=False, lr=1.0, rounds=20),
    "scene": DataSet("tags", _of("scene", _skewed(), "tags"), lr=0.003, work=ADAM),
    "emotions": DataSet("tags", _of("emotions", _skewed(4), "tags"), lr=0.003, work=ADAM),
    "corel5k": DataSet("tags", _of("corel5k", _skewed(), "tags"), batch=64, rounds=20, lr=0.003, work=ADAM),
    "ExtraSensory, 37 people": DataSet(
        "tags",
        _of("extrasensory", {"kind": "natural", "by": "user"}, "tags", samples=9000),
        rounds=20,
        batch=64,
        lr=0.003,
        work=ADAM,
    ),
    "digits, all views": DataSet("mixture", _mixture("digits", 1400), model=MLP64, table=False),
    "Fashion-MNIST, all views": DataSet("mixture", _mixture("fashion_mnist", 3000), table=False, rounds=30),
}
# FLamby's protocol: a linear model, 15 rounds of 100 steps of 4, the same split with every seed.
HEART_DISEASE, SCALED_TOGETHER = "Fed-Heart-Disease", "Fed-Heart-Disease, scaled together"
FLAMBY_SET = DataSet(
    "flamby",
    {},
    model={"name": "linear"},
    rounds=15,
    work={"steps": 100},
    batch=4,
    lr=0.01,
    sites=FLAMBY,
    classes=("healthy", "disease"),
)
# FLamby scales the features of pooled training by the moments of all hospitals, and of federated training by each
# hospital's own. The second set has the former for everybody, which is the library's default.
FLAMBY_SETS: dict[str, DataSet] = {
    HEART_DISEASE: FLAMBY_SET,
    SCALED_TOGETHER: replace(FLAMBY_SET, sites=FLAMBY_RAW, standardise="federation"),
}
EVERY: dict[str, DataSet] = {**SETS, **FLAMBY_SETS}
# Processor time of an `accord` cell of the default size, measured once; it is only used to estimate the time of a run.
SECONDS: dict[str, float] = {
    "Lost": 0.9,
    "MSRCv2": 1.3,
    "FG-NET": 1.0,
    "Fashion-MNIST, sets": 2.4,
    "digits": 1.7,
    "Fashion-MNIST": 2.2,
    "CIFAR-10": 11.6,
    "heart, 4 hospitals": 0.4,
    "UCI-HAR, 30 people": 6.2,
    "COMPAS": 1.4,
    "Fashion-MNIST, 3 labels": 2.0,
    "MNIST, 3 labels": 1.6,
    "CLINC150": 3.9,
    "CIFAR-100": 19.3,
    "GoEmotions": 2.3,
    "scene": 1.4,
    "emotions": 0.5,
    "corel5k": 2.4,
    "ExtraSensory, 37 people": 1.7,
    "digits, all views": 0.9,
    "Fashion-MNIST, all views": 2.1,
    HEART_DISEASE: 0.5,
    SCALED_TOGETHER: 0.5,
}
