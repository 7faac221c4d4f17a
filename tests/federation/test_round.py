"""One round: who is asked, what happens in which beat, and what is written down about it."""

import pytest
import torch

from fedaccord.aggregation.mean import mean
from fedaccord.errors import ConfigError, FedAccordError
from fedaccord.federation.recipe import Exchange, Recipe
from fedaccord.federation.round import play_round
from fedaccord.labels.views import Unlabelled
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Failure, Message
from fedaccord.messages.names import POOL
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.training.objectives import ViewLikelihood
from fedaccord.training.settings import TrainingSettings
from small_federation import SPACE, exact, federation, pets_or_cattle, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")

BEATS = ["prepare", "brief", "train", "admit", "combine", "refine", "evaluate"]


def settings(**changes):
    return TrainingSettings(**({"steps": 2, "batch": 4} | changes))


def plain(**changes):
    return fedavg(ClassicSettings(**({"steps": 2, "batch": 4} | changes)))


def sites(number=10):
    return [site(f"site-{i}") for i in range(number)]


# Who is asked


def asked(server, rounds=1):
    return [play_round(server, evaluated=False).asked for _ in range(rounds)]


@pytest.mark.parametrize(
    ("participation", "number"), [(1.0, 10), (0.3, 3), (0.25, 3), (0.01, 1), (1, 1), (4, 4), (10, 10), (99, 10)]
)
def test_a_fraction_or_a_number_of_sites_takes_part(participation, number):
    server = federation(plain(participation=participation), sites())
    (drawn,) = asked(server)
    assert len(set(drawn)) == len(drawn) == number
    assert drawn == sorted(drawn)
    assert sorted({name for task, name, _ in server.engine.asked if task == "train"}) == drawn


def test_a_fraction_is_not_rounded_up_because_of_floating_point():
    # 0.55 * 100 is 55.00000000000001 in floating point.
    server = federation(plain(participation=0.55), [site(f"{i:03}", samples=1, test=0) for i in range(100)])
    assert len(server.sample_sites()) == 55


def test_the_draw_is_seeded_and_changes_by_round():
    first = asked(federation(plain(participation=3), sites(), seed=1), rounds=6)
    again = asked(federation(plain(participation=3), sites(), seed=1), rounds=6)
    other = asked(federation(plain(participation=3), sites(), seed=2), rounds=6)
    assert first == again
    assert first != other
    assert len({tuple(drawn) for drawn in first}) > 3


def test_a_resumed_run_draws_what_it_would_have_drawn():
    whole = federation(plain(participation=3), sites())
    expected = asked(whole, rounds=4)[2:]
    resumed = federation(plain(participation=3), sites())
    resumed.state.round = 2
    assert asked(resumed, rounds=2) == expected


def mixed():
    return [
        site("clinic", view=exact()),
        site("hospital", view=exact(["cat", "dog"])),
        site("registry", view=pets_or_cattle()),
        site("archive", view=Unlabelled(SPACE)),
        site("newcomer", samples=0),
    ]


def test_sites_without_samples_or_labels_are_not_asked_to_train():
    server = federation(plain(), mixed())
    assert asked(server) == [["clinic", "hospital", "registry"]]
    assert set(server.cards) == {"clinic", "hospital", "registry", "archive", "newcomer"}


def test_only_exactly_labelled_sites_train_if_so_asked():
    assert asked(federation(plain(sites="exact"), mixed())) == [["clinic", "hospital"]]


def test_a_list_of_sites_is_taken_as_it_is_meant():
    names = ["registry", "clinic", "archive", "clinic"]
    assert asked(federation(plain(sites=names), mixed())) == [["clinic", "registry"]]


def test_an_unknown_site_in_the_list_is_an_error_that_says_the_closest():
    server = federation(plain(sites=["clinic", "hopsital"]), mixed())
    with pytest.raises(ConfigError, match=r"method.sites: there is no site 'hopsital'; did you mean 'hospital'\?"):
        server.trainers()


@pytest.mark.parametrize("names", [["archive"], ["newcomer"]])
def test_a_method_under_which_no_site_can_train_is_an_error(names):
    with pytest.raises(ConfigError, match="no site that may train has labelled samples"):
        federation(plain(sites=names), mixed()).trainers()


def test_a_pool_that_did_not_join_is_an_error_of_the_same_kind():
    pooled = Recipe(settings(), mean, trains="pool of truth")
    with pytest.raises(ConfigError, match="no site that may train has labelled samples"):
        federation(pooled, mixed()).trainers()


def test_all_sites_are_judged_whether_they_trained_or_not():
    record = play_round(federation(plain(sites=["clinic"]), mixed()))
    assert record.asked == ["clinic"]
    assert set(record.evaluation.sites) == {"clinic", "hospital", "registry", "archive", "newcomer"}


def test_the_pool_is_not_a_site_to_judge():
    pooled = Recipe(settings(), mean, trains="pool of truth")
    record = play_round(federation(pooled, [site("a"), site(POOL)]))
    assert record.asked == [POOL]
    assert list(record.evaluation.sites) == ["a"]


def test_the_pool_is_not_a_site_to_train_otherwise():
    assert asked(federation(plain(), [site("a"), site(POOL)])) == [["a"]]


# What happens in the beats


def test_prepare_and_refine_run_in_order_around_the_sites_work():
    diary = []

    def step(name):
        return lambda server: diary.append((name, server.state.round, len(server.engine.asked)))

    recipe = Recipe(settings(), mean, prepare=(step("first"), step("second")), refine=(step("third"), step("fourth")))
    server = federation(recipe, sites(2))
    joined = len(server.engine.asked)
    play_round(server, evaluated=False)
    assert diary == [
        ("first", 0, joined),
        ("second", 0, joined),
        ("third", 0, joined + 2),
        ("fourth", 0, joined + 2),
    ]


def test_what_prepare_changes_is_what_the_sites_are_sent_and_what_refine_changes_is_kept():
    def start_from_ones(server):
        server.state.model = torch.ones_like(server.state.model)

    def halve(server):
        server.state.model = server.state.model / 2

    recipe = Recipe(settings(lr=1e-30), mean, prepare=(start_from_ones,), refine=(halve,))
    server = federation(recipe, sites(2))
    play_round(server)
    sent = next(brief for task, _, brief in server.engine.asked if task == "train")
    assert (sent.tensors["model/head.weight"] == 1).all()
    torch.testing.assert_close(server.state.model, torch.full_like(server.state.model, 0.5))


def test_a_step_may_ask_the_sites_a_question_of_its_own():
    def count(work):
        return Message({"counts": torch.bincount(work.site.train.target, minlength=3)}, {"asked": work.round})

    answers = {}

    def ask_for_counts(server):
        briefs = {name: Message(words={"about": name}) for name in ("b", "c")}
        answers.update(server.ask("count", briefs))

    recipe = Recipe(settings(), mean, prepare=(ask_for_counts,), tasks={"count": count})
    data = [site(name) for name in "abc"]
    server = federation(recipe, data)
    server.engine.spoil["count", "c"] = lambda reply: Failure("c", "count", "no time")
    record = play_round(server)
    assert list(answers) == ["b"]
    assert torch.equal(answers["b"].tensors["counts"], torch.bincount(data[1].train.target, minlength=3))
    assert answers["b"].numbers["asked"] == 1
    assert [(d.site, d.task, d.reason) for d in record.dropped] == [("c", "count", "no time")]
    assert record.replied == 3


def test_a_recipe_may_tell_every_site_something_else_and_ask_something_back():
    class Obeys(ViewLikelihood):
        def finish(self, work, reply):
            reply.tensors["heard"] = work.brief.tensors["secret"] * 2

    def brief(server, card):
        return Message({"secret": torch.full((card.samples,), float(card.samples))}, words={"hello": card.name})

    def extras(server, card):
        return {"heard": TensorSpec((card.samples,), torch.float32)}

    recipe = Recipe(settings(), mean, Obeys(), exchange=Exchange(brief, extras))
    server = federation(recipe, [site("a", samples=5), site("b", samples=7)])
    assert play_round(server).dropped == []
    briefs = {name: brief for task, name, brief in server.engine.asked if task == "train"}
    assert briefs["a"].words["hello"] == "a"
    assert briefs["a"].tensors["secret"].tolist() == [5.0] * 5
    assert server.engine.replies["train", "b"].tensors["heard"].tolist() == [14.0] * 7

    server.engine.spoil["train", "b"] = lambda reply: server.engine.replies["train", "a"]  # another site's answer
    assert [(d.site, d.tensor) for d in play_round(server).dropped] == [("b", "heard")]


def test_what_a_recipe_tells_a_site_goes_before_the_shared_model():
    def own_bias(server, card):
        return Message({"model/head.bias": torch.full((3,), 9.0)})

    server = federation(Recipe(settings(), mean, exchange=Exchange(own_bias)), sites(1))
    play_round(server)
    brief = next(brief for task, _, brief in server.engine.asked if task == "train")
    assert brief.tensors["model/head.bias"].tolist() == [9, 9, 9]


def test_a_recipe_may_tell_every_site_and_every_round_the_same_message():
    news = Message({"news": torch.ones(2)}, words={"hello": "all"})
    server = federation(Recipe(settings(), mean, exchange=Exchange(lambda server, card: news)), sites(2))
    for _ in range(2):
        expected = server.tensors["head.weight"].clone()
        play_round(server, evaluated=False)
        task, _, brief = server.engine.asked[-1]
        assert torch.equal(brief.tensors["model/head.weight"], expected)  # not the one of the first round
        assert brief.tensors["news"].tolist() == [1, 1]
    assert news.tensors.keys() == {"news"}
    assert news.words == {"hello": "all"}


def test_a_defence_filters_replies_before_they_are_combined():
    def without_first(server, replies):
        return replies.keep(torch.tensor([site != "a" for site in replies.sites]))

    recipe = Recipe(settings(), mean, admit=(without_first,))
    server = federation(recipe, [site(name) for name in "abc"])
    alone = federation(Recipe(settings(sites=["b", "c"]), mean), [site(name) for name in "abc"])
    record = play_round(server)
    play_round(alone)
    assert record.replied == 2
    assert torch.equal(server.state.model, alone.state.model)


def test_a_defence_that_trusts_nobody_leaves_the_model_as_it_is():
    recipe = Recipe(settings(), mean, admit=(lambda server, replies: replies.keep(torch.zeros(len(replies)).bool()),))
    server = federation(recipe, sites(2))
    before = server.state.model.clone()
    record = play_round(server)
    assert torch.equal(server.state.model, before)
    assert (record.replied, record.loss, server.state.round) == (0, None, 1)


def test_the_order_in_which_sites_work_and_answer_changes_nothing():
    forwards, backwards = federation(plain(), sites(4)), federation(plain(), sites(4))
    backwards.engine.backwards = True
    for _ in range(2):
        play_round(forwards)
        record = play_round(backwards)
    assert [name for task, name, _ in backwards.engine.asked if task == "train"][:4] == sorted(record.asked)[::-1]
    assert torch.equal(forwards.state.model, backwards.state.model)


def test_the_order_in_which_sites_are_declared_changes_nothing():
    one, other = federation(plain(), sites(4)), federation(plain(), sites(4)[::-1])
    play_round(one)
    play_round(other)
    assert torch.equal(one.state.model, other.state.model)


# What is written down


def test_the_record_of_a_round():
    server = federation(plain(), sites(3))
    record = play_round(server)
    assert list(record.seconds) == BEATS
    assert all(seconds >= 0 for seconds in record.seconds.values())
    assert record.seconds["train"] > 0
    replies = [server.engine.replies["train", name] for name in record.asked]
    assert record.loss == pytest.approx(sum(reply.numbers["loss"] for reply in replies) / 3)
    assert record.round == 1
    assert play_round(server).round == 2


def test_the_mean_loss_counts_samples():
    server = federation(plain(), [site("a", samples=4), site("b", samples=12)])
    record = play_round(server)
    a, b = (server.engine.replies["train", name].numbers["loss"] for name in "ab")
    assert record.loss == pytest.approx((4 * a + 12 * b) / 16)


def test_a_round_that_is_not_judged_asks_no_figures():
    server = federation(plain(), sites(2))
    record = play_round(server, evaluated=False)
    assert record.evaluation is None
    assert list(record.seconds) == BEATS[:-1]
    assert all(task != "evaluate" for task, _, _ in server.engine.asked)


def test_the_global_model_is_judged_on_the_servers_data_after_the_round():
    data = site("server", test=40).test
    server = federation(plain(), sites(3), test=(data.x, data.truth))
    figures = play_round(server).evaluation
    network = small_network().eval()
    server.layout.load(network, server.state.model)
    right = (network(data.x).argmax(-1) == data.truth).float().mean().item()
    assert figures.global_["accuracy"] == pytest.approx(right)
    assert int(figures.confusion.sum()) == 40


def test_without_test_data_there_are_no_global_figures():
    figures = play_round(federation(plain(), sites(2))).evaluation
    assert figures.global_ == {}
    assert figures.confusion is None
    assert figures.over_sites()["mean"].keys() == {"accuracy", "nll"}


def test_a_site_without_test_samples_has_no_figures():
    figures = play_round(federation(plain(), [site("a"), site("b", test=0)])).evaluation
    assert list(figures.sites) == list(figures.site_confusions) == ["a"]
    assert figures.sites["a"]["samples"] == 6


def test_a_model_whose_logits_overflow_has_an_accuracy_but_no_likelihood():
    data = site("server", test=9).test
    server = federation(plain(lr=1e-9), sites(2), test=(data.x, data.truth))
    server.state.model = torch.full_like(server.state.model, 3e38)
    assert play_round(server).evaluation.global_.keys() == {"accuracy"}


def test_a_mistake_in_a_step_is_not_hidden():
    def broken(server):
        raise FedAccordError("the supercentre has no data")

    server = federation(Recipe(settings(), mean, prepare=(broken,)), sites(1))
    with pytest.raises(FedAccordError, match="no data"):
        play_round(server)
    assert server.state.round == 0
