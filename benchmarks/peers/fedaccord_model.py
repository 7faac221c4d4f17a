"""The workloads' models for FedAccord, as a user's own model: `model.name = "fedaccord_model:mlp"`.

The module also disables the shuffling of FedAccord's batches in every process that builds the model, so that all
contestants do the same work.
"""

from __future__ import annotations

import torch
from work import make_model

from fedaccord.models import catalogue
from fedaccord.models.network import Network


def mlp(input_shape: tuple[int, ...], classes: int) -> Network:
    return _with_weights(catalogue.mlp(input_shape, classes, [64]), "mlp")


def lenet(input_shape: tuple[int, ...], classes: int) -> Network:
    return _with_weights(catalogue.lenet5(input_shape, classes), "lenet")


def _with_weights(network: Network, kind: str) -> Network:
    torch.randperm = lambda samples, generator=None: torch.arange(samples)
    with torch.no_grad():
        for own, value in zip(network.parameters(), make_model(kind).parameters(), strict=True):
            own.copy_(value)
    return network
