"""Every method still ends with the figures that were recorded; `record.py` says how they are made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from record import METHODS, PAIRS, UNSEEDED, played, same_bytes

from fedaccord.methods.registry import METHODS as REGISTERED

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text(encoding="utf-8"))
TOLERANCE = 0.035  # one test row of a site of 35 samples may fall on the other side of a decision

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_as_recorded(names):
    for name, result in played(names):
        expected = RECORDED[name]
        assert result.keys() == expected.keys(), (name, result)
        if "figures" in expected:
            assert result["dropped"] == expected["dropped"], name
            assert same_bytes(result["bytes"], expected["bytes"]), (name, result["bytes"], expected["bytes"])
            assert result["figures"].keys() == expected["figures"].keys(), name
            if name not in UNSEEDED:
                assert result["figures"] == pytest.approx(expected["figures"], rel=0.02, abs=TOLERANCE), name


@pytest.mark.parametrize("method", METHODS)
def test_a_method_ends_as_recorded_on_every_kind_of_label(method):
    assert_as_recorded([name for name in RECORDED if name.startswith(f"{method}: ")])


@pytest.mark.parametrize("method", sorted({name.partition(",")[0] for name in PAIRS}))
def test_parts_that_compose_end_as_recorded(method):
    assert_as_recorded([name for name in RECORDED if name.startswith(f"{method}, ")])


def test_no_method_is_left_out():
    assert set(METHODS) == set(REGISTERED)
