"""The report says what the run's files say, whatever they hold and whatever they lack."""

import json
import random
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from fedaccord.errors import RunFolderError
from fedaccord.runs.report import write_report

LABELS = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
GROUPS = {"tops": LABELS[:5], "shoes": ["sandal", "sneaker", "ankle boot"], "shirts": ["shirt"], "bags": ["bag"]}
VIEWS = {
    "Cleveland": ({"kind": "exact"}, LABELS),
    "Budapest": ({"kind": "coarse", "correspondence": GROUPS}, LABELS),
    "Zürich University Hospital": ({"kind": "candidates"}, LABELS),
    "Long Beach": ({"kind": "exact", "known": LABELS[:3]}, LABELS[:3]),
    "Basel": ({"kind": "unlabelled"}, []),
}
ALONE = {"Cleveland": 0.812, "Budapest": 0.9004, "Zürich University Hospital": 0.701, "Long Beach": 0.95, "Basel": 0.5}
FINAL = {"Cleveland": 0.845, "Budapest": 0.931, "Zürich University Hospital": 0.803, "Long Beach": 0.938, "Basel": 0.5}
DROP = {"site": "Long Beach", "task": "train", "tensor": "head.weight", "reason": "holds values that are not finite"}


def federation(views=VIEWS, **changes):
    sites = {
        name: {"view": view, "train": 1200 - 150 * i, "test": 300 - 30 * i, "informs": list(informs)}
        for i, (name, (view, informs)) in enumerate(views.items())
    }
    histogram = {name: {x: 17 * (i + 1) + 5 * j for j, x in enumerate(LABELS)} for i, name in enumerate(views)}
    return {"labels": LABELS, "sites": sites, "groups": [LABELS], "histogram": histogram, "notes": [],
            "test": "the published test part of fashion-mnist"} | changes  # fmt: skip


def summary(**changes):
    each = {site: {"accuracy": value, "nll": 1 - value, "samples": 100} for site, value in FINAL.items()}
    each["Budapest"]["accuracy_classes"] = 0.777
    return {
        "name": "five-hospitals", "method": "pfedpll", "engine": "embedded", "seed": 3, "rounds": 30, "seconds": 93.14,
        "final": {"global": {"accuracy": 0.8731, "nll": 0.4123},
                  "sites": {"mean": {"accuracy": 0.8034, "nll": 0.2}, "std": {"accuracy": 0.1812}, "each": each}},
        "best": {"round": 24, "metric": "sites.mean.accuracy", "global": {"accuracy": 0.87},
                 "sites": {"mean": {"accuracy": 0.8312}, "each": {"Cleveland": {"accuracy": 0.8555}}}},
        "dropped": 3, "model_sha256": "ab" * 32, "workers": 2, "settings": {"lr": 0.01, "model": {"hidden": [128]}},
    } | changes  # fmt: skip


def lines(rounds=30):
    draw = random.Random(0)
    for r in range(1, rounds + 1):
        seconds = {"prepare": 0.01, "brief": 0.05, "train": 2.0, "admit": 0.1, "combine": 0.2, "refine": 0.04, "evaluate": 0.6}
        dropped = [DROP] if r in (4, 11, 19) else []
        yield {"round": r, "scope": "round", "asked": list(VIEWS), "replied": 5 - len(dropped), "dropped": dropped, "seconds": seconds}
        grown = 1 - 0.9 * 0.88**r
        accuracy = {site: FINAL[site] * grown + draw.uniform(-0.02, 0.02) for site in VIEWS}
        yield {"round": r, "scope": "global", "metrics": {"accuracy": 0.88 * grown, "nll": 2.3 * 0.93**r}}
        yield {"round": r, "scope": "sites",
               "mean": {"accuracy": sum(accuracy.values()) / 5, "nll": 2.2 * 0.94**r}, "std": {"accuracy": 0.1},
               "min": {"accuracy": min(accuracy.values()), "nll": 2.0 * 0.93**r},
               "max": {"accuracy": max(accuracy.values()), "nll": 2.4 * 0.95**r}}  # fmt: skip
        for i, (site, value) in enumerate(accuracy.items()):
            metrics = {"accuracy": value, "nll": (2 + 0.1 * i) * 0.94**r, "samples": 100}
            yield {"round": r, "scope": "site", "site": site, "metrics": metrics}
    recall = {name: 0.95 - 0.05 * i for i, name in enumerate(LABELS)} | {"bag": None}
    yield {"round": 30, "scope": "classes", "recall": recall, "samples": {x: 90 + i for i, x in enumerate(LABELS)} | {"bag": 0}}
    counts = [[800 if a == b else draw.randrange(60) for b in range(10)] for a in range(10)]
    yield {"round": 30, "scope": "confusion", "site": None, "names": LABELS, "counts": counts}
    own = [[90, 5, 3, 2], [4, 70, 0, 1], [9, 0, 30, 1], [0, 0, 0, 0]]
    yield {"round": 30, "scope": "confusion", "site": "Budapest", "names": list(GROUPS), "counts": own}


def make_run(folder, metrics=None, summary_=None, federation_=None):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "summary.json").write_text(json.dumps(summary_ or summary()), encoding="utf-8")
    (folder / "federation.json").write_text(json.dumps(federation_ or federation()), encoding="utf-8")
    rows = lines() if metrics is None else metrics
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder
