"""Changed copies of samples, whole batches at a time: weak ones for supervised losses, strong ones for pseudo-labels.

Images (B, channels, height, width) in -1..1 get a batched RandAugment (Cubuk et al. 2020): every image its own
operations, all affine ones in a single resampling, and a blank patch. Other features get noise and gaps; hashed words
lose some of their words. Randomness comes from a stream on the CPU: torch's own unless another is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

OPERATIONS = (
    "identity",
    "rotate",
    "shear x",
    "shear y",
    "shift x",
    "shift y",
    "brightness",
    "contrast",
    "solarize",
    "posterize",
    "saturation",
)
_LARGEST = {"rotate": 0.52, "shear x": 0.3, "shear y": 0.3, "shift x": 0.6, "shift y": 0.6}  # radians, shares of a half


@dataclass(frozen=True)
class Augmentation:
    """How samples are changed; `auto` takes four-dimensional samples for images and others for features."""

    kind: str = "auto"  # or "images", "features", "words", "none"
    noise: float = 0.1  # features: standard deviation of the noise
    gaps: float = 0.1  # features: share of values set to zero
    words: float = 0.3  # words: share of the words that are left out

    def weak(self, x: Tensor, random: torch.Generator | None = None) -> Tensor:
        """Return images shifted by up to an eighth, colour ones also mirrored; other samples as they are."""
        return shifted(x, _generator(x, random)) if self._kind(x) == "images" else x

    def strong(self, x: Tensor, random: torch.Generator | None = None) -> Tensor:
        """Return strongly changed samples that a model should still give the same label."""
        kind = self._kind(x)
        if kind == "images":
            return rand_augment(x, _generator(x, random))
        if kind == "words":
            return without_words(x, self.words, _generator(x, random))
        return noisy(x, self.noise, self.gaps, _generator(x, random)) if kind == "features" else x

    def _kind(self, x: Tensor) -> str:
        return ("images" if x.ndim == 4 else "features") if self.kind == "auto" else self.kind


def noisy(x: Tensor, noise: float, gaps: float, generator: torch.Generator) -> Tensor:
    """Return standardised features with Gaussian noise, some set to their mean of zero."""
    moved = x + noise * torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    return moved * (_rand(x.shape, generator) >= gaps)


def without_words(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return hashed texts without some of their words, each row as long as it was; a row never loses all its words."""
    kept = x * _kept(x, share, generator)
    length = torch.linalg.vector_norm(kept, dim=-1, keepdim=True)
    whole = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    kept *= whole / length.clamp(min=1e-12)
    lost = length == 0
    return torch.where(lost, x, kept) if bool(lost.any()) else kept


def shifted(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return images moved by whole pixels, up to an eighth of their sides, colour ones mirrored half of the time."""
    return _resample(x, _shift(x, generator))


def _shift(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the affine maps of `shifted`, (B, 3, 3)."""
    batch, channels, height, width = x.shape
    affine = torch.eye(3, device=x.device).repeat(batch, 1, 1)
    for axis, side in enumerate((width, height)):
        reach = side // 8
        pixels = torch.floor(_rand((batch,), generator) * (2 * reach + 1)) - reach
        affine[:, axis, 2] = 2 * pixels / side
    if channels == 3:  # figures and letters mirrored mean something else
        affine[:, 0, 0] = torch.where(_rand((batch,), generator) < 0.5, -1.0, 1.0)
    return affine


def rand_augment(x: Tensor, generator: torch.Generator, operations: int = 2) -> Tensor:
    """Return images shifted, mirrored and changed by so many random operations each, with a blank patch."""
    batch, channels = x.shape[:2]
    affine = _shift(x, generator)
    usable = len(OPERATIONS) if channels == 3 else len(OPERATIONS) - 1  # grey has no saturation
    for _ in range(operations):
        chosen = torch.floor(_rand((batch,), generator) * usable).long()
        strength = 2 * _rand((batch,), generator) - 1
        affine = affine @ _affine_step(chosen, strength)
        x = _colour_step(x, chosen, strength)
    return _with_patch(_resample(x, affine), generator)


def _affine_step(chosen: Tensor, strength: Tensor) -> Tensor:
    """Return each image's affine map, (B, 3, 3): the identity for operations that move nothing."""
    size = {
        name: torch.where(chosen == OPERATIONS.index(name), strength * most, 0.0) for name, most in _LARGEST.items()
    }
    turn, zero = size["rotate"], torch.zeros_like(strength)
    one = zero + 1
    rows = [
        torch.stack([turn.cos(), -turn.sin() + size["shear x"], size["shift x"]], -1),
        torch.stack([turn.sin() + size["shear y"], turn.cos(), size["shift y"]], -1),
        torch.stack([zero, zero, one], -1),
    ]
    return torch.stack(rows, 1)


def _colour_step(x: Tensor, chosen: Tensor, strength: Tensor) -> Tensor:
    """Change the colours of those images whose operation does."""
    result = x.clamp(-1, 1)
    for name, change in _COLOURS.items():
        rows = (chosen == OPERATIONS.index(name)).nonzero()[:, 0]
        if len(rows):
            own, by = x.index_select(0, rows), strength.index_select(0, rows)[:, None, None, None]
            result.index_copy_(0, rows, change(own, by).clamp(-1, 1))
    return result


def _away_from(mean: Tensor, x: Tensor, by: Tensor) -> Tensor:
    return (x - mean) * (1 + 0.9 * by) + mean


_COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda x, by: x + 0.6 * by,
    "contrast": lambda x, by: _away_from(_mean(x, (1, 2, 3)), x, by),
    "solarize": lambda x, by: torch.where(x > 1 - 1.5 * by.abs(), -x, x),
    "posterize": lambda x, by: torch.round((x + 1) * _levels(by)) / _levels(by) - 1,
    "saturation": lambda x, by: _away_from(_mean(x, (1,)), x, by),
}


def _with_patch(x: Tensor, generator: torch.Generator) -> Tensor:
    """Blank a square of up to half of each image's sides, at a place of its own."""
    batch, _, height, width = x.shape
    half = 0.25 * _rand((batch, 1), generator)

    def inside(side: int) -> Tensor:
        centre = _rand((batch, 1), generator)
        places = (torch.arange(side, device=x.device) + 0.5) / side
        return (places - centre).abs() < half

    down, across = inside(height), inside(width)
    return x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0.0)


def _resample(x: Tensor, affine: Tensor) -> Tensor:
    """Return images through maps (B, 3, 3) that say where in the old image a new one's places are."""
    grid = F.affine_grid(affine[:, :2].to(x.dtype), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)  # what comes from outside is grey


def _mean(x: Tensor, dimensions: tuple[int, ...]) -> Tensor:
    return x.mean(dimensions, keepdim=True)


def _levels(by: Tensor) -> Tensor:
    """Return how many steps posterised colours have on either side of grey: 2 to 8."""
    return torch.round(8 - 6 * by.abs())


def _kept(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return ones, and zeros for a share of the places, to 1 in 65,536: four cost one draw, as drawing is the work."""
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=generator.device)
    bits.random_(-(2**63), None, generator=generator)
    below = min(round(share * 2**16) - 2**15, 2**15 - 1)
    # Numbers at once: to compare, and to multiply by what is true or false, would take four times as long.
    return torch.ge(bits.view(torch.int16)[: x.numel()].view(x.shape), below, out=torch.empty_like(x))


def _rand(shape: tuple[int, ...] | torch.Size, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _generator(x: Tensor, random: torch.Generator | None) -> torch.Generator:
    """Return a stream on the samples' own device, begun by the given one: nothing drawn moves between devices."""
    return torch.Generator(x.device).manual_seed(int(torch.randint(2**62, (), generator=random)))
