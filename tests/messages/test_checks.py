"""A reply is what was asked for, or its first problem is named."""

import math

import pytest
import torch

from fedaccord.messages.checks import MOST_SAMPLES, NOT_FINITE, Problem, TensorSpec, find_problem
from fedaccord.messages.message import Message

EXPECTED = {"w": TensorSpec((2, 3), torch.float32), "count": TensorSpec((), torch.int64)}


def reply(**changes):
    tensors = {"w": torch.ones(2, 3), "count": torch.tensor(4)} | changes.pop("tensors", {})
    numbers = {"round": 5, "samples": 10} | changes
    return Message({n: t for n, t in tensors.items() if t is not None}, numbers, {"run": "r"})


def problem(message, most=10):
    return find_problem(message, EXPECTED, "r", 5, most)


def test_a_reply_as_asked_has_no_problem():
    assert problem(reply()) is None
    assert find_problem(Message(numbers={"round": 5, "samples": 1}, words={"run": "r"}), {}, "r", 5) is None


def test_a_spec_is_read_off_a_tensor():
    assert TensorSpec.of(torch.zeros(2, 3)) == EXPECTED["w"]
    assert TensorSpec.of(torch.tensor(4)) == EXPECTED["count"]


def test_run_and_round_are_the_ones_of_the_question():
    assert find_problem(reply(), EXPECTED, "s", 5) == Problem("run", "belongs to run 'r', not to 's'")
    assert find_problem(reply(), EXPECTED, "r", 6) == Problem("round", "answers round 5, not round 6")
    assert find_problem(Message(), EXPECTED, "r", 5) == Problem("run", "belongs to run 'None', not to 'r'")


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (0, "the weight is 0, not above zero"),
        (-3, "the weight is -3, not above zero"),
        (math.nan, "the weight is nan, not a finite number"),
        (math.inf, "the weight is inf, not a finite number"),
        (-math.inf, "the weight is -inf, not a finite number"),
        (11, "the weight is 11, but the site joined with 10 samples"),
        (10.5, "the weight is 10.5, but the site joined with 10 samples"),
        (True, "the weight is True, not a finite number"),
        ("10", "the weight is '10', not a finite number"),
        (10**400, f"the weight is {10**400}, not a finite number"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_weight_is_a_number_of_samples_the_site_may_have(samples, reason):
    assert problem(reply(samples=samples)) == Problem("samples", reason)


def test_a_missing_weight_is_named():
    message = reply()
    del message.numbers["samples"]
    assert problem(message) == Problem("samples", "the weight is missing")


def test_where_the_site_gave_no_number_there_is_still_a_largest_one():
    assert find_problem(reply(samples=MOST_SAMPLES), EXPECTED, "r", 5) is None
    assert find_problem(reply(samples=MOST_SAMPLES + 1), EXPECTED, "r", 5).tensor == "samples"


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        ({"w": None}, Problem("w", "the tensor is missing")),
        ({"v": torch.ones(1)}, Problem("v", "the tensor was not asked for")),
        ({"w": torch.ones(1, 3)}, Problem("w", "the shape is (1, 3), not (2, 3)")),  # would broadcast
        ({"w": torch.tensor(1.0)}, Problem("w", "the shape is (), not (2, 3)")),  # so would this
        ({"w": torch.ones(3, 2)}, Problem("w", "the shape is (3, 2), not (2, 3)")),  # same number of values
        ({"count": torch.ones(1).long()}, Problem("count", "the shape is (1,), not ()")),
        ({"w": torch.ones(2, 3).double()}, Problem("w", "the dtype is torch.float64, not torch.float32")),
        ({"count": torch.tensor(4.0)}, Problem("count", "the dtype is torch.float32, not torch.int64")),
        (
            {"w": torch.tensor([[1, 1, math.nan]] * 2)},
            Problem("w", NOT_FINITE),
        ),
        (
            {"w": torch.tensor([[1, -math.inf, 1]] * 2)},
            Problem("w", NOT_FINITE),
        ),
    ],
)
def test_a_tensor_is_neither_broadcast_nor_cast_nor_renamed(tensors, found):
    assert problem(reply(tensors=tensors)) == found
