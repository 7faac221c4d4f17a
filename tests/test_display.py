"""The estimate of the remaining time, by worked numbers."""

import pytest

from fedaccord.display import RemainingTime


def after(*ends, rounds=10, first=1, budget=None):
    """An estimate after rounds that ended at these times."""
    remaining = RemainingTime(rounds, budget)
    remaining._start = 0.0
    for number, now in enumerate(ends, start=first):
        remaining.finished(number, now)
    return remaining


def test_there_is_none_before_the_second_round_ends():
    assert after().seconds(0.0) is None
    assert after(30.0).seconds(31.0) is None


def test_the_first_round_does_not_count_because_it_includes_the_start():
    assert after(60.0, 62.0).seconds(62.0) == pytest.approx(8 * 2.0)


def test_it_counts_down_within_a_round_and_never_below_zero():
    remaining = after(0.0, 100.0)
    assert remaining.seconds(130.0) == pytest.approx(800.0 - 30.0)
    assert remaining.seconds(2000.0) == 0.0


def test_rounds_that_last_longer_than_a_minute_have_one():
    assert after(0.0, 90.0, 180.0, rounds=5).seconds(180.0) == pytest.approx(180.0)


def test_the_latest_rounds_count_when_the_pace_changes():
    slow = [10.0 * n for n in range(30)]
    fast = [290.0 + n for n in range(1, 31)]
    assert after(*slow, *fast, rounds=100).seconds(320.0) == pytest.approx(40.0)


def test_a_resumed_run_counts_its_own_rounds():
    assert after(5.0, 6.0, first=8).seconds(6.0) == pytest.approx(1.0)


def test_a_time_budget_ends_it_earlier():
    assert after(0.0, 10.0, rounds=1000, budget=60.0).seconds(10.0) == pytest.approx(50.0)


def test_it_is_shown_in_hours_minutes_and_seconds():
    remaining = after(0.0, 10.0, rounds=500)
    remaining.seconds = lambda now: 4980.4
    assert remaining.render(None).plain == "1:23:00 left"
    assert after(1.0).render(None).plain == ""
