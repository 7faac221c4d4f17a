"""The experts of a site: how they are fitted, weighed, mixed and stored, and what the server learns of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.federation.branch import BRANCH, memory_after, memory_in, with_branch
from fedaccord.federation.experts import stored_experts, usual_weights
from fedaccord.federation.host import PERSONAL
from fedaccord.federation.round import evaluate, play_round
from fedaccord.labels.views import Candidates, Tags, Unlabelled
from fedaccord.labels.views.likelihoods import PRIOR
from fedaccord.messages.message import Failure, Message
from fedaccord.methods.accord.objective import WEIGHING, rows_to_weigh
from fedaccord.methods.accord.personal import FIT, PRIOR_ROWS, WEIGH, expert_weights, fit_head, simplex_grid
from fedaccord.methods.accord.recipe import accord
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.without_federation.recipe import local
from fedaccord.methods.without_federation.settings import LocalSettings
from fedaccord.models.layout import load_tensors
from fedaccord.models.mixture import Mixture, mix_logits
from fedaccord.models.network import predict_logits
from small_federation import (
    SPACE,
    ScriptedEngine,
    TogetherEngine,
    exact,
    federation,
    pets_or_cattle,
    site,
    small_network,
    work_for,
)

pytestmark = pytest.mark.usefixtures("one_thread")

WORK = {"epochs": 2, "batch": 4, "lr": 0.1, "schedule": "constant"}
EVERY_VIEW = {
    "all": exact(),
    "some": exact(["cat", "dog"]),
    "sets": Candidates(SPACE),
    "coarse": pets_or_cattle(),
}


def concluded(sites, rounds=3, **changes):
    server = federation(accord(AccordSettings(**WORK | changes)), sites)
    for _ in range(rounds):
        play_round(server)
    further = [record for step in server.recipe.conclude for record in step(server)]
    return server, further


def experts_of(server):
    return {name: stored_experts(memory) for name, memory in server.engine.memories().items()}


# ------------------------------------------------------------------------------------------------ the mixture


def test_a_mixture_averages_probabilities():
    logits = torch.tensor([[[0.8, 0.2]], [[0.4, 0.6]]]).log()
    mixed = mix_logits(logits, torch.tensor([0.25, 0.75]), None, exclusive=True)
    torch.testing.assert_close(torch.softmax(mixed, -1), torch.tensor([[0.5, 0.5]]))


def test_a_mixture_of_tags_averages_the_probability_of_each_tag():
    logits = torch.logit(torch.tensor([[[0.9, 0.2]], [[0.5, 0.4]]]))
    mixed = mix_logits(logits, torch.tensor([0.5, 0.5]), None, exclusive=False)
    torch.testing.assert_close(torch.sigmoid(mixed), torch.tensor([[0.7, 0.3]]))


@given(st.booleans(), st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_offset_of_a_view_is_added_once(exclusive, weights, seed):
    random = torch.Generator().manual_seed(seed)
    logits, offset = torch.randn(3, 5, 4, generator=random), torch.randn(4, generator=random)
    w = torch.tensor(weights) / sum(weights)
    answer = (lambda z: torch.softmax(z, -1)) if exclusive else torch.sigmoid
    expected = (w[:, None, None] * answer(logits + offset)).sum(0)
    torch.testing.assert_close(answer(mix_logits(logits, w, offset, exclusive) + offset), expected)


def test_labels_that_a_site_does_not_know_stay_impossible_and_finite():
    offset = torch.tensor([0.0, 0.0, float("-inf")])
    mixed = mix_logits(torch.randn(2, 4, 3), torch.tensor([0.5, 0.5]), offset, exclusive=True)
    assert torch.isfinite(mixed).all()
    assert (torch.softmax(mixed + offset, -1)[:, 2] == 0).all()


def test_an_expert_without_weight_is_not_computed():
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise AssertionError

    linear = torch.nn.Linear(2, 3)
    mixture = Mixture([linear, Broken()], torch.tensor([1.0, 0.0]), None, exclusive=True)
    x = torch.randn(4, 2)
    torch.testing.assert_close(torch.softmax(mixture(x), -1), torch.softmax(linear(x), -1))


# ------------------------------------------------------------------------------------------------ the weights


def test_the_grid_has_every_point_of_the_simplex_once():
    grid = simplex_grid(3, 5)
    assert len(grid) == 21 == len({tuple(point) for point in grid.tolist()})
    torch.testing.assert_close(grid.sum(1), torch.ones(21))


def sure_of(label, rows, right=9.0):
    logits = torch.zeros(rows, len(SPACE))
    logits[:, label] = right
    return logits


def test_with_many_rows_the_right_expert_has_nearly_all_weight_and_with_few_it_has_not():
    view = exact()
    found = {}
    for rows in (2, 1000):
        logits = torch.stack([sure_of(1, rows), sure_of(0, rows), sure_of(2, rows)])
        found[rows] = expert_weights(view, logits, torch.zeros(rows, dtype=torch.int64))
        assert float(found[rows].sum()) == pytest.approx(1)
    assert float(found[1000][1]) > 0.95
    assert 0.4 < float(found[2][1]) <= (2 + 0.4 * PRIOR_ROWS) / (2 + PRIOR_ROWS) + 1e-6


def test_experts_that_answer_alike_have_weights_between_equal_and_usual_ones():
    logits = torch.randn(1, 30, len(SPACE)).expand(3, -1, -1)
    weights = expert_weights(exact(), logits, torch.zeros(30, dtype=torch.int64))
    torch.testing.assert_close(weights, 0.6 * torch.full((3,), 1 / 3) + 0.4 * usual_weights())  # 30 rows against 20


def test_logits_that_are_not_finite_leave_the_usual_weights():
    logits = torch.full((3, 9, len(SPACE)), float("nan"))
    assert torch.equal(expert_weights(exact(), logits, torch.zeros(9, dtype=torch.int64)), usual_weights())


# ------------------------------------------------------------------------------------------------ the own head


@pytest.mark.parametrize("pull", [0.03, 3.0])
def test_an_own_head_fits_the_site_better_and_stays_near_the_shared_one(pull):
    random = torch.Generator().manual_seed(0)
    features, target = torch.randn(60, 4, generator=random), torch.randint(0, 3, (60,), generator=random)
    shared = torch.nn.Linear(4, len(SPACE)).requires_grad_(False)
    own = fit_head(exact(), features, target, shared, pull)
    before = exact().nll(shared(features), target).mean()
    after = exact().nll(torch.nn.functional.linear(features, own["weight"], own["bias"]), target).mean()
    distance = sum(float((own[name] - value).square().sum()) for name, value in shared.named_parameters())
    assert float(after) < float(before)
    assert 0.5 * pull * distance <= float(before - after)


# ------------------------------------------------------------------------------------------------ the run


def test_every_kind_of_site_ends_with_three_experts_and_the_shared_model_stays():
    sites = [site(name, samples=30, test=20, view=view) for name, view in EVERY_VIEW.items()]
    server, further = concluded([*sites, site("silent", samples=30, test=20, view=Unlabelled(SPACE))])
    shared = server.state.model.clone()
    assert server.dropped == []
    # 2 rounds of the shared model and of both ways alone without the rows apart, then 3 alone with all rows
    assert [(step.done, step.total) for step in further] == [(done, 9) for done in range(1, 10)]
    assert [step.record.round for step in further if step.record] == [1, 2]
    found = experts_of(server)
    assert found.pop("silent", None) is None
    assert found.keys() == EVERY_VIEW.keys()
    for experts in found.values():
        assert experts.rows == 6
        assert experts.way in ("plain", "regularised")
        assert float(experts.weights.sum()) == pytest.approx(1)
    assert torch.equal(server.state.model, shared)
    assert server.state.round == 3
    assert evaluate(server).sites.keys() == {*EVERY_VIEW, "silent"}


def test_the_model_of_the_run_does_not_depend_on_the_experts():
    sites = [site(name, samples=30, view=view) for name, view in EVERY_VIEW.items()]
    models = [concluded(sites, personal=personal)[0].state.model for personal in ("mixture", "cheap", "off")]
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


def test_cheap_experts_have_the_usual_weights_and_need_no_second_model_of_all_sites():
    server, further = concluded([site("a", samples=30), site("b", samples=30)], personal="cheap")
    assert [step.record for step in further] == [None, None]  # half of the run's rounds, alone
    for experts in experts_of(server).values():
        assert torch.equal(experts.weights, usual_weights())
        assert experts.rows == 0


def test_off_leaves_nothing_at_the_sites():
    server, further = concluded([site("a", samples=30)], personal="off")
    assert further == []
    assert server.engine.memories() == {}


@pytest.mark.parametrize("samples", [1, 3])
def test_a_site_with_too_few_rows_to_keep_some_apart_has_the_usual_weights(samples):
    server, _ = concluded([site("tiny", samples=samples), site("b", samples=30)])
    assert experts_of(server)["tiny"].rows == 0
    assert torch.equal(experts_of(server)["tiny"].weights, usual_weights())


def test_tags_are_mixed_too():
    server, _ = concluded([site("a", samples=30, test=20, view=Tags(SPACE)), site("b", samples=30, view=Tags(SPACE))])
    assert evaluate(server).sites["a"]["map"] > 0


def test_nothing_about_the_experts_leaves_a_site():
    server, _ = concluded([site("a", samples=30), site("b", samples=30)])
    last = server.engine.replies.items()  # the last training is that of the models alone
    replies = [reply for (task, _), reply in last if task in ("train", WEIGH, FIT)]
    assert len(replies) == 6
    assert all(not reply.tensors and reply.numbers.keys() == {"round"} for reply in replies)


def test_rows_kept_apart_inform_no_model_that_the_experts_are_weighed_by():
    found = []
    for value in (0.0, 1.0):  # the rows are drawn by class, so the inputs change and not the labels
        sites = [site("a", samples=30, view=Candidates(SPACE)), site("b", samples=30)]
        server = federation(accord(AccordSettings(**WORK)), sites)
        apart = rows_to_weigh(work_for(sites[0], small_network(), seed=server.seed))[1]
        assert len(apart) == 6
        sites[0].train.x[apart] = value
        for _ in range(3):
            play_round(server)
        for step in server.recipe.conclude:
            list(step(server))
        (brief,) = [brief for task, name, brief in server.engine.asked if (task, name) == (WEIGH, "a")]
        found.append(brief.select(WEIGHING))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_branches_leave_nothing_in_the_memory():
    server, _ = concluded([site("a", samples=30), site("b", samples=30)])
    names = [name for memory in server.engine.memories().values() for name in (*memory.tensors, *memory.words)]
    assert not any(BRANCH in name for name in names)


@pytest.mark.parametrize("regularise", [True, False])
def test_the_model_alone_is_that_of_the_method_local(regularise):
    sites = [site("a", samples=5), site("b", samples=30)]  # too few rows at the first site to choose a way
    ours, _ = concluded(sites, regularise=regularise)
    theirs = federation(local(LocalSettings(**WORK, regularise=regularise)), sites)
    for _ in range(3):
        play_round(theirs)
    alone, x = dict(experts_of(ours)["a"].alone), sites[0].train.x
    alone["head.bias"] = alone["head.bias"] + ours.engine.memories()["a"].tensors[PRIOR]  # as the mixture does
    expected, network = theirs.engine.memories()["a"].select(PERSONAL), small_network()
    answers = []
    for tensors in (alone, expected):
        load_tensors(network, tensors)
        answers.append(torch.softmax(predict_logits(network, x), -1))
    torch.testing.assert_close(*answers)
    assert experts_of(ours)["a"].way == ("regularised" if regularise else "plain")


def test_sites_that_train_as_one_cohort_end_with_the_same_experts():
    sites = [
        site(name, samples=size, view=view)
        for size, (name, view) in zip((30, 12, 25, 40), EVERY_VIEW.items(), strict=True)
    ]
    found = []
    for engine in (ScriptedEngine, TogetherEngine):
        server = federation(accord(AccordSettings(**WORK)), sites)
        server.engine = engine(server.engine.host)
        for _ in range(3):
            play_round(server)
        for step in server.recipe.conclude:
            list(step(server))
        found.append(experts_of(server))
    for name, one in found[0].items():
        other = found[1][name]
        assert (one.way, one.rows) == (other.way, other.rows)
        torch.testing.assert_close(one.weights, other.weights, rtol=1e-3, atol=1e-3)
        for key, tensor in one.alone.items():
            torch.testing.assert_close(tensor, other.alone[key], rtol=1e-4, atol=1e-4)


class LosingEngine(ScriptedEngine):
    """Loses sites: they do nothing, and nothing arrives."""

    lost = ()

    def ask(self, task, briefs, deadline=None):
        reached = {name: brief for name, brief in briefs.items() if name not in self.lost}
        lost = {name: Failure(name, task, "lost") for name in briefs if name in self.lost}
        return super().ask(task, reached, deadline) | lost


def concluded_with_losses(lost_after, back_after=99):
    sites = [site("a", samples=30, test=9), site("b", samples=30, test=9)]
    server = federation(accord(AccordSettings(**WORK)), sites)
    server.engine = LosingEngine(server.engine.host)
    for _ in range(3):
        play_round(server)
    for progress in (step for conclusion in server.recipe.conclude for step in conclusion(server)):
        server.engine.lost = ("b",) if lost_after <= progress.done < back_after else ()
    server.engine.lost = ()
    return server


def test_a_site_that_is_lost_while_it_trains_alone_ends_with_the_shared_model():
    server = concluded_with_losses(lost_after=3)
    assert {drop.site for drop in server.dropped} == {"b"}
    assert experts_of(server).get("b") is None
    assert experts_of(server)["a"].rows == 6
    assert evaluate(server).sites.keys() == {"a", "b"}


def test_a_site_that_misses_one_further_round_is_asked_again():
    server = concluded_with_losses(lost_after=7, back_after=8)
    assert [(drop.site, drop.task) for drop in server.dropped] == [("b", "train")]
    assert experts_of(server)["b"].rows == 6


def test_a_branch_has_a_memory_of_its_own():
    brief = Message(words={BRANCH: WEIGHING})
    memory = Message({"prior": torch.ones(2)}, {"n": 1})
    assert memory_in(brief, memory).is_empty()
    after = memory_after(brief, memory, Message({"prior": torch.zeros(2)}))
    assert torch.equal(after.tensors["prior"], torch.ones(2))
    assert torch.equal(memory_in(brief, after).tensors["prior"], torch.zeros(2))
    assert memory_in(Message(), after) is after
    assert with_branch(after, WEIGHING, Message()).tensors.keys() == {"prior"}


def test_a_site_whose_shared_model_is_useless_answers_by_itself():
    # Two sites whose labels contradict each other on the same inputs: the shared model cannot serve both.
    first, second = site("a", samples=200, test=60), site("b", samples=200, test=60)
    for part in (second.train, second.test):
        part.target[:] = (part.target + 1) % len(SPACE)
        part.truth[:] = (part.truth + 1) % len(SPACE)
    shared, _ = concluded([first, second], rounds=5, personal="off", prior="off")
    mixed, _ = concluded([first, second], rounds=5, prior="off")
    before, after = (evaluate(server).over_sites()["mean"]["accuracy"] for server in (shared, mixed))
    assert after > max(0.9, before + 0.2)
    assert all(float(experts.weights[0]) < 0.25 for experts in experts_of(mixed).values())
