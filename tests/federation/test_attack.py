"""What hostile sites send beside the model is forged as the model is, and from what the site was sent."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation
from fedaccord.federation.round import play_round
from fedaccord.methods.registry import make_recipe
from fedaccord.session import open_server
from small_federation import cloud, exact, federation, site

pytestmark = pytest.mark.usefixtures("one_thread")

SITES = {"a": 12, "b": 12, "c": 24}  # c is hostile
SHARES = torch.tensor([0.25, 0.25, 0.5])
PART = "head.weight"


def attacked(name, kind="sign-flip", **settings):
    recipe = make_recipe(name, {"rounds": 4, "steps": 2, "lr": 0.1, "batch": 4, "attack": {"kind": kind}, **settings})
    server = federation(recipe, [site(n, samples) for n, samples in SITES.items()])
    public = cloud(30, exact(), torch.Generator().manual_seed(3))
    server.labelled, server.hostile = (public.x, public.truth), ("c",)
    return server


def sent(server, what, task="train"):
    return torch.stack([server.engine.replies[task, name].tensors[f"{what}/{PART}"] for name in SITES])


def told(server, what):
    """What each site was last told when it was asked to train."""
    briefs = {name: brief for task, name, brief in server.engine.asked if task == "train"}
    return torch.stack([briefs[name].tensors[f"{what}/{PART}"] for name in SITES])


def mean_with_c_backwards(values, starts):
    forged = values.clone()
    forged[2] = starts[2] - (values[2] - starts[2])
    return torch.einsum("s,s...->...", SHARES, forged)


def kept(server, name):
    return server.layout.named(server.state.method.tensors[name])[PART]


@pytest.mark.parametrize("name", ["fednag", "fastslowmo", "pfedmo"])
def test_momentum_goes_backwards_too(name):
    server = attacked(name)
    for _ in range(3):  # personal models differ from the second round on
        play_round(server)
    expected = mean_with_c_backwards(sent(server, "momentum"), told(server, "momentum"))
    torch.testing.assert_close(kept(server, "momentum"), expected)


def test_a_site_with_a_model_of_its_own_goes_backwards_from_there():
    server = attacked("pfedmo")
    for _ in range(3):
        play_round(server)
    starts = told(server, "model")
    assert not torch.equal(starts[0], starts[2])
    torch.testing.assert_close(kept(server, "mean model"), mean_with_c_backwards(sent(server, "model"), starts))


def test_controls_go_backwards_too():
    server = attacked("scaffold")
    play_round(server)
    changes = sent(server, "control")
    torch.testing.assert_close(kept(server, "control"), mean_with_c_backwards(changes, torch.zeros_like(changes)))


def test_full_gradients_go_backwards_too():
    server = attacked("mime")
    play_round(server)
    gradients = sent(server, "gradient", task="gradient")
    torch.testing.assert_close(kept(server, "gradient"), mean_with_c_backwards(gradients, torch.zeros_like(gradients)))


@pytest.mark.parametrize("name", ["fednag", "fastslowmo", "pfedmo", "scaffold", "mime"])
@pytest.mark.parametrize("kind", ["scaling", "ipm", "alie"])
def test_every_attack_on_replies_plays(name, kind):
    calm, server = attacked(name, kind), attacked(name, kind)
    calm.hostile = ()
    for made in (calm, server):
        for _ in range(2):
            assert play_round(made).dropped == []
    assert not torch.equal(calm.state.model, server.state.model)


def test_a_defence_looks_from_where_each_site_began():
    seen = []

    def looking(server, replies):
        seen.append(replies)
        return replies

    looking.reads_updates = True
    server = attacked("pfedmo")
    server.recipe = dataclasses.replace(server.recipe, admit=(looking,))
    server.attack = None
    for _ in range(3):
        play_round(server)
    place = next(slot for slot in server.layout.slots if slot.name == PART)
    starts = seen[-1].starts[:, place.start : place.stop].reshape(3, *place.shape)
    assert torch.equal(starts, told(server, "model"))
    assert torch.equal(seen[-1].keep(torch.tensor([False, True, True])).starts, seen[-1].starts[1:])


def test_a_site_without_labels_may_be_hostile_where_labels_are_not_used(tmp_path):
    experiment = check_experiment(
        {
            "data": {
                "dataset": "digits",
                "samples": 120,
                "partition": {"kind": "iid", "sites": 3},
                "view": {"kind": "unlabelled"},
            },
            "server": {"labelled": {"per_class": 2}},
            "model": {"name": "linear"},
            "method": {"name": "semifl", "rounds": 1, "attack": {"kind": "sign-flip", "sites": ["site-1"]}},
            "run": {"workers": 0},
        }
    )
    with open_server(experiment, load_federation(experiment, tmp_path)) as server:
        assert server.hostile == ("site-1",)
