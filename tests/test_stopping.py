"""When a run ends early: worked sequences of figures, and signals that wait for a round to be written down."""

from __future__ import annotations

import signal

import pytest

from fedaccord.config import Stop
from fedaccord.errors import ConfigError
from fedaccord.recording import SimulatedTime
from fedaccord.stopping import Clock, Signals, Stopped, Stopping, figure, metric_names, signals_stop


def figures(**values):
    """Figures by scope: `global_accuracy=...`, `mean_accuracy=...`; the site 'St. Mary' always has an accuracy."""
    parts = {"global": {}, "mean": {}}
    for name, value in values.items():
        scope, _, metric = name.partition("_")
        parts[scope][metric] = value
    each = {"St. Mary": {"accuracy": 0.25}}
    return {"global": parts["global"], "sites": {"mean": parts["mean"], "std": {}, "each": each}}


class Hands:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 0.0

    def seconds(self):
        return self.now


def stops_at(stop, name, values):
    """Return the evaluation (from 1) after which the run ends, and why."""
    stopping = Stopping(stop, Clock())
    for number, value in enumerate(values, start=1):
        stopping.look(figures(**({} if value is None else {name: value})))
        if stopping.reason():
            return number, stopping.reason()
    return None, ""


class TestAFigureThatNoLongerImproves:
    @pytest.mark.parametrize(
        ("values", "patience", "end"),
        [
            ([0.5, 0.6, 0.6, 0.6], 2, 4),  # the same is no improvement
            ([0.5, 0.6, 0.5, 0.61, 0.6, 0.6], 2, 6),  # an improvement begins the count anew
            ([0.5, 0.4], 1, 2),
            ([0.1, 0.2, 0.3, 0.4], 1, None),
            ([0.5, None, None], 2, 3),  # a round in which nobody could measure it
        ],
    )
    def test_accuracy(self, values, patience, end):
        stop = Stop(metric="sites.mean.accuracy", patience=patience)
        number, reason = stops_at(stop, "mean_accuracy", values)
        assert number == end
        if end:
            assert reason == f"sites.mean.accuracy did not improve in {patience} evaluations"

    def test_of_a_likelihood_smaller_is_better(self):
        stop = Stop(metric="global.nll", patience=2)
        assert stops_at(stop, "global_nll", [2.0, 1.5, 1.2, 1.1, 1.0])[0] is None
        assert stops_at(stop, "global_nll", [1.0, 1.1, 1.2])[0] == 3

    @pytest.mark.parametrize(
        "metric", ["nll", "hamming", "correlation_error", "matrix_error", "matrix_change", "eod", "spd_candidate"]
    )
    def test_an_error_improves_towards_zero(self, metric):
        stop = Stop(metric=f"sites.mean.{metric}", patience=2)
        assert stops_at(stop, f"mean_{metric}", [0.5, 0.4, 0.3, 0.2, 0.1])[0] is None
        assert stops_at(stop, f"mean_{metric}", [0.1, 0.2, 0.3])[0] == 3

    def test_a_difference_between_groups_improves_from_either_side(self):
        stop = Stop(metric="global.eod", patience=2)
        assert stops_at(stop, "global_eod", [-0.5, -0.3, 0.2, -0.1])[0] is None
        assert stops_at(stop, "global_eod", [-0.1, 0.2, 0.3])[0] == 3

    @pytest.mark.parametrize(
        ("metric", "values", "reached"), [("nll", [0.9, 0.5], 2), ("eod", [-0.9, -0.5], 2), ("accuracy", [0.5, 0.8], 2)]
    )
    def test_a_target_is_reached_from_the_worse_side(self, metric, values, reached):
        time = SimulatedTime(f"global.{metric}", 0.7)
        for number, value in enumerate(values, start=1):
            time.look(number, figures(**{f"global_{metric}": value}))
        assert time.reached["round"] == reached

    def test_a_small_step_does_not_count(self):
        rising = [0.5, 0.55, 0.6, 0.65]
        assert stops_at(Stop(metric="global.accuracy", patience=2), "global_accuracy", rising)[0] is None
        # 0.55 is less than 0.1 above 0.5, and 0.6 not more.
        slow = Stop(metric="global.accuracy", patience=2, min_delta=0.1)
        assert stops_at(slow, "global_accuracy", rising)[0] == 3

    def test_without_a_metric_it_never_ends(self):
        assert stops_at(Stop(patience=1), "global_accuracy", [0.5] * 50) == (None, "")

    def test_one_that_is_not_there_at_first(self):
        stopping = Stopping(Stop(metric="global.acuracy"), Clock())
        with pytest.raises(ConfigError) as caught:
            stopping.look(figures(global_accuracy=0.5))
        assert str(caught.value) == ("stop.metric: unknown metric 'global.acuracy'; did you mean 'global.accuracy'?")

    def test_all_that_can_be_watched(self):
        there = figures(global_nll=1.0, mean_accuracy=0.5)
        names = ["global.nll", "sites.mean.accuracy", "sites.median.accuracy", "sites.each.St. Mary.accuracy"]
        assert metric_names(there) == names
        assert [figure(there, name) for name in names] == [1.0, 0.5, 0.25, 0.25]
        assert figure(there, "sites.each.St.accuracy") is None


def test_one_site_cannot_shift_the_median():
    there = figures(mean_nll=2e8)
    there["sites"]["each"] = {"a": {"nll": 1.0}, "b": {"nll": 2.0}, "liar": {"nll": 9e8}, "silent": {}}
    assert figure(there, "sites.median.nll") == 2.0
    assert figure(there, "sites.median.accuracy") is None
    assert Stop(metric="sites.median.nll").metric == "sites.median.nll"


class TestATimeBudget:
    def test_it_ends_when_it_is_used_up(self):
        clock = Hands()
        stopping = Stopping(Stop(seconds=90), clock)
        clock.now = 89.9
        assert (stopping.out_of_time(), stopping.reason()) == (False, "")
        clock.now = 90
        assert (stopping.out_of_time(), stopping.reason()) == (True, "the time budget of 90 s is used up")

    def test_the_clock_goes_on_where_the_run_was_cut(self):
        assert 100 <= Clock(100).seconds() < 101


class TestSignals:
    def test_one_between_two_writes_is_raised_at_once(self):
        with signals_stop(), pytest.raises(Stopped) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert str(caught.value) == "stopped by SIGTERM"
        assert caught.value.exit_code == 143

    def test_one_in_a_write_waits_for_its_end(self):
        wrote = []

        def write(signals):
            with signals.deferred():
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
                wrote.append("all")
            wrote.append("too much")

        with signals_stop() as signals, pytest.raises(Stopped) as caught:
            write(signals)
        assert wrote == ["all"]
        assert caught.value.exit_code == 130  # the first counts

    def test_one_that_nobody_heard_is_raised_again(self):
        signals = Signals()
        with pytest.raises(Stopped):
            signals.arrive(signal.SIGTERM)  # and swallowed, as an exception in a destructor would be
        with pytest.raises(Stopped), signals.deferred():
            pass

    def test_none_disturbs_the_end(self):
        with signals_stop() as signals:
            signals.ignore()
            signal.raise_signal(signal.SIGINT)

    def test_afterwards_they_are_as_before(self):
        before = signal.getsignal(signal.SIGTERM)
        with signals_stop():
            assert signal.getsignal(signal.SIGTERM) != before
        assert signal.getsignal(signal.SIGTERM) == before
