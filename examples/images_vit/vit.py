"""Vision transformer (Dosovitskiy et al. 2021) with an encoder and a head, for `model.name = "vit:vit_b16"`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """Map images to the features of the class token."""

    def __init__(self, shape: Sequence[int], width: int, depth: int, heads: int, patch: int) -> None:
        super().__init__()
        channels, height, side = shape
        patches = (height // patch) * (side // patch)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, patches + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, width)."""
        parts = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), parts], 1) + self.places
        return self.blocks(tokens)[:, 0]


class ViT(nn.Module):
    """An encoder and a linear head."""

    def __init__(
        self, shape: Sequence[int], classes: int, width: int = 768, depth: int = 12, heads: int = 12, patch: int = 16
    ) -> None:
        super().__init__()
        self.encoder = Encoder(shape, width, depth, heads, patch)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        return self.head(self.encoder(x))


def vit_b16(input_shape: Sequence[int], classes: int, weights: str = "") -> ViT:
    """Build ViT-B/16; `weights` is a safetensors file with the state dict of a pretrained encoder."""
    model = ViT(input_shape, classes)
    if weights:
        from safetensors.torch import load_file

        model.encoder.load_state_dict(load_file(weights))
    return model
