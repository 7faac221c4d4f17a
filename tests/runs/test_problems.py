"""What went wrong in a run, by worked examples of its lines."""

import math

import pytest

from fedaccord.messages.checks import NOT_FINITE
from fedaccord.runs.problems import LOWER, find_problems
from fedaccord.runs.reading import Line


def played(number, loss=1.0, asked="ab", dropped=(), nll=None, tags=False, **more):
    """The lines of a round: what was asked, who was dropped for which reason, and the global model's nll."""
    drops = [{"round": number, "site": s, "task": "train", "tensor": "", "reason": r} for s, r in dict(dropped).items()]
    replied = len(asked) - len([drop for drop in drops if drop["site"]])
    lines = [Line(round=number, scope="round", asked=list(asked), replied=replied, loss=loss, dropped=drops, **more)]
    metrics = {"nll": nll} | ({"hamming": 0.5} if tags else {})
    return lines + ([] if nll is None else [Line(round=number, scope="global", metrics=metrics)])


def found(*rounds, labels=10):
    problems = find_problems([line for lines in rounds for line in lines], labels)
    return [(problem.kind, problem.fatal) for problem in problems], [problem.text for problem in problems]


def losses(*values):
    return [played(number, loss) for number, loss in enumerate(values, start=1)]


class TestDivergence:
    @pytest.mark.parametrize(
        "values",
        [
            (2.3, 1.0, 0.5),
            (2.3, 0.01, 0.2),  # a loss near zero may grow tenfold by chance
            (2.3, 1.0, 9.9),
            (None, None),
            (2.3, -4.0, -3.0),  # an objective with a negative loss
            (60.0,),
        ],
    )
    def test_losses_of_sound_runs(self, values):
        assert found(*losses(*values)) == ([], [])

    def test_a_loss_that_grows_tenfold(self):
        kinds, texts = found(*losses(2.3, 1.5, 15.0))
        assert kinds == [("diverged", False)]
        assert texts == [f"training diverged: the loss grew from 1.5 to 15; {LOWER}"]

    def test_a_first_round_that_already_explodes(self):
        """The loss falls from 1e9 to 1000, and the model is far worse than equal probabilities."""
        kinds, texts = found(played(1, 1e9, nll=510.0), played(2, 1e3, nll=900.0))
        assert kinds == [("diverged", True)]
        assert "the test loss of the global model is 900, more than ten times that of guessing" in texts[0]

    def test_the_bound_is_ten_times_the_loss_of_guessing(self):
        guess = math.log(4)
        assert found(played(1, nll=9.9 * guess), labels=4)[0] == []
        assert found(played(1, nll=10.1 * guess), labels=4)[0] == [("diverged", True)]

    def test_the_test_loss_of_tags_is_a_sum_over_tags(self):
        """A model of 100 tags that knows nothing has a loss of 69, which is 15 times ln(100)."""
        guess = 100 * math.log(2)
        assert found(played(1, nll=guess, tags=True), labels=100)[0] == []
        assert found(played(1, nll=10.1 * guess, tags=True), labels=100)[0] == [("diverged", True)]

    def test_a_training_loss_over_many_tags_is_a_sum(self):
        per_tag = math.log(2)
        assert found(played(1, 100 * per_tag), labels=100)[0] == []
        assert found(played(1, 1001 * per_tag), labels=100)[0] == [("diverged", False)]


class TestDrops:
    def test_half_of_the_rounds_is_not_more_than_half(self):
        rounds = [played(1, dropped={"a": "late"}), played(2)]
        assert found(*rounds)[0] == []
        rounds.append(played(3, dropped={"a": "late"}))
        assert found(*rounds) == ([("dropped", False)], ["dropped in more than half of the rounds: 'a' (late)"])

    def test_only_rounds_that_asked_the_site_count(self):
        rounds = [played(1, dropped={"a": "late"}), played(2, asked="b"), played(3, asked="b")]
        assert found(*rounds)[0] == [("dropped", False)]

    def test_sites_with_the_same_reason_share_a_sentence(self):
        rounds = [played(1, asked="abc", dropped={"a": "late", "b": "late"})]
        assert found(*rounds)[1] == ["dropped in more than half of the rounds: 'a', 'b' (late)"]

    def test_a_few_replies_that_are_not_finite(self):
        rounds = [played(1, dropped={"b": NOT_FINITE}), played(2), played(3)]
        assert found(*rounds) == ([("not finite", False)], [f"some replies held NaN or infinite values: 'b'; {LOWER}"])


class TestUnusableModels:
    def test_nobody_was_admitted_in_the_last_round(self):
        all_dropped = {"a": "late", "b": "broken"}
        kinds, texts = found(played(1), played(2), played(3, dropped=all_dropped))
        assert kinds == [("not updated", True)]
        assert texts[0].startswith("no reply was admitted in the last round, 3, because every site was dropped")
        assert found(played(1, dropped=all_dropped), played(2), played(3))[0] == []

    def test_the_defence_excluded_everybody(self):
        last = played(2, figures={"excluded": 1.0})
        last[0].replied = 0
        kinds, texts = found(played(1), last)
        assert kinds == [("not updated", True)]
        assert "the defence excluded every site" in texts[0]

    def test_silent_sites_are_no_failure(self):
        last = played(2)
        last[0].replied = 0
        assert found(played(1), last) == ([], [])

    def test_the_aggregated_model_was_refused(self):
        kinds, texts = found(played(1), played(2, dropped={"": "the aggregated model is not finite"}))
        assert kinds == [("not updated", True)]
        assert texts == ["the last round, 2, had no effect: the aggregated model is not finite"]

    def test_the_model_is_not_finite(self):
        assert found(played(1), played(2, finite=False))[0] == [("not finite", True)]


def test_a_run_without_rounds_has_no_problems():
    assert find_problems([], 3) == []
