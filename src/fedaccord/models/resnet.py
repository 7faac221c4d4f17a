"""Residual networks (He et al. 2016) for small images: a 3x3 stem and no first max-pool."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedaccord.models.catalogue import image_shape
from fedaccord.models.network import Network

_WIDTHS = (64, 128, 256, 512)
Norm = Callable[[int], nn.Module]
Stages = Sequence[tuple[int, int]]  # (width, blocks)


def group_norm(channels: int) -> nn.Module:
    """Return a group norm, which is independent of batch and site."""
    return nn.GroupNorm(math.gcd(8, channels), channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut, which is a projection if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        # Normalisation adds a bias, so the convolutions have none.
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output; height and width are divided by the stride."""
        return torch.relu(self.residual(x) + self.shortcut(x))


def resnet8(
    input_shape: Sequence[int], classes: int, widths: Sequence[int] = (32, 64, 128), norm: str = "group"
) -> Network:
    """Build a residual network for a CPU: one block per entry of `widths`, and a stem that halves the image.

    With three widths it has eight layers.
    """
    stages = [(width, 1) for width in widths]
    norms: dict[str, Norm] = {"group": group_norm, "batch": nn.BatchNorm2d}
    return _resnet("resnet8", stages, input_shape, classes, norms[norm], stem=2)


def resnet18(input_shape: Sequence[int], classes: int) -> Network:
    """Build ResNet-18, with 512 features."""
    return _resnet("resnet18", list(zip(_WIDTHS, (2, 2, 2, 2), strict=True)), input_shape, classes)


def resnet34(input_shape: Sequence[int], classes: int) -> Network:
    """Build ResNet-34, with 512 features."""
    return _resnet("resnet34", list(zip(_WIDTHS, (3, 4, 6, 3), strict=True)), input_shape, classes)


def _resnet(
    model: str, stages: Stages, input_shape: Sequence[int], classes: int, norm: Norm = nn.BatchNorm2d, stem: int = 1
) -> Network:
    """Build stages after a stem of the given stride."""
    channels, inputs = image_shape(model, input_shape)[0], stages[0][0]
    layers: list[nn.Module] = [nn.Conv2d(channels, inputs, 3, stem, padding=1, bias=False), norm(inputs), nn.ReLU()]
    for stage, (outputs, depth) in enumerate(stages):
        for block in range(depth):
            # The first block of every stage except the first halves the image.
            layers.append(BasicBlock(inputs, outputs, 2 if stage > 0 and block == 0 else 1, norm))
            inputs = outputs
    encoder = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return Network(encoder, nn.Linear(inputs, classes))
