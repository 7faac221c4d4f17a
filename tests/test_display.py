"""The estimate of the remaining time, by worked numbers, and how a terminal shows it."""

import io
import re

import pytest
from rich.console import Console

from fedaccord.config import parse_experiment
from fedaccord.display import Display, RemainingTime
from fedaccord.federation.round import RoundRecord


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


def test_a_terminal_of_80_columns_shows_the_remaining_time_in_one_line():
    screen = io.StringIO()
    data = 'dataset = "digits"\npartition = { kind = "iid", sites = 3 }'
    text = f'name = "three-sites"\n[data]\n{data}\n[method]\nname = "accord"\nrounds = 60\n'
    experiment = parse_experiment(text, [], "test")
    display = Display(experiment, Console(file=screen, force_terminal=True, width=80))
    display.figures = "global 95.9%, sites 97.5% ± 2.2"
    with display:
        for number in (1, 2, 3):
            display.round(RoundRecord(number))
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.getvalue())
    last = shown.split("\r")[-1].rstrip()
    assert re.fullmatch(r"three-sites \(accord\) round 3 of 60 +\d:\d\d:\d\d left global 95.9%, sites .*", last)
