"""Predictions for many samples, without gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHUNK = 1024  # samples per batch: large enough to be fast, small enough for the activations of a ResNet


@torch.no_grad()
def predict_logits(model: nn.Module, x: Tensor) -> Tensor:
    """Return the logits of all samples, computed in evaluation mode; the model's mode does not change."""
    was_training = model.training
    model.eval()
    try:
        parts = [model(chunk) for chunk in x.split(CHUNK)] if len(x) else []
    finally:
        model.train(was_training)
    return torch.cat(parts) if parts else torch.zeros(0, 0)
