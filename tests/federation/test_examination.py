"""The examination of a trained model: what a site sends and keeps, and what the server makes of it."""

import pytest
import torch

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.federation.examination import RESAMPLED, examine
from fedaccord.federation.round import evaluate, play_round
from fedaccord.labels.views import Candidates, Unlabelled
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.shared_settings import ClassicSettings
from small_federation import SPACE, federation, pets_or_cattle, site

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(*sites, rounds=2, **changes):
    server = federation(fedavg(ClassicSettings(steps=2, batch=4)), list(sites))
    for name, value in changes.items():
        setattr(server, name, value)
    for _ in range(rounds):
        play_round(server)
    return server


def larger(name, view=None, test=30):
    return site(name, 12, view, test)


def test_the_first_figure_is_that_of_the_last_evaluation():
    server = trained(larger("a"), larger("b", pets_or_cattle()))
    record = evaluate(server)
    found = examine(server)
    for name in ("a", "b"):
        assert found.sites[name].measures["accuracy"].value == pytest.approx(record.sites[name]["accuracy"])
        assert found.sites[name].rows == 30
    assert found.overall is None
    assert server.state.round == 2  # the examination is no round


def test_a_site_sends_numbers_and_keeps_what_would_tell_rows_apart():
    server = trained(larger("a"))
    examine(server)
    reply = server.engine.replies["examine", "a"]
    assert set(reply.tensors) == {"calibration"}
    assert reply.tensors["calibration"].shape == (6, 5)  # 30 rows in bins of five
    assert {"accuracy", "accuracy.low", "accuracy.high", "auroc", "brier", "ece", "guess"} <= set(reply.numbers)
    assert server.engine.kept["a"].tensors[RESAMPLED].shape == (1000,)


def test_two_runs_of_a_seed_draw_the_same_resamples():
    """So that two methods can be compared on them: the same model has the same figures, resample by resample."""

    def resampled(**changes):
        server = trained(larger("a"), **changes)
        examine(server)
        return server.engine.kept["a"].tensors[RESAMPLED]

    assert torch.equal(resampled(), resampled(run="another-run"))
    assert not torch.equal(resampled(), resampled(rounds=3))


def test_guessing_is_the_most_frequent_training_label_of_the_site():
    data = larger("a")
    target = torch.tensor([2] * 7 + [0] * 5)
    test = torch.tensor([2] * 3 + [0] * 20 + [1] * 7)
    data = SiteData("a", data.view, Samples(data.train.x, target), Samples(data.test.x, test))
    found = examine(trained(data)).sites["a"].measures
    assert found["guess"].value == pytest.approx(0.1)  # cow, though cats are most frequent in the test


def test_candidate_sites_are_measured_by_their_sets_unless_the_truth_is_known():
    view, data = Candidates(SPACE), larger("a")
    sets = torch.zeros(42, 3, dtype=torch.bool)
    sets[:, 0] = True
    sets[:6, 1] = sets[12:27, 1] = True
    sets[30:, 0] = False
    sets[30:, 2] = True
    blind = SiteData("a", view, Samples(data.train.x, sets[:12]), Samples(data.test.x, sets[12:]))
    found = examine(trained(blind, larger("b"))).sites["a"]
    assert list(found.measures) == ["in_set", "guess", "over_guess"]
    assert found.measures["guess"].value == pytest.approx(0.6)  # sets that hold `cat`, which every training set holds
    known = SiteData("a", view, blind.train, Samples(data.test.x, sets[12:], data.test.target))
    assert "accuracy" in examine(trained(known, larger("b"))).sites["a"].measures


def test_nothing_is_measured_where_nothing_can_be():
    server = trained(larger("a"), larger("few", test=4), larger("none", test=0), larger("blind", Unlabelled(SPACE)))
    found = examine(server).sites
    assert {name: (q.rows, bool(q.measures)) for name, q in found.items()} == {
        "a": (30, True),
        "few": (4, False),
        "none": (0, False),
        "blind": (0, False),
    }


def test_the_global_model_is_compared_with_the_best_constant_answer():
    data = larger("x")
    truth = torch.tensor([1] * 18 + [0] * 12)
    found = examine(trained(larger("a"), test=(data.test.x, truth))).overall
    assert found.measures["guess"].value == pytest.approx(0.6)
    assert found.rows == 30


@pytest.mark.parametrize("spoiled", ["accuracy", "calibration"])
def test_a_bad_reply_is_dropped(spoiled):
    def spoil(reply):
        if spoiled == "accuracy":
            reply.numbers["accuracy"] = float("nan")
        else:
            reply.tensors["calibration"] = torch.zeros(11, 5, dtype=torch.float64)
        return reply

    server = trained(larger("a"), larger("b"))
    server.engine.spoil["examine", "b"] = spoil
    assert list(examine(server).sites) == ["a"]
    assert [(d.round, d.site, d.task, d.tensor) for d in server.dropped] == [(2, "b", "examine", spoiled)]


def test_a_site_draws_as_many_resamples_as_it_should_whatever_it_is_asked():
    server = trained(larger("a"))
    ask = server.engine.ask
    for wanted, drawn in ((10**12, 1000), (1, 200)):

        def asked(task, briefs, deadline=None, wanted=wanted):
            for brief in briefs.values():
                brief.numbers["resamples"] = wanted
            return ask(task, briefs, deadline)

        server.engine.ask = asked
        assert examine(server).sites["a"].resamples == drawn


def test_its_bytes_are_not_those_of_a_round():
    server = trained(larger("a"))
    found = examine(server)
    assert min(found.bytes["a"]) > 0
    assert server.traffic.take() == {}
