"""Changed copies of samples: what stays, what moves, and that a stream decides it."""

from __future__ import annotations

import pytest
import torch

from fedaccord.methods.mixed_types.augment import (
    OPERATIONS,
    _affine_step,
    _colour_step,
    rand_augment,
    shifted,
    strongly_augmented,
    weakly_augmented,
    without_words,
)
from fedaccord.methods.mixed_types.settings import SupercentreSettings

pytestmark = pytest.mark.usefixtures("one_thread")


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(number=6, channels=3, side=16):
    return 2 * torch.rand(number, channels, side, side, generator=stream(1)) - 1


def test_one_seed_gives_one_result_and_another_another():
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(strongly_augmented(pictures(), SupercentreSettings()))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("channels", [1, 3])
def test_strong_pictures_keep_their_shape_and_range_and_every_one_is_changed_on_its_own(channels):
    x = pictures(1, channels).repeat(32, 1, 1, 1)
    torch.manual_seed(0)
    changed = strongly_augmented(x, SupercentreSettings())
    assert changed.shape == x.shape
    assert changed.abs().max() <= 1
    assert len({tuple(row.flatten().tolist()) for row in changed}) == 32


def test_strong_pictures_are_mirrored_as_often_as_weak_ones():
    x = torch.full((400, 3, 8, 8), -0.5)
    x[..., :4] = 0.5
    torch.manual_seed(0)
    left, right = strongly_augmented(x, SupercentreSettings()).split(4, dim=-1)
    mirrored = (left.mean((1, 2, 3)) < right.mean((1, 2, 3))).float().mean()
    assert 0.3 < mirrored < 0.7


def test_strong_pictures_have_a_blank_patch_of_up_to_half_of_their_sides():
    x = torch.full((60, 3, 7, 7), 0.25)  # too small to be moved, so what is blank is the patch
    blank = rand_augment(x, stream(), operations=0) == 0
    down, across = blank.any(-1).sum(-1)[:, 0], blank.any(-2).sum(-1)[:, 0]
    assert torch.equal(blank[:, 0].sum((1, 2)), down * across)  # one rectangle, in all colours
    assert torch.equal(blank[:, 0], blank[:, 2])
    assert 0 < down.max() <= 4
    assert len({tuple(row[0].flatten().tolist()) for row in blank}) > 20


def test_strong_pictures_go_through_operations():
    x = torch.full((60, 3, 7, 7), 0.25)
    changed = rand_augment(x, stream())
    other = ((changed - 0.25).abs() > 1e-3) & (changed != 0)
    assert 0.3 < other.flatten(1).any(1).float().mean() < 1.0  # others were only moved, or left as they are


def test_weak_pictures_are_moved_by_whole_pixels_and_only_colour_ones_mirrored():
    x = pictures(1, 1, 16).repeat(40, 1, 1, 1)
    moved = shifted(x, stream())
    expected = set()
    for down in range(-2, 3):
        for across in range(-2, 3):
            placed = torch.zeros(20, 20)
            placed[2 + down : 18 + down, 2 + across : 18 + across] = x[0, 0]
            expected.add(tuple(placed[2:18, 2:18].round(decimals=3).flatten().tolist()))
    assert {tuple(row.round(decimals=3).flatten().tolist()) for row in moved + 0.0} <= expected
    assert len({tuple(row.flatten().tolist()) for row in moved}) > 10
    colour = shifted(pictures(1, 3, 7).repeat(20, 1, 1, 1), stream())  # too small to be moved
    assert any(torch.allclose(row, pictures(1, 3, 7)[0].flip(-1), atol=1e-5) for row in colour)


@pytest.mark.parametrize(
    ("name", "strength", "expected"),
    [
        ("identity", 1.0, [[1, 0, 0], [0, 1, 0]]),
        ("shear x", 1.0, [[1, 0.3, 0], [0, 1, 0]]),
        ("shift y", -0.5, [[1, 0, 0], [0, 1, -0.3]]),
        ("rotate", 0.5, [[0.966390, -0.257081, 0], [0.257081, 0.966390, 0]]),
        ("brightness", 1.0, [[1, 0, 0], [0, 1, 0]]),
    ],
)
def test_affine_operations(name, strength, expected):
    step = _affine_step(torch.tensor([OPERATIONS.index(name)]), torch.tensor([strength]))
    assert step[0, :2].tolist() == [pytest.approx(row, abs=1e-6) for row in expected]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("brightness", 0.1, 0.4),
        ("solarize", 0.5, -0.5),
        ("solarize", 0.1, 0.1),
        ("posterize", 0.55, 0.6),
        ("identity", 0.3, 0.3),
        ("rotate", 0.3, 0.3),
    ],
)
def test_colour_operations(name, value, expected):
    x = torch.full((1, 1, 2, 2), value)
    changed = _colour_step(x, torch.tensor([OPERATIONS.index(name)]), torch.tensor([0.5]))
    assert changed.flatten().tolist() == pytest.approx([expected] * 4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("contrast", [[0.01, 0.01], [0.3, 0.3], [0.59, 0.59]]),
        ("saturation", [[0.01, 0.01], [0.3, 0.3], [0.59, 0.59]]),
    ],
)
def test_operations_away_from_a_mean(name, expected):
    """All pixels have the colours 0.1, 0.3 and 0.5, so the picture's mean and every pixel's are 0.3."""
    x = torch.tensor([0.1, 0.3, 0.5])[None, :, None, None].expand(1, 3, 1, 2)
    changed = _colour_step(x, torch.tensor([OPERATIONS.index(name)]), torch.tensor([0.5]))
    assert changed[0, :, 0].tolist() == [pytest.approx(row) for row in expected]


def test_contrast_goes_by_the_picture_and_saturation_by_the_pixel():
    x = torch.tensor([[0.2, 0.6]]).expand(1, 3, 1, 2)  # grey: nothing to saturate
    by = torch.tensor([0.5])
    contrast, saturation = (
        _colour_step(x, torch.tensor([OPERATIONS.index(name)]), by)[0, 0, 0].tolist()
        for name in ("contrast", "saturation")
    )
    assert contrast == pytest.approx([0.11, 0.69])
    assert saturation == pytest.approx([0.2, 0.6])


def test_features_get_noise_and_gaps():
    torch.manual_seed(0)
    x = torch.full((200, 50), 3.0)
    changed = strongly_augmented(x, SupercentreSettings(noise=0.1, gaps=0.2))
    assert (changed == 0).float().mean().item() == pytest.approx(0.2, abs=0.02)
    assert (changed[changed != 0] - 3).std().item() == pytest.approx(0.1, abs=0.01)
    assert weakly_augmented(x, SupercentreSettings()) is x


def test_texts_lose_words_but_never_all_and_keep_their_length():
    x = torch.zeros(300, 40)
    x[:, :10] = 0.5
    x[0, 1:] = 0
    changed = without_words(x, 0.3, stream())
    assert ((changed == 0) & (x != 0))[1:].float().sum().item() == pytest.approx(0.3 * 299 * 10, rel=0.1)
    assert torch.allclose(changed.norm(dim=1), x.norm(dim=1), atol=1e-5)
    assert (changed[x == 0] == 0).all()
    assert torch.equal(without_words(x[:1], 0.999, stream()), x[:1])


@pytest.mark.parametrize(("share", "left"), [(0.0, 1.0), (0.25, 0.75), (0.9, 0.1), (0.9999999, 1.0)])
def test_any_share_of_the_words_can_be_left_out(share, left):
    x = torch.ones(50, 403)  # no multiple of what one draw decides; a row that loses all is left whole
    assert (without_words(x, share, stream())[1:] > 1e-9).float().mean().item() == pytest.approx(left, abs=0.02)


def test_none_changes_nothing():
    x = pictures()
    assert strongly_augmented(x, SupercentreSettings(augment="none")) is x
