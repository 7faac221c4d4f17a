"""Learning rate and steps of sites that say "auto"."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedaccord.federation.host import SiteHost
from fedaccord.methods.accord.recipe import accord
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.averaging.settings import ClassicSettings
from fedaccord.methods.without_federation.settings import LocalSettings
from fedaccord.training.local import step_count
from fedaccord.training.usual_work import usual_rate, usual_steps
from small_federation import federation, site

RANDOM = torch.Generator().manual_seed(0)
NUMBERS = torch.randn(50, 30, generator=RANDOM)
TEXTS = torch.nn.functional.normalize(torch.randn(50, 512, generator=RANDOM))
PIXELS = torch.rand(50, 784, generator=RANDOM) * 0.5  # small spread, but long rows


@pytest.mark.parametrize(
    ("samples", "steps"), [(1, 10), (60, 10), (320, 10), (321, 11), (3200, 100), (6400, 200), (60_000, 200)]
)
def test_a_round_is_an_epoch_between_ten_and_two_hundred_steps(samples, steps):
    assert usual_steps(samples, 32) == steps == step_count(samples, 32, steps="auto")


@given(st.integers(1, 10**6), st.integers(1, 512))
def test_a_larger_site_never_takes_fewer_steps(samples, batch):
    assert usual_steps(samples, batch) <= usual_steps(samples + 1, batch)


@pytest.mark.parametrize(
    ("x", "rate"),
    [(NUMBERS, 0.05), (TEXTS, 1.0), (PIXELS, 0.05), (torch.zeros(4, 1, 8, 8), 0.05), (torch.zeros(4, 9, 6), 0.05)],
)
def test_the_rate_follows_the_kind_of_input(x, rate):
    assert usual_rate(x, "sgd") == rate
    assert usual_rate(x, "adam") == 0.003


def test_two_standardised_columns_are_no_text():
    assert usual_rate(NUMBERS[:, :2], "sgd") == 0.05


def test_a_site_trains_with_the_rate_of_its_inputs():
    words = site("words", samples=12)
    words.train.x.copy_(torch.nn.functional.normalize(words.train.x) * 0.3)
    server = federation(accord(AccordSettings(rounds=2)), [site("numbers", samples=12), words])
    host = server.engine.host
    assert isinstance(host, SiteHost)
    rates = [host._work(name, brief, brief.__class__()).lr for name, brief in briefs(server).items()]
    assert rates == [0.05, 1.0]


def briefs(server):
    return {name: server.address(server.brief(name, server.tensors), 1) for name in sorted(server.cards)}


def test_only_methods_whose_server_needs_no_rate_take_auto():
    assert (AccordSettings().lr, AccordSettings().steps, AccordSettings().epochs) == ("auto", "auto", None)
    assert LocalSettings(lr="auto", steps="auto").lr == "auto"
    assert AccordSettings(epochs=2).steps is None
    for wrong in ({"lr": "auto"}, {"steps": "auto"}):
        with pytest.raises(ValidationError, match='"auto" is not possible with this method'):
            ClassicSettings(**wrong)
