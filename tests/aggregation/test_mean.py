"""Averages, on models of a few numbers."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedaccord.aggregation.mean import (
    mean,
    per_label,
    pooled_variance,
    weighted_mean,
    with_pooled_batch_norm,
)
from fedaccord.aggregation.replies import Replies, normalised
from fedaccord.messages.message import Message
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network


def weights(*samples):
    return torch.tensor(samples, dtype=torch.float64)


def replies_of(network, matrix, samples, informs, previous=None):
    layout = Layout.of(network)
    names = tuple(f"site-{i}" for i in range(len(matrix)))
    return Replies(
        sites=names,
        messages=tuple(Message(words={"site": name}) for name in names),
        matrix=matrix,
        weights=weights(*samples),
        informs=informs,
        previous=torch.zeros(layout.size) if previous is None else previous,
        layout=layout,
    )


def drawn(sites, size, seed):
    return torch.randn(sites, size, generator=torch.Generator().manual_seed(seed))


def test_the_weighted_mean_of_the_worked_example():
    # docs/methods.md 1.4: x = (1, 2), n = (100, 300) -> 1.75
    assert weighted_mean(torch.tensor([[1.0], [2.0]]), weights(100, 300)).tolist() == [1.75]


def test_the_variances_of_the_worked_example():
    # docs/methods.md 1.4: n = (10, 30), mu = (1, 2), var = (0.5, 1.0)
    means, variances, n = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.5], [1.0]]), weights(10, 30)
    assert weighted_mean(means, n).tolist() == [1.75]
    assert weighted_mean(variances, n).tolist() == [0.875]
    assert pooled_variance(means, variances, n).tolist() == [1.0625]


def test_the_pooled_variance_is_that_of_all_samples_together():
    parts = [3 + 2 * drawn(7, 4, 0), drawn(20, 4, 1)]
    pooled = pooled_variance(
        torch.stack([p.mean(0) for p in parts]), torch.stack([p.var(0, correction=0) for p in parts]), weights(7, 20)
    )
    torch.testing.assert_close(pooled, torch.cat(parts).var(0, correction=0), rtol=1e-5, atol=1e-5)


def test_the_pooled_variance_of_large_means_is_not_below_zero():
    # 1000.3^2 has no digits left for a variance of 0.001 in float32, and a negative one is NaN in the next layer.
    pooled = pooled_variance(torch.full((3, 1), 1000.3), torch.full((3, 1), 1e-3), weights(1, 2, 4))
    assert pooled.item() == pytest.approx(1e-3, rel=1e-2)


def test_per_label_rows_of_the_worked_example():
    # docs/methods.md 1.4: four labels, two features, no encoder to speak of
    y1, y2 = torch.zeros(4, 2), torch.zeros(4, 2)
    y1[0], y1[1] = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    y2[1], y2[2] = torch.tensor([6.0, 1.0]), torch.tensor([5.0, 5.0])
    previous = torch.zeros(4, 2)
    previous[3] = 9.0
    network = Network(nn.Identity(), nn.Linear(2, 4, bias=False))
    informs = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0]]).bool()
    given = replies_of(network, torch.stack([y1.flatten(), y2.flatten()]), (100, 50), informs, previous.flatten())
    torch.testing.assert_close(
        per_label(given).view(4, 2), torch.tensor([[1.0, 2.0], [4.0, 3.0], [5.0, 5.0], [9.0, 9.0]])
    )


def test_a_label_nobody_informs_keeps_its_row_bit_for_bit():
    network = Network(nn.Identity(), nn.Linear(2, 2, bias=False))
    previous = drawn(1, 4, 3)[0]
    informs = torch.tensor([[1, 0], [1, 0]]).bool()
    result = per_label(replies_of(network, drawn(2, 4, 4), (3, 4), informs, previous))
    assert torch.equal(result[2:], previous[2:])
    assert not torch.equal(result[:2], previous[:2])


def test_a_reply_alone_is_taken_over_bit_for_bit():
    network = Network(nn.Identity(), nn.Linear(2, 3))
    matrix = drawn(1, 9, 5)
    given = replies_of(network, matrix, (7,), torch.ones(1, 3, dtype=torch.bool))
    assert torch.equal(mean(given), matrix[0])
    assert torch.equal(per_label(given), matrix[0])


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20))
def test_weights_sum_to_one(samples):
    shares = normalised(weights(*samples))
    assert shares.sum().item() == pytest.approx(1)
    assert (shares > 0).all()


@given(st.integers(1, 6), st.integers(0, 2**32), st.data())
def test_the_mean_of_equal_models_is_that_model(sites, seed, data):
    samples = data.draw(st.lists(st.integers(1, 1000), min_size=sites, max_size=sites))
    model = drawn(1, 5, seed)
    torch.testing.assert_close(weighted_mean(model.expand(sites, 5), weights(*samples)), model[0])


def small():
    """An encoder of 2 weights, a head of 3 labels with 2 features and a bias."""
    return Network(nn.Linear(1, 2, bias=False), nn.Linear(2, 3))


@given(st.integers(2, 5), st.integers(0, 2**32), st.data())
def test_a_site_outside_a_labels_owners_cannot_move_its_row(sites, seed, data):
    flags = st.lists(st.booleans(), min_size=3, max_size=3)
    informs = torch.tensor(data.draw(st.lists(flags, min_size=sites, max_size=sites)))
    samples = data.draw(st.lists(st.integers(1, 100), min_size=sites, max_size=sites))
    network, outsider, label = small(), data.draw(st.integers(0, sites - 1)), data.draw(st.integers(0, 2))
    informs[outsider, label] = False
    replies = replies_of(network, drawn(sites, Layout.of(network).size, seed), samples, informs, drawn(1, 11, 5)[0])
    hostile = copy.deepcopy(replies)
    hostile.matrix[outsider] *= -1000
    row = replies.layout.head_rows()[label]
    assert torch.equal(per_label(replies)[row], per_label(hostile)[row])
    assert not torch.equal(per_label(replies)[:2], per_label(hostile)[:2])  # the encoder is everybody's


@given(st.integers(2, 6), st.integers(0, 2**32), st.data())
def test_another_order_of_sites_changes_no_average(sites, seed, data):
    network = small()
    informs = torch.rand(sites, 3, generator=torch.Generator().manual_seed(seed)) > 0.4
    samples = data.draw(st.lists(st.integers(1, 100), min_size=sites, max_size=sites))
    matrix, previous = drawn(sites, 11, seed), drawn(1, 11, 5)[0]
    order = data.draw(st.permutations(range(sites)))
    for aggregate in (mean, per_label):
        plain = aggregate(replies_of(network, matrix, samples, informs, previous))
        turned = aggregate(replies_of(network, matrix[order], [samples[i] for i in order], informs[order], previous))
        torch.testing.assert_close(plain, turned, rtol=1e-4, atol=1e-5)


def test_rows_that_all_sites_inform_are_averaged_like_the_rest():
    replies = replies_of(small(), drawn(3, 11, 0), (5, 6, 7), torch.ones(3, 3).bool())
    torch.testing.assert_close(per_label(replies), mean(replies))


def normed():
    return Network(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)), nn.Linear(1, 2))


def test_batch_norm_is_averaged_or_pooled():
    # The same numbers, in the places where a network keeps these statistics.
    layout = Layout.of(normed())
    at = {slot.name: slot.start for slot in layout.slots}
    matrix = drawn(2, layout.size, 0)
    matrix[:, at["encoder.1.running_mean"]] = torch.tensor([1.0, 2.0])
    matrix[:, at["encoder.1.running_var"]] = torch.tensor([0.5, 1.0])
    replies = replies_of(normed(), matrix, (10, 30), torch.ones(2, 2).bool())
    average, pooled = mean(replies), with_pooled_batch_norm(mean)(replies)
    variance = at["encoder.1.running_var"]
    assert average[at["encoder.1.running_mean"]].item() == pooled[at["encoder.1.running_mean"]].item() == 1.75
    assert average[variance].item() == 0.875
    assert pooled[variance].item() == 1.0625
    others = torch.arange(layout.size) != variance
    assert torch.equal(average[others], pooled[others])


def test_pooling_touches_no_other_aggregators_work():
    replies = replies_of(small(), drawn(2, 11, 0), (1, 2), torch.tensor([[1, 1, 0], [0, 1, 0]]).bool())
    assert torch.equal(with_pooled_batch_norm(per_label)(replies), per_label(replies))


def test_a_defence_keeps_some_replies_whole():
    replies = replies_of(small(), drawn(4, 11, 0), (1, 2, 3, 4), torch.rand(4, 3) > 0.5)
    kept = replies.keep(torch.tensor([True, False, False, True]))
    assert kept.sites == ("site-0", "site-3")
    assert [m.words["site"] for m in kept.messages] == ["site-0", "site-3"]
    assert torch.equal(kept.matrix, replies.matrix[[0, 3]])
    assert kept.weights.tolist() == [1, 4]
    assert torch.equal(kept.informs, replies.informs[[0, 3]])
    assert len(kept) == 2
    assert len(replies.keep(torch.zeros(4).bool())) == 0
