"""ResNet-18 and ResNet-34 (He et al. 2016) for small images: a 3x3 stem and no first max-pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedaccord.models.catalogue import image_shape
from fedaccord.models.network import Network

_WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is carried, projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        # Batch normalisation adds an offset of its own, so the convolutions have no bias.
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, smaller by the stride."""
        return torch.relu(self.residual(x) + self.shortcut(x))


def resnet18(input_shape: Sequence[int], classes: int) -> Network:
    """Build ResNet-18, with 512 features."""
    return _resnet("resnet18", (2, 2, 2, 2), input_shape, classes)


def resnet34(input_shape: Sequence[int], classes: int) -> Network:
    """Build ResNet-34, with 512 features."""
    return _resnet("resnet34", (3, 4, 6, 3), input_shape, classes)


def _resnet(model: str, depths: tuple[int, ...], input_shape: Sequence[int], classes: int) -> Network:
    channels, _, _ = image_shape(model, input_shape)
    inputs = _WIDTHS[0]
    layers: list[nn.Module] = [
        nn.Conv2d(channels, inputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU(),
    ]
    for stage, (outputs, depth) in enumerate(zip(_WIDTHS, depths, strict=True)):
        for block in range(depth):
            # Each stage but the first halves the image in its first block.
            layers.append(BasicBlock(inputs, outputs, stride=2 if stage > 0 and block == 0 else 1))
            inputs = outputs
    encoder = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return Network(encoder, nn.Linear(inputs, classes))
