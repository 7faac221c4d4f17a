"""Predictions for many samples, without gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedaccord.models.network import Network

CHUNK = 1024  # samples per batch: large enough to be fast, small enough for the activations of a ResNet


def predict_logits(model: nn.Module, x: Tensor) -> Tensor:
    """Return the logits of all samples, computed in evaluation mode; the model's mode does not change."""
    return _predict(model, model, x)


def predict_features(network: Network, x: Tensor) -> Tensor:
    """Return the encoder's features of all samples, like `predict_logits`."""
    return _predict(network, network.features, x)


@torch.no_grad()
def _predict(model: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    was_training = model.training
    model.eval()
    try:
        parts = [forward(chunk) for chunk in x.split(CHUNK)] if len(x) else []
    finally:
        model.train(was_training)
    return torch.cat(parts) if parts else torch.zeros(0, 0)
