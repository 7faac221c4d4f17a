"""Group figures against another implementation of them, fairlearn's."""

import pytest
import torch
from fairlearn.metrics import MetricFrame, count, selection_rate, true_positive_rate
from sklearn.metrics import accuracy_score

from fedaccord.evaluation.groups import fairness_figures, group_figures

GROUP, LABEL, NAMES = 1, 2, ("north", "south", "west")


def people(seed, rows=120):
    """Predicted and true labels, true groups, and candidate groups that hold the true one."""
    generator = torch.Generator().manual_seed(seed)
    predicted, truth, group = (torch.randint(3, (rows,), generator=generator) for _ in range(3))
    sets = torch.nn.functional.one_hot(group, 3).bool() | (torch.rand(rows, 3, generator=generator) < 0.2)
    return predicted, truth, group, sets


def frame(metrics, truth, predicted, member):
    return MetricFrame(
        metrics=metrics, y_true=truth.numpy(), y_pred=predicted.numpy(), sensitive_features=member.numpy()
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_figures_of_two_parts_are_fairlearns(seed):
    predicted, truth, group, sets = people(seed)
    for member in (group == GROUP, sets[:, GROUP]):
        figures = group_figures(predicted, truth, member, LABEL)
        rates = {"eod": true_positive_rate, "spd": selection_rate, "rows": count}
        found = frame(rates, truth == LABEL, predicted == LABEL, member).by_group
        for name in ("eod", "spd"):
            assert figures[name] == pytest.approx(found[name][False] - found[name][True])
        assert (figures["others"], figures["members"]) == (found["rows"][False], found["rows"][True])
        right = frame(accuracy_score, truth, predicted, member).by_group
        assert figures["accuracy_others"] == pytest.approx(right[False])
        assert figures["accuracy_group"] == pytest.approx(right[True])


def test_the_accuracy_of_each_group_is_fairlearns():
    predicted, truth, group, sets = people(7)
    figures = fairness_figures(predicted, truth, sets, group, GROUP, LABEL, NAMES)
    found = frame(accuracy_score, truth, predicted, group).by_group
    for number, name in enumerate(NAMES):
        assert figures[f"accuracy.{name}"] == pytest.approx(found[number])
