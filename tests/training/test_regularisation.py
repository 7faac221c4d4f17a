"""Noise and dropout that fit the kind of input."""

import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.errors import ConfigError
from fedaccord.federation.round import play_round
from fedaccord.methods.without_federation.recipe import local
from fedaccord.methods.without_federation.settings import LocalSettings
from fedaccord.training.input_kind import kind_of_input
from fedaccord.training.noise import Noisy
from fedaccord.training.objectives import ViewLikelihood
from fedaccord.training.regularisation import Regularised, regularisation_for
from fedaccord.training.work import FEATURES, Batch
from small_federation import federation, site, small_network, work_for

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_kind_of_input_follows_from_its_shape_and_spread():
    numbers = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    words = torch.nn.functional.normalize((torch.rand(50, 256, generator=torch.Generator().manual_seed(0)) > 0.9) * 1.0)
    assert kind_of_input(numbers) == "table"
    assert kind_of_input(words) == "text"
    assert kind_of_input(numbers[:1]) != "table"  # one row has no spread: noise could be of any size beside it
    assert kind_of_input(torch.full((9, 784), 0.5)) == "image"  # pixels in one row
    assert kind_of_input(torch.zeros(2, 9, 64)) == "signal"
    assert kind_of_input(torch.zeros(2, 3, 8, 8)) == "image"


def test_only_tables_get_noise():
    assert regularisation_for(torch.tensor([[-1.0, 1.0], [1.0, -1.0]])) == (0.5, 0.3)
    assert {regularisation_for(x) for x in (torch.zeros(2, 4), torch.zeros(2, 9, 6), torch.zeros(2, 1, 8, 8))} == {
        (0.0, 0.0)
    }


def test_twice_the_rows_halve_the_amounts():
    rows = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0))
    assert regularisation_for(rows[:1000]) == (0.5, 0.3)
    assert regularisation_for(rows) == (0.25, 0.15)


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_a_site_trains_with_the_amounts_of_its_own_inputs(scale):
    a = site("a")
    train = a.train.map(lambda rows: rows)
    train.x.mul_(scale)
    work = work_for(type(a)(a.name, a.view, train, a.test), small_network())
    batch = Batch(torch.arange(4), train.x[:4], train.target[:4])
    noise, dropout = regularisation_for(train.x)
    assert (noise > 0) == (scale == 1.0)
    found = []
    for objective in (Regularised(ViewLikelihood()), Noisy(ViewLikelihood(), noise, dropout)):
        work.random = torch.Generator().manual_seed(3)
        loss = objective.loss(work, batch)
        work.random = torch.Generator().manual_seed(3)
        seen = objective.augment(work, batch)
        factors = seen.row_state.get(FEATURES, torch.ones(4, work.model.features_width))
        found.append((loss.item(), seen.x, factors))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found[0][1:], found[1][1:], strict=True))


def test_regularised_local_training_of_a_table_is_that_with_noise_and_dropout():
    work = {"rounds": 2, "batch": 8}
    ways = ({"regularise": True}, {"noise": 0.5, "dropout": 0.3}, {})
    kept = []
    for way in ways:
        server = federation(local(LocalSettings(**work, **way)), [site("a"), site("b")])
        for _ in range(2):
            play_round(server)
        kept.append(server.engine.kept["a"].tensors)
    ours, same, plain = kept
    assert ours.keys() == same.keys()
    assert all(torch.equal(ours[name], same[name]) for name in ours)
    assert any(not torch.equal(ours[name], plain[name]) for name in ours)


def test_it_cannot_be_combined_with_noise_of_ones_own():
    method = {"name": "local", "regularise": True, "dropout": 0.5}
    with pytest.raises(ConfigError, match="regularise chooses noise and dropout; leave these out"):
        check_experiment({"data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 2}}, "method": method})
