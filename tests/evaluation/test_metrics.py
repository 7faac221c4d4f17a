"""Figures that can be checked by counting on one's fingers."""

import math

import pytest
import torch
from torch import nn

from fedaccord.evaluation.metrics import (
    class_metrics,
    confusion,
    confusions,
    finite,
    recall,
    summarise_sites,
    tag_metrics,
)
from fedaccord.labels.judging import disambiguation, site_metrics
from fedaccord.labels.views import Candidates, Tags, Unlabelled
from fedaccord.models.network import CHUNK, predict_logits
from small_federation import SPACE, exact, pets_or_cattle, small_network

# Four samples whose probabilities over (cat, dog, cow) can be read off; predictions: cat, dog, dog, cow.
P = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.6, 0.3], [0.15, 0.25, 0.6]])
LOGITS = P.log()
TRUTH = torch.tensor([0, 1, 2, 2])


def test_confusion_counts_truth_by_row_and_prediction_by_column():
    counts = confusion(TRUTH, LOGITS.argmax(-1), 3)
    assert counts.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


def test_confusion_leaves_out_what_nobody_knows():
    counts = confusion(torch.tensor([0, -1, 2, -1]), LOGITS.argmax(-1), 3)
    assert counts.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_confusion_takes_any_integers():
    assert confusion(torch.tensor([1], dtype=torch.int8), torch.tensor([2], dtype=torch.int32), 3)[1, 2] == 1


def test_confusions_of_several_sites_are_counted_apart():
    truth, predicted = torch.tensor([[0, 1], [2, -1]]), torch.tensor([[0, 2], [1, 0]])
    counts = confusions(truth, predicted, 3)
    assert counts.tolist() == [confusion(*rows, 3).tolist() for rows in zip(truth, predicted, strict=True)]


def test_accuracy_and_likelihood_in_the_federations_classes():
    metrics, counts = class_metrics(LOGITS, TRUTH)
    assert metrics["accuracy"] == pytest.approx(3 / 4)
    assert metrics["nll"] == pytest.approx(-(math.log(0.7) + math.log(0.5) + math.log(0.3) + math.log(0.6)) / 4)
    assert int(counts.sum()) == 4


def test_samples_of_unknown_truth_do_not_count():
    metrics, _ = class_metrics(LOGITS, torch.tensor([0, -1, 2, -1], dtype=torch.int32))
    assert metrics["accuracy"] == pytest.approx(1 / 2)
    assert metrics["nll"] == pytest.approx(-(math.log(0.7) + math.log(0.3)) / 2)
    nothing, counts = class_metrics(LOGITS, torch.full((4,), -1))
    assert nothing == {}
    assert int(counts.sum()) == 0


def test_recall_of_a_class_that_does_not_occur_is_none():
    counts = torch.tensor([[3, 1, 0], [0, 0, 0], [1, 1, 2]])
    assert recall(counts, SPACE.names) == {"cat": 0.75, "dog": None, "cow": 0.5}


def test_an_exact_site_is_judged_by_its_own_labels():
    metrics, counts = site_metrics(exact(), LOGITS, TRUTH, None)
    assert metrics == {"accuracy": pytest.approx(3 / 4), "nll": pytest.approx(class_metrics(LOGITS, TRUTH)[0]["nll"])}
    assert counts.tolist() == confusion(TRUTH, LOGITS.argmax(-1), 3).tolist()


def test_an_exact_site_that_knows_two_labels_decides_between_these():
    # Without dog, samples 1 and 2 are read as cow: (0.2, 0.3) and (0.1, 0.3).
    metrics, counts = site_metrics(exact(["cat", "cow"]), LOGITS, torch.tensor([0, 0, 2, 2]), None)
    assert metrics["accuracy"] == pytest.approx(3 / 4)
    assert counts.tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 2]]
    assert metrics["nll"] == pytest.approx(-sum(map(math.log, (0.7 / 0.8, 0.2 / 0.5, 0.3 / 0.4, 0.6 / 0.75))) / 4)


def test_samples_nobody_annotated_are_no_perfect_predictions():
    metrics, counts = site_metrics(exact(), LOGITS, torch.tensor([-1, 1, -1, -1]), None)
    assert metrics == {"accuracy": 1.0, "nll": pytest.approx(-math.log(0.5))}
    assert int(counts.sum()) == 1
    coarse, _ = site_metrics(pets_or_cattle(), LOGITS, torch.tensor([0, -1, -1, -1]), None)
    assert coarse["nll"] == pytest.approx(-math.log(0.9))


def test_a_prior_decides_along():
    view = exact().with_offset(torch.tensor([0.0, 0.0, math.log(3)]))
    metrics, _ = site_metrics(view, LOGITS, TRUTH, None)
    assert metrics["accuracy"] == pytest.approx(3 / 4)  # sample 2 is now right (0.6 < 0.9), sample 1 is now wrong
    assert site_metrics(view, LOGITS, torch.tensor([0, 2, 2, 2]), None)[0]["accuracy"] == 1.0


def test_a_candidate_site_is_judged_inside_its_sets_and_by_the_truth_where_it_is_known():
    sets = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1], [0, 0, 1]]).bool()
    metrics, counts = site_metrics(Candidates(SPACE), LOGITS, sets, None)
    assert metrics == {
        "in_set": pytest.approx(3 / 4),
        "nll": pytest.approx(-(math.log(0.9) + math.log(0.8) + math.log(0.4) + math.log(0.6)) / 4),
    }
    assert int(counts.sum()) == 0
    known, counts = site_metrics(Candidates(SPACE), LOGITS, sets, torch.tensor([1, 1, 2, 2]))
    assert known["in_set"] == pytest.approx(3 / 4)
    assert known["accuracy"] == known["accuracy_classes"] == pytest.approx(2 / 4)
    assert counts.tolist() == [[0, 0, 0], [1, 1, 0], [0, 1, 1]]


def test_a_coarse_site_is_judged_in_its_own_groups_and_in_classes_where_the_truth_is_known():
    # pet = cat or dog, cattle = cow: the four samples are read as pet, pet, pet, cattle.
    metrics, counts = site_metrics(pets_or_cattle(), LOGITS, torch.tensor([0, 0, 1, 1]), TRUTH)
    assert metrics["accuracy"] == metrics["accuracy_classes"] == pytest.approx(3 / 4)
    assert metrics["nll"] == pytest.approx(-sum(map(math.log, (0.9, 0.7, 0.3, 0.6))) / 4)
    assert counts.tolist() == [[2, 0], [1, 1]]
    assert "accuracy_classes" not in site_metrics(pets_or_cattle(), LOGITS, torch.tensor([0, 0, 1, 1]), None)[0]


def test_a_tag_site_is_judged_by_decisions_it_has_annotated():
    scores = torch.tensor([[0.9, 0.2, 0.5], [0.4, 0.6, 0.1]])
    target = torch.tensor([[1, 1, 1], [0, -1, -1]], dtype=torch.int8)
    assert tag_metrics(scores, target)["accuracy"] == pytest.approx(3 / 4)  # 0.5 says yes
    metrics, counts = site_metrics(Tags(SPACE), torch.logit(scores), target, None)
    assert metrics["accuracy"] == pytest.approx(3 / 4)
    assert metrics["nll"] == pytest.approx(-(math.log(0.9) + math.log(0.2) + math.log(0.5) + math.log(0.6)) / 2)
    assert int(counts.sum()) == 0
    assert tag_metrics(scores, torch.full((2, 3), -1)) == {}


def test_a_site_without_labels_has_figures_only_where_a_study_knows_the_truth():
    nothing = torch.full((4,), -1)
    assert site_metrics(Unlabelled(SPACE), LOGITS, nothing, None)[0] == {}
    assert site_metrics(Unlabelled(SPACE), LOGITS, nothing, TRUTH)[0] == {"accuracy_classes": pytest.approx(3 / 4)}


@pytest.mark.parametrize("view", [exact(), Candidates(SPACE), pets_or_cattle(), Tags(SPACE), Unlabelled(SPACE)])
def test_no_test_samples_give_no_figures(view):
    metrics, counts = site_metrics(view, torch.zeros(0, 0), torch.zeros(0), None)
    assert metrics == {}
    assert counts.shape == (len(view.answers), len(view.answers))


def test_figures_that_overflowed_are_left_out():
    metrics, _ = class_metrics(torch.tensor([[math.inf, 1.0]]), torch.tensor([0]))
    assert finite(metrics) == {"accuracy": 1.0}


def test_sites_are_summarised_without_weights():
    each = {
        "a": {"accuracy": 0.5, "samples": 10.0},
        "b": {"accuracy": 0.9, "samples": 1000.0, "in_set": 0.7},
        "c": {"accuracy": math.nan, "samples": 3.0},
        "d": {},
    }
    summary = summarise_sites(each)
    assert summary["mean"] == {"accuracy": pytest.approx(0.7), "in_set": pytest.approx(0.7)}
    assert summary["std"] == {"accuracy": pytest.approx(math.sqrt(0.08)), "in_set": 0.0}  # sample deviation
    assert summary["min"] == {"accuracy": 0.5, "in_set": 0.7}
    assert summary["max"] == {"accuracy": 0.9, "in_set": 0.7}
    assert summarise_sites({}) == {"mean": {}, "std": {}, "min": {}, "max": {}}


def test_predictions_are_made_in_evaluation_mode_and_the_mode_is_put_back():
    network = small_network(batch_norm=True).train()
    x = torch.randn(CHUNK + 3, 4, generator=torch.Generator().manual_seed(0))
    logits = predict_logits(network, x)
    assert network.training
    assert network.encoder[1].num_batches_tracked.item() == 0
    assert not logits.requires_grad
    torch.testing.assert_close(logits, network.eval()(x).detach())
    predict_logits(network, x[:2])
    assert not network.training


def test_a_model_that_fails_gets_its_mode_back_as_well():
    network = small_network().train()
    with pytest.raises(RuntimeError):
        predict_logits(network, torch.zeros(2, 99))
    assert network.training
    assert predict_logits(nn.Identity(), torch.zeros(0, 4)).shape == (0, 0)


class TestDisambiguation:
    SETS = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]]).bool()  # most likely: cat, dog, cow, cow

    def test_it_counts_true_labels_that_are_the_most_likely_candidate(self):
        # The third sample's prediction, dog, is wrong and not among its candidates; of these cow is the most likely.
        assert disambiguation(Candidates(SPACE), LOGITS, self.SETS, TRUTH) == {"disambiguation": 1.0}
        assert disambiguation(Candidates(SPACE), LOGITS, self.SETS, TRUTH.roll(1)) == {"disambiguation": 0.25}

    def test_it_uses_what_the_site_knows_of_its_labels(self):
        view = Candidates(SPACE).with_offset(torch.tensor([9.0, 0.0, 0.0]))
        assert disambiguation(view, LOGITS, self.SETS, TRUTH) == {"disambiguation": 0.25}

    def test_samples_of_unknown_truth_do_not_count(self):
        found = disambiguation(Candidates(SPACE), LOGITS, self.SETS, torch.tensor([0, -1, 0, -1]))
        assert found == {"disambiguation": 0.5}
        assert disambiguation(Candidates(SPACE), LOGITS, self.SETS, torch.full((4,), -1)) == {}
