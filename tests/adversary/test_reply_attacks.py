"""Attacks on what is sent: numbers by hand, and only hostile sites' trained values change."""

from statistics import NormalDist

import pytest
import torch

from fedaccord.adversary.attacks import alie_deviation, forged, why_harmless

MATRIX = torch.tensor([[1.0, 2.0, 7.0], [3.0, 4.0, 7.0], [5.0, 0.0, 7.0], [9.0, 9.0, 8.0]])
PREVIOUS = torch.tensor([1.0, 1.0, 7.0])
HOSTILE = torch.tensor([False, False, False, True])
TRAINED = torch.tensor([True, True, False])


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("sign-flip", [-7.0, -7.0]),  # 1 - (9 - 1)
        ("scaling", [81.0, 81.0]),  # 1 + 10 (9 - 1)
        ("ipm", [0.0, 0.5]),  # 1 - 0.5 mean(0, 2, 4) and 1 - 0.5 mean(1, 3, -1)
    ],
)
def test_numbers_by_hand(kind, sent):
    found = forged(kind, MATRIX, PREVIOUS, HOSTILE, TRAINED)
    assert found[3].tolist() == pytest.approx([*sent, 8.0])
    assert torch.equal(found[:3], MATRIX[:3])


def test_strength_is_as_told():
    assert forged("sign-flip", MATRIX, PREVIOUS, HOSTILE, TRAINED, 2.0)[3].tolist() == [-15.0, -15.0, 8.0]


def test_alie_stays_so_many_deviations_below_the_honest_mean():
    found = forged("alie", MATRIX, PREVIOUS, HOSTILE, TRAINED, strength=1.5)
    spread = (8 / 3) ** 0.5
    assert found[3].tolist() == pytest.approx([3 - 1.5 * spread, 2 - 1.5 * spread, 8.0], abs=1e-5)
    z = alie_deviation(4, 1)  # of 3 honest sites one is below it
    assert z == pytest.approx(NormalDist().inv_cdf(1 / 3))
    assert forged("alie", MATRIX, PREVIOUS, HOSTILE, TRAINED)[3, 0] == pytest.approx(3 - z * spread, abs=1e-5)


def test_the_deviation_of_the_paper():
    assert alie_deviation(50, 24) == pytest.approx(1.43, abs=0.01)  # 24 of 26 honest sites below it
    assert alie_deviation(10, 3) == pytest.approx(0.18, abs=0.005)


def test_without_honest_sites_there_is_nothing_to_imitate():
    everyone = torch.ones(4, dtype=torch.bool)
    for kind in ("ipm", "alie"):
        assert torch.allclose(forged(kind, MATRIX, PREVIOUS, everyone, TRAINED), MATRIX)
    assert torch.equal(forged("scaling", MATRIX, PREVIOUS, ~everyone, TRAINED), MATRIX)
    assert torch.equal(forged("plfa", MATRIX, PREVIOUS, HOSTILE, TRAINED), MATRIX)


@pytest.mark.parametrize(
    ("kind", "sites", "hostile", "told"),
    [
        ("ipm", 4, 4, "needs 1 of them in a round"),
        ("alie", 4, 3, "needs 2 of them in a round"),
        ("alie", 10, 1, "set strength"),
    ],
)
def test_an_attack_that_does_no_harm_says_why(kind, sites, hostile, told):
    assert told in why_harmless(kind, sites, hostile)
    assert why_harmless("sign-flip", sites, hostile) is None


def test_an_attack_that_does_harm_does_not():
    assert why_harmless("alie", 10, 3) is None
    assert why_harmless("alie", 10, 1, strength=1.0) is None
    assert why_harmless("ipm", 4, 3) is None
    assert why_harmless("ipm", 4, 0) is None
