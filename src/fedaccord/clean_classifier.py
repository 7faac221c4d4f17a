"""A classifier trained on true labels, whose predictions define instance-dependent candidate sets in a study.

Its predictions are cached on disk, because every run of a comparison needs them.
The environment variable FEDACCORD_CACHE names the folder; the default is `fedaccord` in the user's cache folder. It may
be deleted at any time. A damaged file is computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaccord import __version__
from fedaccord.data.dataset import Array, Dataset
from fedaccord.data.scaling import apply_moments, fit_moments
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.durable import atomic_write
from fedaccord.errors import DataError, MessageError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact
from fedaccord.messages.message import Message, from_bytes, to_bytes
from fedaccord.models.catalogue import build
from fedaccord.models.network import predict_logits
from fedaccord.models.registry import MODELS
from fedaccord.seeds import derive
from fedaccord.training.local import seeded, train_locally
from fedaccord.training.objectives import ViewLikelihood
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD
from fedaccord.training.work import LocalWork

SETTINGS = TrainingSettings(epochs=5, batch=64, lr=0.05, momentum=0.9)


def clean_predictions(dataset: Dataset, seed: int) -> Array:
    """Return P(class | sample), (n, classes), by a network trained on the true labels of all samples."""
    if dataset.train.y is None:
        raise DataError(f"instance-dependent candidate sets need true classes, but '{dataset.name}' has none")
    large = dataset.images and min(dataset.shape[1:]) >= 16
    model = "lenet5" if large else "mlp"
    depends_on = {
        "seed": seed,
        "model": [model, MODELS[model].settings],
        "settings": SETTINGS.model_dump(mode="json"),
        "images": dataset.images,
        "labels": len(dataset.labels),
        "samples": digest(dataset.train.x, dataset.train.y),
        "versions": [__version__, torch.__version__],
    }
    return cached("clean-predictions", depends_on, lambda: _train(dataset, model, seed))


def _train(dataset: Dataset, model: str, seed: int) -> Array:
    rows = dataset.train
    assert rows.y is not None
    x = torch.from_numpy(apply_moments(rows.x, None if dataset.images else fit_moments(rows.x)))
    space = LabelSpace(dataset.labels)
    samples = Samples(x, torch.from_numpy(rows.y))
    network = build(model, {}, dataset.shape, len(space), derive(seed, "clean"))
    parameters: list[Tensor] = list(network.parameters())
    work = LocalWork(
        site=SiteData("(clean)", Exact(space), samples, samples),
        view=Exact(space),
        model=network,
        brief=Message(),
        memory=Message(),
        round=1,
        lr=SETTINGS.lr_at(1),
        parameters=parameters,
        received=[p.detach().clone() for p in parameters],
        seed=seed,
    )
    with seeded(derive(seed, "clean", "training")):
        train_locally(work, ViewLikelihood(), SGD(SETTINGS.momentum), SETTINGS)
    return predict_logits(network, x).softmax(-1).numpy()


def cache_folder() -> Path:
    """Return the folder of cached results."""
    named = os.environ.get("FEDACCORD_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedaccord"


def cached(kind: str, depends_on: Mapping[str, Any], make: Callable[[], Array]) -> Array:
    """Return the cached array for these dependencies, or compute and cache it.

    `depends_on` must be JSON and name everything that the result depends on.
    """
    key = json.dumps(depends_on, sort_keys=True)
    path = cache_folder() / kind / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"
    found = _read(path, key)
    if found is not None:
        return found
    made = make()
    message = Message({"array": torch.from_numpy(made)}, words={"key": key, "sha256": digest(made)})
    with contextlib.suppress(OSError):  # a full or read-only disk must not fail the run
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, uuid.uuid4().hex) as file:  # other runs may write it at the same time
            file.write(to_bytes(message))
    return made


def digest(*arrays: Array) -> str:
    """Return the SHA-256 digest of arrays with their shapes and types."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str} {array.shape} ".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def _read(path: Path, key: str) -> Array | None:
    try:
        message = from_bytes(path.read_bytes())
        array: Array = message.tensors["array"].numpy()
    except (OSError, MessageError, KeyError):
        return None
    # safetensors does not detect a flipped bit in a value.
    intact = message.words.get("key") == key and message.words.get("sha256") == digest(array)
    return array if intact else None
