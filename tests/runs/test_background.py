"""Work beside the run."""

from __future__ import annotations

import threading

import pytest

from fedaccord.runs.background import Background


def test_work_goes_on_while_the_caller_does():
    background, gate, done = Background(), threading.Event(), []
    background.start(lambda: done.append(gate.wait(10)))
    assert done == []
    gate.set()
    background.wait()
    assert done == [True]


def test_a_second_piece_waits_for_the_first():
    background, order = Background(), []
    first = threading.Event()
    background.start(lambda: (first.wait(0.2), order.append(1)))
    background.start(lambda: order.append(2))
    background.wait()
    assert order == [1, 2]


def test_an_error_is_raised_where_the_next_piece_is_handed_over_and_only_once():
    background, done = Background(), []

    def fail():
        raise OSError("no space")

    background.start(fail)
    with pytest.raises(OSError, match="no space"):
        background.start(lambda: done.append(1))
    background.wait()
    assert done == []
    background.start(fail)
    background.join()
    with pytest.raises(OSError, match="no space"):
        background.wait()
