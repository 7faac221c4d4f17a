"""accord at sites whose coarse names nobody explains: the correspondence by EM over all of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedaccord
from command_line import blobs
from fedaccord.errors import ConfigError
from fedaccord.federation.branch import BRANCH
from fedaccord.federation.joining import read_card
from fedaccord.federation.pooled_correspondence import COUNT, COUNTS
from fedaccord.federation.round import play_round
from fedaccord.federation.state import RunState, SiteCard
from fedaccord.labels.correspondence import CORRESPONDENCE, uniform_matrix
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Coarse, Exact
from fedaccord.messages.checks import Problem
from fedaccord.messages.message import Message
from fedaccord.methods.accord.objective import WEIGHING, rows_to_weigh
from fedaccord.methods.accord.parts import parts_of
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.accord.unexplained_names import count_names
from fedaccord.methods.registry import make_recipe
from fedaccord.recording import conclude
from fedaccord.runs.records import scopes
from mixed_federation import horses_and_others, samples
from small_federation import SPACE, copied, federation, pets_or_cattle, site, small_network, whole_and_resumed, work_for

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = {"rounds": 4, "schedule": "constant", "lr": 0.1, "batch": 8, "epochs": 2, "personal": "off"}
TRUTH = pets_or_cattle().matrix


def unexplained(name, samples=40):
    """Return a site with pets and cattle whose view does not say which classes these are."""
    data = site(name, samples=samples, view=pets_or_cattle(), test=30)
    return replace(data, view=Coarse(SPACE, names=["pet", "cattle"]))


def started(sites, labelled=True, **settings):
    server = federation(make_recipe("accord", {**QUICK, **settings}), sites, test=samples(60, seed=6))
    server.labelled = samples() if labelled else None
    server.ready()
    return server


def played(sites, labelled=True, rounds=6, **settings):
    server = started(sites, labelled, **settings)
    return server, [play_round(server) for _ in range(rounds)]


def matrix_at(server, name):
    return server.engine.memories()[name].tensors[CORRESPONDENCE]


@pytest.mark.parametrize(
    ("others", "labelled"), [([], True), ([site("e", samples=40)], False), ([site("e", samples=40)], True)]
)
def test_what_the_names_stand_for_is_learned(others, labelled):
    server, records = played([unexplained("a"), unexplained("b"), *others], labelled)
    for name in "ab":
        assert (matrix_at(server, name) - TRUTH).abs().max() < 0.1
        assert records[-1].evaluation.sites[name]["accuracy"] > 0.9
    assert torch.equal(matrix_at(server, "a"), matrix_at(server, "b"))
    assert conclude(server, scopes(records[-1].evaluation))["global"]["accuracy"] > 0.9
    assert records[-1].dropped == []


@pytest.mark.parametrize("exact_samples", [12, 30])
def test_labels_of_known_meaning_are_learned_first_because_a_wrong_meaning_confirms_itself(exact_samples):
    sites = [site("e", samples=exact_samples), unexplained("a", 80), unexplained("b", 80)]
    server = started(sites, False, **QUICK | {"rounds": 20})
    records = [play_round(server) for _ in range(20)]
    assert [record.replied for record in records] == [1] * 5 + [3] * 15
    assert (matrix_at(server, "a") - TRUTH).abs().max() < 0.1
    assert records[-1].evaluation.global_["accuracy"] > 0.9


def test_before_the_first_estimate_such_sites_are_silent_and_not_judged_in_their_names():
    server, records = played([unexplained("a"), site("e", samples=40)], False, rounds=2)
    assert [record.replied for record in records] == [1, 2]
    assert records[0].asked == ["a", "e"]
    assert records[0].dropped == []
    assert "accuracy" not in records[0].evaluation.sites["a"]
    assert "accuracy" in records[1].evaluation.sites["a"]
    assert [task for task, _, _ in server.engine.asked].count(COUNT) == 5


def test_sites_that_declare_a_correspondence_keep_it():
    declared = site("d", samples=40, view=horses_and_others())
    server, _ = played([unexplained("a"), declared])
    asked = [(task, brief) for task, name, brief in server.engine.asked if name == "d"]
    assert COUNT not in [task for task, _ in asked]
    assert not any(CORRESPONDENCE in brief.tensors for _, brief in asked)
    assert "d" not in server.engine.memories()
    view = server.recipe.objective.site_view(declared.view, Message({CORRESPONDENCE: TRUTH}), Message())
    assert view is declared.view


def test_a_federation_that_explains_everything_is_never_asked_to_count():
    server, _ = played([site("d", samples=40, view=pets_or_cattle()), site("e")], rounds=2)
    assert {task for task, _, _ in server.engine.asked} == {"join", "train", "evaluate"}


def test_such_a_site_informs_every_label_because_its_loss_moves_every_row():
    server = started([unexplained("a")])
    assert server.cards["a"].informs.all()
    assert server.cards["a"].unexplained
    other = federation(make_recipe("fedavg", {}), [unexplained("a"), site("e")])
    assert not other.cards["a"].informs.any()


def test_a_resumed_run_ends_with_the_same_bits():
    whole, resumed = whole_and_resumed(lambda: started([unexplained("a"), unexplained("b"), site("e", samples=20)]))
    assert torch.equal(whole.state.model, resumed.state.model)
    assert torch.equal(matrix_at(whole, "a"), matrix_at(resumed, "a"))
    assert resumed.cards["a"].unexplained
    assert not resumed.cards["e"].unexplained


def test_where_nothing_gives_a_name_its_meaning_the_run_is_refused():
    with pytest.raises(ConfigError, match="nothing says what the names of the sites stand for"):
        started([unexplained("a"), unexplained("b")], labelled=False)


def test_the_parts_name_the_estimate():
    said = "2 sites with names of unknown meaning: correspondence by EM over all sites"
    server = started([unexplained("a"), unexplained("b"), site("e")])
    assert said in parts_of(AccordSettings(), server)
    assert not any("meaning" in part for part in parts_of(AccordSettings(), started([site("e")])))


def test_with_a_robust_rule_one_hostile_site_does_not_decide_the_meaning():
    sites = [unexplained(name) for name in "abcd"]
    server = started(sites, aggregation="median")

    def hostile(reply):
        reply.tensors[COUNTS] = reply.tensors[COUNTS].flip(0)
        return reply

    server.engine.spoil[COUNT, "d"] = hostile
    for _ in range(6):
        play_round(server)
    assert (matrix_at(server, "a") - TRUTH).abs().max() < 0.3


@pytest.mark.parametrize("personal", ["mixture", "cheap"])
def test_the_experts_answer_in_the_sites_own_names(personal):
    server, _ = played([unexplained("a"), unexplained("b")], personal=personal)
    conclude(server, scopes(None))
    assert all("experts/weights" in memory.tensors for memory in server.engine.memories().values())
    assert not any(name.startswith(BRANCH) for name in server.engine.memories()["a"].tensors)


def test_rows_kept_apart_do_not_inform_the_branch():
    data = unexplained("a")
    brief = Message({CORRESPONDENCE: uniform_matrix(2, 3)}, words={BRANCH: WEIGHING})
    work = work_for(data, small_network(), brief=brief)
    kept, apart = rows_to_weigh(work)
    assert len(apart)
    assert float(count_names(work).tensors[COUNTS].sum()) == pytest.approx(len(kept))
    whole = work_for(data, small_network(), brief=replace(brief, words={}))
    assert float(count_names(whole).tensors[COUNTS].sum()) == pytest.approx(len(kept) + len(apart))


@pytest.mark.parametrize(
    ("words", "reason"),
    [({"meaning": "unknown"}, "only the meaning"), ({"meaning": "x" * 99, "names": f"2:{'0' * 16}"}, "only the mean")],
)
def test_a_card_with_a_wrong_word_about_its_names_is_a_problem(words, reason):
    reply = Message({"informs": torch.ones(3, dtype=torch.bool)}, {"samples": 4}, {"view": "coarse", **words})
    problem = read_card("a", reply, 3)
    assert isinstance(problem, Problem)
    assert reason in problem.reason
    assert len(problem.reason) < 120


def test_a_remote_site_must_explain_its_names_if_the_server_expects_it():
    card = SiteCard("a", 4, "coarse", torch.ones(3, dtype=torch.bool), f"2:{'0' * 16}", True)
    words = {"view": "coarse", "names": card.names, "meaning": "unknown"}
    reply = Message({"informs": card.informs}, {"samples": 4}, words)
    assert read_card("a", reply, 3, card).is_same(card)
    assert isinstance(read_card("a", reply, 3, replace(card, unexplained=False)), Problem)
    state = RunState(torch.zeros(1), {}, cards={"a": card})
    assert RunState.from_message(copied(state.to_message())).cards["a"].is_same(card)


def test_from_python_with_predictions_in_the_sites_own_names():
    space = LabelSpace(["a", "b", "c"])
    x, y = blobs(240)
    names, classes = np.array(["ab", "ab", "c"]), np.array(space.names)
    coarse = fedaccord.Site("coarse", x[:120], names[y[:120]], Coarse(space, names=["ab", "c"]))
    fine = fedaccord.Site("fine", x[120:200], classes[y[120:200]], Exact(space))
    test = (x[200:], list(classes[y[200:]]))
    result = fedaccord.Federation([coarse, fine], test=test).train("accord", rounds=5, lr=0.1)
    assert result.summary["final"]["global"]["accuracy"] > 0.9
    view = result.trained.site("coarse").view
    assert view.answers == ("ab", "c")
    assert view.matrix[0, :2].min() > 0.7
    assert view.matrix[1, 2] > 0.7
    answers = result.trained.predict(torch.from_numpy(x[200:]).float(), "coarse", "own")
    right = answers.argmax(-1).numpy() == (names[y[200:]] == "c")
    assert right.mean() > 0.9
