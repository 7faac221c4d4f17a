"""A classifier trained on true labels, whose predictions define instance-dependent candidate sets in a study.

Its predictions are cached on disk, because every run of a comparison needs them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedaccord import __version__
from fedaccord.data.cache import cached, digest
from fedaccord.data.dataset import Array, Dataset
from fedaccord.data.scaling import apply_moments, fit_moments
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.errors import DataError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact
from fedaccord.messages.message import Message
from fedaccord.models.catalogue import build
from fedaccord.models.predicting import predict_logits
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
        lr=SETTINGS.lr,
        parameters=parameters,
        received=[p.detach().clone() for p in parameters],
        seed=seed,
    )
    with seeded(derive(seed, "clean", "training")):
        train_locally(work, ViewLikelihood(), SGD(SETTINGS.momentum), SETTINGS)
    return predict_logits(network, x).softmax(-1).numpy()
