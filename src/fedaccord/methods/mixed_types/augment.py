"""Batched augmentation: weak for supervised losses, strong for pseudo-labels; and Mixup (docs/methods.md 6.2).

Images (B, channels, height, width) in -1..1 get RandAugment (Cubuk et al. 2020) with separate operations for each
image, all affine ones in a single resampling, and a blank patch. Other features get noise and zeroed values; hashed
texts lose words. Seeds come from torch's CPU generator, unless another one is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaccord.methods.mixed_types.settings import SupercentreSettings

_LARGEST = {"rotate": 0.52, "shear x": 0.3, "shear y": 0.3, "shift x": 0.6, "shift y": 0.6}  # radians, shares of a half


def weakly_augmented(x: Tensor, settings: SupercentreSettings, random: torch.Generator | None = None) -> Tensor:
    """Return images shifted by up to an eighth, colour images also mirrored; other samples are unchanged."""
    return shifted(x, _generator(x, random)) if _kind(x, settings) == "images" else x


def strongly_augmented(x: Tensor, settings: SupercentreSettings, random: torch.Generator | None = None) -> Tensor:
    """Return strongly augmented samples, whose labels should not change."""
    kind = _kind(x, settings)
    if kind == "none":
        return x
    generator = _generator(x, random)
    if kind == "images":
        return rand_augment(x, generator)
    if kind == "words":
        return without_words(x, settings.word_dropout, generator)
    return noisy(x, settings.noise, settings.gaps, generator)


def _kind(x: Tensor, settings: SupercentreSettings) -> str:
    return ("images" if x.ndim == 4 else "features") if settings.augment == "auto" else settings.augment


def mix_loss(logits: Tensor, first: Tensor, second: Tensor, share: float) -> Tensor:
    """Return the loss of Mixup: `share CE(f, first) + (1 - share) CE(f, second)`."""
    log_p = torch.log_softmax(logits, -1)
    return share * F.nll_loss(log_p, first) + (1 - share) * F.nll_loss(log_p, second)


def draw_share(a: float, random: torch.Generator) -> float:
    """Draw from Beta(a, a) by two gamma draws; torch.distributions would cost half a second of start-up."""
    two = torch._standard_gamma(torch.full((2,), a), generator=random)
    return float(two[0] / two.sum().clamp(min=1e-12))


@dataclass
class Partners:
    """An endless stream of partners: all rows of the pool in random order, then again in another order."""

    pool: Tensor
    generator: torch.Generator

    def __post_init__(self) -> None:
        self._left = self.pool[:0]

    def take(self, n: int) -> Tensor:
        """Return the next `n` partners."""
        while len(self._left) < n:
            order = torch.randperm(len(self.pool), generator=self.generator)
            self._left = torch.cat([self._left, self.pool[order.to(self.pool.device)]])
        taken, self._left = self._left[:n], self._left[n:]
        return taken


def noisy(x: Tensor, noise: float, gaps: float, generator: torch.Generator) -> Tensor:
    """Return standardised features with Gaussian noise, some of them set to their mean, zero."""
    perturbed = x + noise * torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    return perturbed * (_rand(x.shape, generator) >= gaps)


def without_words(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return hashed texts with dropped words, rescaled to their norm; a row that would lose all words is unchanged."""
    remaining = x * _dropout_mask(x, share, generator)
    norm = torch.linalg.vector_norm(remaining, dim=-1, keepdim=True)
    remaining *= torch.linalg.vector_norm(x, dim=-1, keepdim=True) / norm.clamp(min=1e-12)
    empty = norm == 0
    return torch.where(empty, x, remaining) if bool(empty.any()) else remaining


def shifted(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return images shifted by whole pixels, up to an eighth of a side; half of the colour images are mirrored."""
    return _resample(x, _shift(x, generator))


def _shift(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the affine maps of `shifted`, (B, 3, 3)."""
    batch, channels, height, width = x.shape
    affine = torch.eye(3, device=x.device).repeat(batch, 1, 1)
    for axis, side in enumerate((width, height)):
        reach = side // 8
        pixels = torch.floor(_rand((batch,), generator) * (2 * reach + 1)) - reach
        affine[:, axis, 2] = 2 * pixels / side
    if channels == 3:  # mirrored digits and letters have another meaning
        affine[:, 0, 0] = torch.where(_rand((batch,), generator) < 0.5, -1.0, 1.0)
    return affine


def rand_augment(x: Tensor, generator: torch.Generator, operations: int = 2) -> Tensor:
    """Return images shifted, mirrored and changed by `operations` random operations, with a blank patch."""
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
    """Return the affine map of each image, (B, 3, 3); the identity for colour operations."""
    size = {
        name: torch.where(chosen == OPERATIONS.index(name), strength * most, 0.0) for name, most in _LARGEST.items()
    }
    turn, zero = size["rotate"], torch.zeros_like(strength)
    rows = [
        [turn.cos(), -turn.sin() + size["shear x"], size["shift x"]],
        [turn.sin() + size["shear y"], turn.cos(), size["shift y"]],
        [zero, zero, zero + 1],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], 1)


def _colour_step(x: Tensor, chosen: Tensor, strength: Tensor) -> Tensor:
    """Apply the colour operations to the images that have one."""
    result = x.clamp(-1, 1)
    for name, change in _COLOURS.items():
        rows = (chosen == OPERATIONS.index(name)).nonzero()[:, 0]
        if len(rows):
            images, by = x.index_select(0, rows), strength.index_select(0, rows)[:, None, None, None]
            result.index_copy_(0, rows, change(images, by).clamp(-1, 1))
    return result


def _contrast(x: Tensor, by: Tensor, dimensions: tuple[int, ...]) -> Tensor:
    mean = x.mean(dimensions, keepdim=True)
    return (x - mean) * (1 + 0.9 * by) + mean


_COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda x, by: x + 0.6 * by,
    "contrast": lambda x, by: _contrast(x, by, (1, 2, 3)),
    "solarize": lambda x, by: torch.where(x > 1 - 1.5 * by.abs(), -x, x),
    "posterize": lambda x, by: torch.round((x + 1) * _levels(by)) / _levels(by) - 1,
    "saturation": lambda x, by: _contrast(x, by, (1,)),
}
OPERATIONS = ("identity", *_LARGEST, *_COLOURS)


def _with_patch(x: Tensor, generator: torch.Generator) -> Tensor:
    """Blank a square at a random place of each image, with at most half of its sides."""
    batch, _, height, width = x.shape
    half = 0.25 * _rand((batch, 1), generator)

    def inside(side: int) -> Tensor:
        centre = _rand((batch, 1), generator)
        positions = (torch.arange(side, device=x.device) + 0.5) / side
        return (positions - centre).abs() < half

    down, across = inside(height), inside(width)
    return x.masked_fill((down[:, :, None] & across[:, None, :])[:, None], 0.0)


def _resample(x: Tensor, affine: Tensor) -> Tensor:
    """Return resampled images; the maps (B, 3, 3) go from positions in the new image to those in the old one."""
    grid = F.affine_grid(affine[:, :2].to(x.dtype), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)  # outside is grey


def _levels(by: Tensor) -> Tensor:
    """Return the number of levels of posterised colours on either side of grey: 2 to 8."""
    return torch.round(8 - 6 * by.abs())


def _dropout_mask(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return a mask with a share of zeros, accurate to 1 / 65,536: each 64-bit draw serves four places, for speed."""
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=generator.device)
    bits.random_(-(2**63), None, generator=generator)
    below = min(round(share * 2**16) - 2**15, 2**15 - 1)
    # Use a float mask: a boolean multiply is four times slower.
    return torch.ge(bits.view(torch.int16)[: x.numel()].view(x.shape), below, out=torch.empty_like(x))


def _rand(shape: tuple[int, ...] | torch.Size, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _generator(x: Tensor, random: torch.Generator | None) -> torch.Generator:
    """Return a generator on the samples' device, seeded by the given one, so that no draws move between devices."""
    return torch.Generator(x.device).manual_seed(int(torch.randint(2**62, (), generator=random)))
