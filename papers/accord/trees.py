"""Gradient-boosted trees at each site: what a hospital would train alone on a table. Nothing of them leaves a site."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from fedaccord.config import check_experiment
from fedaccord.data.site_data import SiteData
from fedaccord.data.sites import FederationData
from fedaccord.data.validation_rows import keep_apart
from fedaccord.evaluation.metrics import Metrics, finite, summarise_sites
from fedaccord.experiment import load_federation
from fedaccord.labels.judging import site_metrics
from papers.harness.cells import Result

LEAST = 1e-4  # probability; a class that a site has not seen is not impossible
Matrix = NDArray[np.float32]


def run_cell(table: dict[str, Any], device: str, base: Path) -> Result:
    """Train and test trees at every site of an experiment; `method.lr` is their learning rate."""
    start = time.perf_counter()
    experiment = check_experiment(table)
    figures = _figures(load_federation(experiment, base), experiment.settings.lr_at(1), experiment.seed)
    return {"final": figures, "seconds": round(time.perf_counter() - start, 2)}


def run_apart(table: dict[str, Any], device: str, base: Path) -> Result:
    """Train trees at every site and judge them on rows kept apart from training; test rows are dropped."""
    start = time.perf_counter()
    experiment = check_experiment(table)
    apart = keep_apart(load_federation(experiment, base), experiment.seed)
    return {
        "figures": _figures(apart.data, experiment.settings.lr_at(1), experiment.seed),
        "server_judges": False,
        "not_judged": apart.not_judged,
        "dropped": 0,
        "seconds": round(time.perf_counter() - start, 2),
    }


def _figures(data: FederationData, rate: float, seed: int) -> dict[str, Any]:
    each = {name: _judge(site, rate, seed) for name, site in data.sites.items() if len(site.test)}
    return {"global": {}, "sites": {**summarise_sites(each), "each": each}}


def _judge(site: SiteData, rate: float, seed: int) -> Metrics:
    view, train, test = site.view, site.train, site.test
    x, unseen = (part.x.flatten(1).numpy() for part in (train, test))
    classes = view.true_classes(train.target, train.truth)
    if classes is None:
        logits = _tag_logits(x, train.target.numpy(), unseen, rate, seed)
    else:
        p = class_chances(x, classes.numpy(), unseen, len(view.space), rate, seed)
        logits = torch.from_numpy(np.log(p)).float()
    return finite(site_metrics(view, logits, test.target, test.truth)[0])


def class_chances(
    x: Matrix, y: NDArray[Any], unseen: Matrix, classes: int, rate: float, seed: int
) -> NDArray[np.float64]:
    """Return the probabilities (n, classes) of unseen rows; rows of unknown class (-1) do not train."""
    x, y = x[y >= 0], y[y >= 0]
    p = np.full((len(unseen), classes), LEAST)
    found = np.unique(y)
    if len(found) == 1:
        p[:, found[0]] = 1.0
    elif len(found):
        p[:, found] += _trees(len(y), rate, seed).fit(x, y).predict_proba(unseen)
    return p / p.sum(1, keepdims=True)


def _tag_logits(x: Matrix, tags: NDArray[Any], unseen: Matrix, rate: float, seed: int) -> Tensor:
    """Return the logits of each tag, from an ensemble of its own."""
    columns = [class_chances(x, tags[:, tag].astype(np.int64), unseen, 2, rate, seed) for tag in range(tags.shape[1])]
    present = np.stack([p[:, 1] for p in columns], axis=1)
    return torch.from_numpy(np.log(present) - np.log1p(-present)).float()


def _trees(rows: int, rate: float, seed: int) -> HistGradientBoostingClassifier:
    # The default of 20 rows in a leaf leaves a small site without any split.
    leaf = min(20, max(2, rows // 10))
    return HistGradientBoostingClassifier(learning_rate=rate, min_samples_leaf=leaf, random_state=seed)
