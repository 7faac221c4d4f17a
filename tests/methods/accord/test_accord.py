"""accord: one model from sites whose annotations differ in kind."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.federation.round import play_round
from fedaccord.labels.views import Candidates, Tags, Unlabelled
from fedaccord.methods.accord.recipe import accord
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.shared_settings import ClassicSettings
from small_federation import SPACE, exact, federation, pets_or_cattle, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")

WORK = {"epochs": 2, "batch": 4, "lr": 0.1, "prior": "off", "schedule": "constant"}


def played(recipe, sites, rounds=3, **how):
    server = federation(recipe, sites, **how)
    return server, [play_round(server) for _ in range(rounds)]


@pytest.mark.parametrize("prior", ["off", "all"])
def test_where_every_site_labels_everything_exactly_accord_is_fedavg(prior):
    sites = [site("a", samples=8), site("b", samples=13), site("c", samples=21)]
    work = WORK | {"prior": prior}
    ours, records = played(accord(AccordSettings(regularise=False, **work)), sites)
    theirs, same = played(fedavg(ClassicSettings(softmax="view", **work)), sites)
    torch.testing.assert_close(ours.state.model, theirs.state.model, rtol=1e-6, atol=1e-6)
    assert [r.loss for r in records] == pytest.approx([r.loss for r in same], rel=1e-5)


def private_labels():
    return [
        site("a", samples=100, view=exact(["cat", "dog"])),
        site("b", samples=50, view=exact(["dog"])),
    ]


def test_a_labels_row_is_averaged_over_the_sites_that_know_it():
    # As in docs/methods.md 1.4: 100 samples with {cat, dog} and 50 with {dog}, none with cow.
    server, _ = played(accord(AccordSettings(**WORK)), private_labels(), rounds=1)
    a, b = (server.engine.replies["train", name].tensors for name in "ab")
    for tensor in ("head.weight", "head.bias"):
        row, own, other = server.tensors[tensor], a[f"model/{tensor}"], b[f"model/{tensor}"]
        torch.testing.assert_close(row[0], own[0])
        torch.testing.assert_close(row[1], own[1] * 2 / 3 + other[1] / 3)
        assert torch.equal(row[2], small_network().get_parameter(tensor)[2])
    encoder = "model/encoder.0.weight"
    torch.testing.assert_close(server.tensors["encoder.0.weight"], a[encoder] * 2 / 3 + b[encoder] / 3)


def test_fedavg_would_have_mixed_rows_of_sites_that_never_saw_the_label():
    ours, _ = played(accord(AccordSettings(**WORK)), private_labels(), rounds=1)
    theirs, _ = played(fedavg(ClassicSettings(softmax="view", **WORK)), private_labels(), rounds=1)
    assert not torch.allclose(ours.tensors["head.weight"][0], theirs.tensors["head.weight"][0])


@settings(max_examples=15)
@given(noise=st.floats(-1e6, 1e6), label=st.sampled_from(SPACE.names))
def test_a_site_cannot_move_the_row_of_a_label_it_does_not_know(noise, label):
    known = [name for name in SPACE if name != label]
    sites = [site("a"), site("b", view=exact(known)), site("c")]

    def model(spoil):
        server = federation(accord(AccordSettings(steps=1, batch=4)), sites)
        if spoil:
            server.engine.spoil["train", "b"] = spoil
        play_round(server, evaluated=False)
        return server.tensors

    def hostile(reply):
        for name in ("model/head.weight", "model/head.bias"):
            reply.tensors[name] += noise
        return reply

    honest, attacked = model(None), model(hostile)
    for name in ("head.weight", "head.bias"):
        assert torch.equal(honest[name][SPACE.column(label)], attacked[name][SPACE.column(label)])
    if abs(noise) > 1:
        assert not torch.equal(honest["head.bias"], attacked["head.bias"])


def test_sites_of_every_kind_of_view_train_one_model():
    sites = [
        site("exact", samples=30),
        site("some", samples=30, view=exact(["cat", "dog"])),
        site("sets", samples=30, view=Candidates(SPACE)),
        site("coarse", samples=30, view=pets_or_cattle()),
        site("silent", samples=30, test=60, view=Unlabelled(SPACE)),
    ]
    test = site("server", test=60).test
    for prior in ("off", "all"):
        recipe = accord(AccordSettings(**WORK | {"prior": prior}))
        server, records = played(recipe, sites, rounds=5, test=(test.x, test.truth))
        assert records[-1].asked == ["coarse", "exact", "sets", "some"]
        assert records[-1].dropped == []
        assert records[-1].evaluation.global_["accuracy"] > 0.9
        assert records[-1].evaluation.sites["silent"]["accuracy_classes"] > 0.9


def test_tags_of_different_sites_make_one_tagger():
    sites = [site("a", samples=30, view=Tags(SPACE, ["cat", "dog"])), site("b", samples=30, view=Tags(SPACE, ["cow"]))]
    server, records = played(accord(AccordSettings(**WORK)), sites, rounds=8)
    everything = site("c", test=60, view=Tags(SPACE)).test
    scores = torch.sigmoid(server.load_network().eval()(everything.x))
    assert ((scores >= 0.5) == (everything.target == 1)).float().mean() > 0.9


def test_priors_stay_with_their_sites():
    server, _ = played(accord(AccordSettings(**WORK | {"prior": "all"})), [site("a"), site("b", view=pets_or_cattle())])
    crossed = [*(brief for _, _, brief in server.engine.asked), *server.engine.replies.values()]
    assert not any("prior" in name for message in crossed for name in (*message.tensors, *message.numbers))
    assert all(memory.tensors.keys() == {"prior"} for memory in server.engine.memories().values())
    assert set(server.engine.memories()) == {"a", "b"}
