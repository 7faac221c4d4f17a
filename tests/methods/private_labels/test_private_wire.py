"""A tap on every message to one site of private label sets: none may tell of a label outside the site's own set."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedaccord.config import check_experiment
from fedaccord.experiment import load_federation
from fedaccord.federation.membership import Membership
from fedaccord.federation.round import play_round
from fedaccord.labels.views import Candidates
from fedaccord.messages.message import Failure, to_bytes
from fedaccord.methods.private_labels.recipe import private_labels
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.session import open_server
from small_federation import SPACE, exact, federation, site

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"rounds": 3, "lr": 0.1, "batch": 4}
LOCAL = ["fedavg", "fedprox", "scaffold"]
AGGREGATION = ["mean", "median", "trimmed-mean", "krum", "multi-krum"]
OTHERS = [("dog", "cow"), ("cow",), ("cat", "cow")]
OWN = {"encoder.0.weight": (5, 4), "encoder.0.bias": (5,), "head.weight": (2, 5), "head.bias": (2,)}


def tapped(others, rounds, first=None, memberships=None, spoil=None, **settings):
    """Five sites, as few as Krum can do with; four have the same other labels. Returns the briefs to the first."""
    rest = [site(name, view=exact(others), seed=5 + number) for number, name in enumerate("bcde")]
    recipe = private_labels(PrivateLabelsSettings(**{**QUICK, "hostile": 1, **settings}))
    server = federation(recipe, [first or site("a", view=exact(["cat", "dog"])), *rest])
    server.unlabelled = site("server", samples=30).train.x
    if memberships:
        server.cards.clear()
        server.engine.asked.clear()
        server.memberships = memberships
        server.join()
    server.engine.spoil = spoil or {}
    for _ in range(rounds):
        play_round(server)
    assert bool(server.dropped) == bool(spoil)
    return [(task, brief) for task, name, brief in server.engine.asked if name == "a"]


def first_training(briefs):
    return to_bytes(next(brief for task, brief in briefs if task == "train"))


def tells_of_its_own_alone(briefs, sent=("model",), shapes=OWN):
    expected = {(f"{what}/{name}", shape) for what in sent for name, shape in shapes.items()}
    for task, brief in briefs:
        found = {(name, tuple(tensor.shape)) for name, tensor in brief.tensors.items()}
        assert found == (set() if task == "join" else expected)
        assert brief.words == {"run": "this-run"}
        assert brief.numbers.keys() == {"round"}
        assert b"cow" not in to_bytes(brief)


def unsure():
    """A site whose samples have candidate sets inside the labels it knows; one set excludes nothing."""
    some = Candidates(SPACE, ["cat", "dog"])
    made = site("a", view=some)
    target = made.train.target & some.informs()
    target[0] = some.informs()
    return dataclasses.replace(made, train=dataclasses.replace(made.train, target=target))


@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("aggregation", AGGREGATION)
class TestEveryWayToTrainAndToCombine:
    def test_another_sites_labels_do_not_change_a_byte_of_the_first_brief(self, local, aggregation):
        first = {first_training(tapped(others, 1, local=local, aggregation=aggregation)) for others in OTHERS}
        assert len(first) == 1

    @pytest.mark.parametrize("others", OTHERS)
    def test_no_shape_name_word_or_number_tells_of_another_label(self, others, local, aggregation):
        briefs = tapped(others, 2, local=local, aggregation=aggregation)
        assert [task for task, _ in briefs] == ["join", "train", "evaluate", "train", "evaluate"]
        tells_of_its_own_alone(briefs, ("model", "control") if local == "scaffold" else ("model",))


def greedy(reply):
    reply.tensors["model/head.weight"] = torch.zeros(3, 5)
    return reply


def failing(reply):
    return Failure("b", "'cow' is not one of the labels", "Traceback: cow")


CASES = {
    "tuning by squares": {"tuning": "mse"},
    "tuning by pairs": {"tuning": "pairwise"},
    "balance at the end": {"tuning": "balance"},
    "some sites in each round": {"participation": 2},
    "sites that come and go": {"memberships": {"b": Membership(2), "c": Membership(1, 3), "d": Membership(3)}},
    "one that leaves itself": {"memberships": {"a": Membership(1, 3)}},
    "one that joins late": {"memberships": {"a": Membership(2)}},
    "candidate sets": {"first": unsure()},
    "another site's reply is refused": {"spoil": {("train", "b"): greedy}},
    "another site fails with a word too many": {"spoil": {("train", "b"): failing}},
    "its own reply is refused": {"spoil": {("train", "a"): greedy}},
}


class TestWhateverElseHappens:
    @pytest.mark.parametrize("case", CASES)
    def test_no_message_tells_of_another_label(self, case):
        for others in OTHERS:
            briefs = tapped(others, 3, **CASES[case])
            assert {task for task, _ in briefs} == {"join", "train", "evaluate"}
            tells_of_its_own_alone(briefs)

    @pytest.mark.parametrize("case", [case for case in CASES if case != "one that joins late"])
    def test_the_first_brief_is_the_same(self, case):
        assert len({first_training(tapped(others, 3, **CASES[case])) for others in OTHERS}) == 1

    def test_dense_rows_tell_how_many_labels_there_are_and_not_whose(self):
        full = OWN | {"head.weight": (3, 5), "head.bias": (3,)}
        dense = [tapped(others, 2, rows="dense") for others in OTHERS]
        for briefs in dense:
            tells_of_its_own_alone(briefs, shapes=full)
        assert len({first_training(briefs) for briefs in dense}) == 1


class TestNewLabels:
    """Another site that brings labels nobody else has: there are more rows, and none of those that a site is sent."""

    OTHERS = [["dog"], ["dog", "eel"], ["ant", "bee", "dog"], ["ant", "cow", "emu"]]

    def opened(self, folder, others, **settings):
        for name, labels in (("a", ["cat", "dog"]), ("b", others)):
            cells = "".join(f"{i % 5},{i % 3},{label}\n" for i, label in enumerate(labels * 6))
            (folder / f"{name}.csv").write_text("u,v,kind\n" + cells)
        sites = [{"name": n, "data": f"{n}.csv", "label": "kind", "view": {"known": "own"}} for n in "ab"]
        method = {"name": "private-labels", "rounds": 1, **settings}
        table = {"sites": sites, "model": {"hidden": [4]}, "run": {"workers": 0}, "method": method}
        experiment = check_experiment(table)
        data = load_federation(experiment, folder)
        assert len(data.space) == len({"cat", "dog", *others})
        return open_server(experiment, data, "this-run")

    def first_brief(self, folder, others, **settings):
        sent = []
        with self.opened(folder, others, **settings) as server:
            stream = server.engine.stream

            def tap(task, briefs, *how):
                sent.append(to_bytes(briefs["a"]))
                return stream(task, briefs, *how)

            server.engine.stream = tap
            play_round(server, evaluated=False)
        (brief,) = sent
        return brief

    @pytest.mark.parametrize("local", LOCAL)
    def test_the_first_brief_is_the_same_byte_for_byte(self, tmp_path, local):
        assert len({self.first_brief(tmp_path, others, local=local) for others in self.OTHERS}) == 1

    def test_dense_rows_begin_from_the_same_model(self, tmp_path):
        """The two ways to send differ in what travels only."""
        with self.opened(tmp_path, ["dog", "eel"], rows="known") as known:
            model = known.state.model.clone()
        with self.opened(tmp_path, ["dog", "eel"], rows="dense") as dense:
            assert torch.equal(dense.state.model, model)

    def test_rows_begin_as_linear_layers_do(self, tmp_path):
        with self.opened(tmp_path, [f"label {n}" for n in range(3000)]) as server:
            head = server.layout.named(server.state.model)
        for drawn in (head["head.weight"], head["head.bias"]):
            assert float(drawn.abs().max()) <= 0.5  # one over the root of the four features
            assert float(drawn.mean()) == pytest.approx(0, abs=0.02)
            assert float(drawn.std()) == pytest.approx(0.5 / 3**0.5, abs=0.02)
