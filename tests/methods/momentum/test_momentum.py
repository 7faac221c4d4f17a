"""pFedMo and the momentum baselines between server and sites: worked numbers, identities, trouble, resume."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.errors import ConfigError
from fedaccord.federation.round import play_round
from fedaccord.labels.views import Candidates, Tags
from fedaccord.methods.registry import METHODS, make_recipe
from small_federation import (
    SPACE,
    Parabolas,
    cloud,
    exact,
    federation,
    pets_or_cattle,
    site,
    small_network,
    whole_and_resumed,
    zero_network,
)

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = {"rounds": 4, "steps": 2, "lr": 0.1, "batch": 4}
FAMILY = ("pfedmo", "fednag", "fastslowmo", "fedmom", "slowmo", "domo", "fedadc", "mime", "representation")
HALF = {name: {key: 0.5 for key in ("beta", "gamma") if key in METHODS[name].settings.model_fields} for name in FAMILY}


def recipe_of(name, **settings):
    return make_recipe(name, STEPS | HALF.get(name, {}) | settings)


def public_samples(number=30, seed=3):
    data = cloud(number, exact(), torch.Generator().manual_seed(seed))
    return data.x, data.truth


def real_sites(views=(None, None, None)):
    return [site(n, samples=10 + 4 * i, view=v) for i, (n, v) in enumerate(zip("abc", views, strict=True))]


def started(name, sites=None, network=None, public=30, **settings):
    server = federation(recipe_of(name, **settings), sites or real_sites(), network)
    server.labelled = public_samples(public)
    server.ready()
    return server


def played(name, rounds=3, **more):
    server = started(name, **more)
    for _ in range(rounds):
        assert play_round(server).dropped == []
    return server


class TestWorkedExample:
    """Check the global model after rounds 1 and 2 (docs/methods.md 8.1)."""

    @pytest.mark.parametrize(
        ("name", "settings", "first", "second"),
        [
            ("fedavg", {"momentum": 0.0}, -0.225, -0.356625),
            ("fedprox", {"momentum": 0.0, "mu": 1.0}, -0.21, -0.3381),
            ("fedmom", {}, -0.3375, -0.521156),
            ("slowmo", {}, -0.225, -0.469125),
            ("fednag", {}, -0.31875, -0.471117),
            ("mime", {}, -0.140625, -0.318604),
            ("mime", {"lite": True}, -0.13125, -0.302789),
            ("fastslowmo", {}, -0.478125, -0.772318),
            ("domo", {}, -0.3, -0.507),
            ("domo", {"fusion": 0.5}, -0.3, -0.507),
            ("domo", {"spread": True}, -0.3, -0.56925),
            ("fedadc", {}, -0.225, -0.455063),
            ("fedadc", {"form": "nesterov"}, -0.225, -0.431719),
            ("fedadc", {"beta": 0.9, "beta_local": 0.5}, -0.225, -0.545063),
        ],
    )
    def test_two_rounds(self, name, settings, first, second):
        recipe = recipe_of(name, **settings)
        objective = recipe.objective
        recipe = dataclasses.replace(recipe, objective=_in_place(objective), **_with_parabolas(recipe))
        server = federation(recipe, [site("a"), site("b")], zero_network())
        for expected in (first, second):
            assert play_round(server).dropped == []
            assert server.state.model.tolist() == pytest.approx([expected] * server.layout.size, abs=1e-6)


def _in_place(objective):
    terms = getattr(objective, "terms", None)
    return Parabolas() if terms is None else dataclasses.replace(objective, terms=(Parabolas(), *terms[1:]))


def _with_parabolas(recipe):
    """Mime's question to the sites speaks of the objective too."""
    if "gradient" not in recipe.tasks:
        return {}
    parts = dataclasses.replace(recipe.solver, objective=Parabolas())
    return {"solver": parts, "tasks": {"gradient": parts.answer}}


class TestIdentities:
    def test_without_temperature_pfedmo_is_fednag_bit_for_bit(self):
        ours, theirs = played("pfedmo", pi=0.0), played("fednag")
        assert torch.equal(ours.state.model, theirs.state.model)
        assert torch.equal(ours.state.method.tensors["momentum"], theirs.state.method.tensors["momentum"])
        assert not torch.equal(played("pfedmo", pi=1.0).state.model, theirs.state.model)

    def test_without_momentum_the_printed_rule_is_fedavg_bit_for_bit(self):
        ours, theirs = played("pfedmo", rule="printed", gamma=0.0), played("fedavg", momentum=0.0)
        assert torch.equal(ours.state.model, theirs.state.model)
        assert not torch.equal(played("pfedmo", rule="pull", gamma=0.0).state.model, theirs.state.model)

    def test_the_representation_is_the_same_with_and_without_sites(self):
        together, alone = played("pfedmo"), played("representation", held_out=0.2)
        assert torch.equal(together.state.method.tensors["representation"], alone.state.model)

    def test_alone_it_learns_from_all_public_samples(self):
        """Every single one matters: in a step all of them are seen."""
        plain = played("representation", 1, batch=30, steps=1)
        assert "representation_accuracy" not in plain.figures
        for row in range(30):
            other = started("representation", batch=30, steps=1)
            x, classes = other.labelled
            x = x.clone()
            x[row] += 1
            other.labelled = (x, classes)
            play_round(other)
            assert not torch.equal(other.state.model, plain.state.model)
        played("representation", 1, public=2)

    def test_the_first_return_is_the_mean_since_no_score_is_above_zero_yet(self):
        ours, theirs = played("pfedmo", 1), played("fednag", 1)
        assert torch.equal(ours.state.model, theirs.state.model)

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("fedmom", {"beta": 0.0}),
            ("slowmo", {"beta": 0.0}),
            ("domo", {"beta": 0.0, "momentum": 0.0}),
            ("fedadc", {"beta": 0.0}),
            ("fednag", {"gamma": 0.0}),
            ("fastslowmo", {"gamma": 0.0, "beta": 0.0}),
            ("mime", {"beta": 0.0, "lite": True}),
        ],
    )
    def test_without_any_momentum_everyone_is_fedavg(self, name, settings):
        ours, theirs = played(name, **settings), played("fedavg", momentum=0.0)
        torch.testing.assert_close(ours.state.model, theirs.state.model, rtol=1e-5, atol=1e-6)

    def test_fedadc_whose_sites_are_told_nothing_is_slowmo(self):
        ours, theirs = played("fedadc", beta_local=0.0), played("slowmo")
        torch.testing.assert_close(ours.state.model, theirs.state.model, rtol=1e-5, atol=1e-6)


class TestPersonalisedReturns:
    @pytest.mark.parametrize("pi", [0.3, 1.0])
    def test_every_site_gets_the_model_of_its_own_score(self, pi):
        server = played("pfedmo", 3, pi=pi)
        briefs = {name: server.brief(name, server.tensors) for name in "abc"}
        scores = {name: server.state.method.numbers[f"score/{name}"] for name in "abc"}
        assert len(set(scores.values())) == 3
        assert all(0 <= s < 1 for s in scores.values())
        kept = server.state.method.tensors
        for name, brief in briefs.items():
            for part, mean, pulled in (
                ("model", "mean model", "representation"),
                ("momentum", "momentum", "representation momentum"),
            ):
                mean, pulled = (server.layout.named(kept[key])["head.bias"] for key in (mean, pulled))
                expected = (1 - pi * scores[name]) * mean + pi * scores[name] * pulled
                torch.testing.assert_close(brief.tensors[f"{part}/head.bias"], expected)

    @pytest.mark.parametrize("pi", [0.3, 1.0])
    def test_the_judged_model_is_the_mean_of_the_sites_models(self, pi):
        server = played("pfedmo", 3, pi=pi)
        samples = {name: server.cards[name].samples for name in "abc"}
        total = sum(samples.values())
        own = {name: server.brief(name, server.tensors).tensors["model/head.weight"] for name in "abc"}
        mean = sum(samples[name] / total * own[name] for name in "abc")
        torch.testing.assert_close(server.tensors["head.weight"], mean)

    def test_a_site_is_judged_by_its_own_model(self):
        server = played("pfedmo", 3)
        sent = {name: brief for task, name, brief in server.engine.asked if task == "evaluate"}
        assert not torch.equal(sent["a"].tensors["model/head.weight"], sent["b"].tensors["model/head.weight"])

    def test_the_worst_loss_is_kept_over_the_rounds(self):
        server = started("pfedmo")
        worst = []
        for _ in range(3):
            play_round(server)
            worst.append(server.state.method.numbers["worst loss/a"])
        assert worst == sorted(worst)
        assert server.state.method.numbers["score/a"] <= 1 - 1e-9

    def test_sites_are_scored_against_the_representation_after_its_steps_of_the_round(self):
        """Its model is taken from a run without sites, and all held-out samples are in the batch."""
        server, alone, worst = started("pfedmo"), started("representation", held_out=0.2), dict.fromkeys("abc", 0.0)
        _, held = _representation(server)._rows(server)
        x = server.labelled[0][held]
        for _ in range(3):
            play_round(server)
            play_round(alone)
            wanted = _logits(alone.layout.named(alone.state.model), x).softmax(-1)
            for name in "abc":
                reply = server.engine.replies["train", name].tensors
                own = _logits({key.removeprefix("model/"): t for key, t in reply.items()}, x)
                loss = -(wanted * own.log_softmax(-1)).sum(-1).mean().item()
                worst[name] = max(worst[name], loss)
                assert server.state.method.numbers[f"worst loss/{name}"] == pytest.approx(worst[name], rel=1e-5)
                assert server.state.method.numbers[f"score/{name}"] == pytest.approx(1 - loss / worst[name], abs=1e-5)

    @pytest.mark.parametrize(("share", "number"), [(0.5, 4), (0.75, 6)])
    def test_so_many_public_samples_of_each_class_are_held_out(self, share, number):
        server = started("pfedmo", held_out=share)
        classes = torch.arange(len(SPACE)).repeat(8)
        server.labelled = (torch.zeros(len(classes), 4), classes)
        learned, held = _representation(server)._rows(server)
        assert torch.bincount(classes[held]).tolist() == [number] * len(SPACE)
        assert torch.bincount(classes[learned]).tolist() == [8 - number] * len(SPACE)

    def test_public_samples_that_are_scored_on_are_never_learned_from(self):
        """Labels of held-out samples change nothing, those of the others do."""
        server = started("pfedmo")
        x, classes = server.labelled
        learned, scored = _representation(server)._rows(server)
        assert sorted([*learned.tolist(), *scored.tolist()]) == list(range(len(x)))
        counts = torch.bincount(classes[scored], minlength=len(SPACE))
        assert counts.tolist() == [round(0.2 * n) for n in torch.bincount(classes, minlength=len(SPACE)).tolist()]
        results = []
        for rows in (None, scored, learned):
            other = started("pfedmo")
            if rows is not None:  # swapped inputs: classes, and so the split, stay as they are
                inputs = x.clone()
                inputs[rows] = -inputs[rows]
                other.labelled = (inputs, classes)
            play_round(other)
            results.append(other.state.method.tensors["representation"])
        assert torch.equal(results[0], results[1])
        assert not torch.equal(results[0], results[2])

    def test_scores_are_taken_on_public_samples_that_were_held_out(self):
        """Other inputs in their place give the same representation and other scores."""
        plain, other = started("pfedmo"), started("pfedmo")
        x, classes = other.labelled
        _, scored = _representation(other)._rows(other)
        inputs = x.clone()
        inputs[scored] = -inputs[scored]
        other.labelled = (inputs, classes)
        for server in (plain, other):
            play_round(server)
        ours, theirs = (server.state.method for server in (plain, other))
        assert torch.equal(ours.tensors["representation"], theirs.tensors["representation"])
        assert all(ours.numbers[f"worst loss/{name}"] != theirs.numbers[f"worst loss/{name}"] for name in "abc")

    def test_scores_are_taken_on_so_many_of_them_drawn_anew_in_each_round(self):
        server, drawn = started("pfedmo", public=60), []
        _, scored = _representation(server)._rows(server)
        held = {row.numpy().tobytes() for row in server.labelled[0][scored]}
        for _ in range(3):
            rows = {row.numpy().tobytes() for row in _representation(server).held_inputs(server, 5)}
            assert len(rows) == 5
            assert rows < held
            drawn.append(rows)
            play_round(server)
        assert drawn[0] != drawn[1] != drawn[2]
        few, all_of_them = (played("pfedmo", 1, score_batch=number) for number in (1, 256))
        losses = [one.state.method.numbers["worst loss/a"] for one in (few, all_of_them)]
        assert losses[0] != losses[1]

    def test_figures_tell_the_score_and_the_representation(self):
        server = started("pfedmo")
        play_round(server)
        figures = play_round(server).figures
        assert set(figures) >= {"score", "representation_accuracy"}
        assert 0 <= figures["score"] < 1

    def test_batch_norm_statistics_are_the_sites_mean(self):
        ours = played("pfedmo", network=small_network(batch_norm=True), gamma=0.0, rule="printed")
        theirs = played("fedavg", network=small_network(batch_norm=True), momentum=0.0)
        name = "encoder.1.running_mean"
        assert torch.equal(ours.tensors[name], theirs.tensors[name])
        own = ours.layout.named(ours.state.method.tensors["representation"])[name]
        assert not torch.equal(own, ours.tensors[name])


def _representation(server):
    return server.recipe.refine[-1].__self__.representation


def _logits(tensors, x):
    """The small network by hand."""
    features = torch.tanh(x @ tensors["encoder.0.weight"].T + tensors["encoder.0.bias"])
    return (features @ tensors["head.weight"].T + tensors["head.bias"]).double()


class TestTheRoundsLearningRate:
    """What the server does with a learning rate follows the sites' schedule."""

    def test_slowmo_divides_and_multiplies_by_it(self):
        """With beta the momentum was divided by the rate of one round and is multiplied by that of the next."""
        server = started("slowmo", beta=0.5, schedule="cosine")
        samples = torch.tensor([float(server.cards[name].samples) for name in "abc"])
        sent, momentum = server.state.model.clone(), torch.zeros(server.layout.size)
        for round_ in range(3):
            play_round(server)
            lr = 0.1 * 0.5 * (1 + math.cos(math.pi * round_ / 4))
            momentum = 0.5 * momentum + (sent - _mean_reply(server, samples)) / lr
            sent = sent - lr * momentum
            torch.testing.assert_close(server.state.model, sent, rtol=1e-4, atol=1e-6)

    def test_slowmo_without_momentum_is_fedavg(self):
        ours = played("slowmo", beta=0.0, schedule="cosine")
        theirs = played("fedavg", momentum=0.0, schedule="cosine")
        torch.testing.assert_close(ours.state.model, theirs.state.model, rtol=1e-5, atol=1e-6)
        constant = played("slowmo", beta=0.0)
        assert not torch.allclose(constant.state.model, ours.state.model, atol=1e-3)

    def test_the_representation_steps_as_a_site_with_its_samples_would(self):
        """All samples are in every batch, so that nothing but the order of sums differs."""
        alone = played("representation", batch=30, schedule="cosine")
        x, classes = public_samples()
        public = Samples(x, classes, classes)
        theirs = played("fednag", sites=[SiteData("a", exact(), public, public)], batch=30, schedule="cosine")
        torch.testing.assert_close(alone.state.model, theirs.state.model, rtol=1e-5, atol=1e-6)


def _mean_reply(server, samples):
    """The mean of what the sites sent, by their samples, as a flat vector."""
    replies = [server.engine.replies["train", name].tensors for name in "abc"]
    flat = torch.zeros(server.layout.size)
    for name, part in server.layout.named(flat).items():
        each = torch.stack([reply[f"model/{name}"] for reply in replies])
        part.copy_(torch.tensordot(samples / samples.sum(), each, 1))
    return flat


class TestMimesGradients:
    """The gradient that all steps are corrected by is combined as the model is."""

    def combined(self, views=(None, None, None), part="head.bias", **settings):
        """The server's gradient, each site's and each site's samples."""
        server = started("mime", real_sites(views), **settings)
        play_round(server)
        found = server.layout.named(server.state.method.tensors["gradient"])[part]
        each = torch.stack([server.engine.replies["gradient", name].tensors[f"gradient/{part}"] for name in "abc"])
        return found, each, torch.tensor([float(server.cards[name].samples) for name in "abc"])

    def test_statistics_are_its_slow_mean(self):
        """`s <- (1 - beta) c + beta s`, with a beta that is not its own complement."""
        server = started("mime", beta=0.9)
        statistics = torch.zeros(server.layout.size)
        for _ in range(3):
            play_round(server)
            statistics = 0.1 * server.state.method.tensors["gradient"] + 0.9 * statistics
            torch.testing.assert_close(server.state.method.tensors["statistics"], statistics)

    def test_by_samples(self):
        found, each, samples = self.combined()
        torch.testing.assert_close(found, (samples[:, None] * each).sum(0) / samples.sum())

    def test_every_site_alike(self):
        found, each, _ = self.combined(weights="equal")
        torch.testing.assert_close(found, each.mean(0))

    def test_head_rows_over_their_owners(self):
        """Cats are known to a and c, dogs to all, cows to b and c."""
        views = (exact(["cat", "dog"]), exact(["dog", "cow"]), None)
        found, each, samples = self.combined(views, softmax="view")
        shares = samples[:, None] * torch.tensor([[1.0, 1, 0], [0, 1, 1], [1, 1, 1]])
        torch.testing.assert_close(found, (shares * each).sum(0) / shares.sum(0))

    def test_too_few_for_the_rule_leave_the_last_one(self):
        server = started("mime", aggregation="median")
        play_round(server)
        last = server.state.method.tensors["gradient"].clone()
        server.engine.spoil["gradient", "b"] = lambda reply: reply.tensors.clear() or reply
        drops = play_round(server).dropped
        assert [(d.site, d.task) for d in drops] == [("b", "gradient"), ("", "gradient")]
        assert "needs at least 3 sites" in drops[1].reason
        assert torch.equal(server.state.method.tensors["gradient"], last)

    def test_what_a_site_says_of_its_samples_does_not_matter(self):
        honest, server = started("mime"), started("mime")
        server.engine.spoil["gradient", "b"] = lambda reply: reply.numbers.pop("samples") and reply
        server.engine.spoil["gradient", "c"] = lambda reply: reply.numbers.update(samples=10**6) or reply
        for made in (honest, server):
            assert play_round(made).dropped == []
        assert torch.equal(server.state.model, honest.state.model)

    def test_no_defence_can_judge_them_in_time(self):
        with pytest.raises(ValueError, match="sent before 'defence' can judge any of them"):
            recipe_of("mime", defence={"kind": "probe"})


@pytest.mark.parametrize(
    ("name", "down", "up"),
    [
        ("fedavg", 1, 1),
        ("fedmom", 1, 1),
        ("slowmo", 1, 1),
        ("fednag", 2, 2),
        ("fastslowmo", 2, 2),
        ("pfedmo", 2, 2),
        ("fedadc", 2, 1),
        ("domo", 2, 1),
        ("mime", 4, 2),
        ("mime, lite", 3, 2),
    ],
)
def test_models_that_travel_in_a_round_are_as_many_as_the_docs_say(name, down, up):
    server = played(name.removesuffix(", lite"), 1, **({"lite": True} if name.endswith("lite") else {}))
    size = server.layout.size
    sent = [brief for task, site_, brief in server.engine.asked if site_ == "a" and task in ("train", "gradient")]
    came = [
        reply
        for (task, site_), reply in server.engine.replies.items()
        if site_ == "a" and task in ("train", "gradient")
    ]
    assert sum(t.numel() for message in sent for t in message.tensors.values()) == down * size
    assert sum(t.numel() for message in came for t in message.tensors.values()) == up * size


class TestTrouble:
    def test_public_samples_are_needed(self):
        server = federation(recipe_of("pfedmo"), real_sites())
        with pytest.raises(ConfigError, match=r"set labelled in \[server\]"):
            server.ready()

    def test_too_few_public_samples_to_hold_some_out(self):
        with pytest.raises(ConfigError, match="0 are held out for the scores and 2 left to learn from"):
            started("pfedmo", public=2)

    @pytest.mark.parametrize("name", [n for n in FAMILY if n != "representation"])
    def test_a_round_without_replies_changes_no_model(self, name):
        server = started(name)
        play_round(server)
        before = server.state.model.clone()
        for who in "abc":
            server.engine.spoil["train", who] = lambda reply: reply.tensors.clear() or reply
        play_round(server)
        assert torch.equal(server.state.model, before)

    def test_a_wrong_momentum_is_dropped_like_a_wrong_model(self):
        server = started("fednag")

        def spoiled(reply):
            reply.tensors["momentum/head.bias"][0] = math.nan
            return reply

        server.engine.spoil["train", "b"] = spoiled
        (drop,) = play_round(server).dropped
        assert (drop.site, drop.tensor) == ("b", "momentum/head.bias")

    @pytest.mark.parametrize("name", ["fednag", "fastslowmo", "pfedmo"])
    @pytest.mark.parametrize(("rule", "number"), [("krum", 1), ("multi-krum", 4)])
    def test_the_model_and_the_momentum_are_of_the_same_sites(self, name, rule, number):
        """The model of site e lies in the middle of the others', its momentum far away."""
        sites = [site(who, samples=10 + 4 * i) for i, who in enumerate("abcde")]
        server = started(name, sites, aggregation=rule, hostile=1)

        def sent(what):
            return torch.stack([server.engine.replies["train", who].tensors[f"{what}/head.weight"] for who in "abcde"])

        def spoiled(reply):
            for key, tensor in reply.tensors.items():
                others = torch.stack([server.engine.replies["train", who].tensors[key] for who in "abcd"])
                tensor.copy_(others.mean(0) + 100 * key.startswith("momentum/"))
            return reply

        server.engine.spoil["train", "e"] = spoiled
        play_round(server)
        kept = server.state.method.tensors
        combined = {
            "fednag": server.state.model,
            "pfedmo": kept.get("mean model"),
            "fastslowmo": kept.get("server momentum"),
        }[name]
        fitting = []
        for what, flat in (("model", combined), ("momentum", kept["momentum"])):
            found = server.layout.named(flat)["head.weight"]
            groups = itertools.combinations(range(5), number)
            fitting.append([g for g in groups if torch.allclose(sent(what)[list(g)].mean(0), found, atol=1e-6)])
        assert fitting[0] == fitting[1]
        assert len(fitting[0]) == 1
        assert 4 not in fitting[0][0]

    def test_a_server_step_that_overflows_leaves_the_mean(self):
        server = started("slowmo", alpha=1.0)
        play_round(server)
        server.state.method.tensors["server momentum"] = torch.full((server.layout.size,), 3e38)
        server.state.method.tensors["server momentum"][0] = math.inf
        (drop,) = play_round(server).dropped
        assert "not finite" in drop.reason
        assert bool(torch.isfinite(server.state.model).all())

    def test_a_site_that_was_never_scored_gets_the_mean(self):
        server = started("pfedmo", participation=1)
        for _ in range(2):
            play_round(server)
        unseen = next(name for name in "abc" if f"score/{name}" not in server.state.method.numbers)
        mean = server.layout.named(server.state.method.tensors["mean model"])["head.bias"]
        assert torch.equal(server.brief(unseen, server.tensors).tensors["model/head.bias"], mean)

    def test_squared_error_needs_exact_labels(self):
        with pytest.raises(ConfigError, match=r"one label for each sample.* but site 'b' has coarse"):
            started("fednag", [site("a"), site("b", view=pets_or_cattle())], loss="squared")

    @pytest.mark.parametrize(
        ("setting", "value"),
        [
            ("attack", {"kind": "sign-flip"}),
            ("defence", {"kind": "probe"}),
            ("aggregation", "median"),
            ("hostile", 1),
            ("sites", ["a"]),
            ("participation", 2),
            ("softmax", "view"),
            ("prior", "all"),
            ("bn", "pooled"),
        ],
    )
    def test_the_public_data_alone_has_no_settings_of_sites(self, setting, value):
        with pytest.raises(
            ValueError, match=f"{setting} has no effect in 'representation', which trains at the server alone"
        ):
            recipe_of("representation", **{setting: value})
        recipe_of("pfedmo", **{setting: value})

    def test_returns_that_overflow_leave_the_mean(self):
        """A bias of the representation that fits a float, but not twice: `reversed` adds model and momentum."""
        server = started("pfedmo", rule="reversed")
        play_round(server)
        kept = server.state.method
        for name in ("representation", "representation momentum"):
            kept.tensors[name] = kept.tensors[name].clone()
            server.layout.named(kept.tensors[name])["head.bias"][0] = 3e38
        kept.numbers |= {f"worst loss/{name}": 1e9 for name in "abc"}
        (drop,) = play_round(server).dropped
        assert drop.reason == "the models of 3 of 3 sites are not finite, so these sites get the mean"
        assert torch.equal(server.state.model, kept.tensors["mean model"])
        for name in "abc":
            assert all(bool(t.isfinite().all()) for t in server.brief(name, server.tensors).tensors.values())

    def test_sites_with_tags_have_no_softmax_to_compare(self):
        with pytest.raises(ConfigError, match=r"one class for each sample, .* but site 'b' has tags"):
            started("pfedmo", [site("a"), site("b", view=Tags(SPACE))])
        started("fednag", [site("a", view=Tags(SPACE)), site("b", view=Tags(SPACE))])

    def test_statistics_that_stay_at_the_sites_cannot_be_scored_with(self):
        with pytest.raises(ValueError, match='bn = "local" keeps statistics at the sites'):
            recipe_of("pfedmo", bn="local")
        recipe_of("fednag", bn="local")

    @pytest.mark.parametrize("name", ["pfedmo", "representation"])
    def test_a_round_of_epochs_is_refused_where_the_server_takes_as_many_steps_as_a_site(self, name):
        with pytest.raises(ValueError, match="give 'steps' instead of 'epochs'"):
            make_recipe(name, {"rounds": 2, "epochs": 1})
        make_recipe("fednag", {"rounds": 2, "epochs": 1})

    @pytest.mark.parametrize(("name", "said"), [("fednag", "'gamma'"), ("mime", "statistics")])
    def test_a_second_momentum_is_refused(self, name, said):
        with pytest.raises(ValueError, match=said):
            recipe_of(name, momentum=0.5)


@pytest.mark.parametrize("name", FAMILY)
class TestEveryMethod:
    VIEWS = {
        "candidates": (Candidates(SPACE), None, Candidates(SPACE)),
        "coarse": (pets_or_cattle(), None, pets_or_cattle()),
        "private": (exact(["cat", "dog"]), exact(["dog", "cow"]), None),
    }

    @pytest.mark.parametrize(("kind", "softmax"), [("candidates", "full"), ("coarse", "full"), ("private", "view")])
    def test_it_learns_through_any_view(self, name, kind, softmax):
        choice = {} if name == "representation" else {"softmax": softmax}  # it has no view to follow
        server = started(name, real_sites(self.VIEWS[kind]), steps=8, lr=0.2, **choice)
        server.test = public_samples(60, seed=9)
        first = play_round(server).evaluation.global_["nll"]
        for _ in range(5):
            record = play_round(server)
            assert record.dropped == []
        assert record.evaluation.global_["nll"] < first
        assert record.evaluation.global_["accuracy"] > 0.6

    def test_it_goes_on_from_a_checkpoint_bit_for_bit(self, name):
        settings = {"schedule": "cosine"} | ({} if name == "representation" else {"participation": 2})
        whole, second = whole_and_resumed(lambda: started(name, **settings))
        assert torch.equal(second.state.model, whole.state.model)
        for key, kept in whole.state.method.tensors.items():
            assert torch.equal(second.state.method.tensors[key], kept)

    def test_a_robust_rule_protects_it(self, name):
        if name == "representation":
            return
        sites = [site(n, samples=12) for n in "abcde"]
        server = started(name, sites, aggregation="median")
        honest = started(name, sites, aggregation="median")

        def hostile(reply):
            for tensor in reply.tensors.values():
                tensor.fill_(1e6)
            return reply

        server.engine.spoil["train", "e"] = server.engine.spoil["gradient", "e"] = hostile
        for _ in range(2):
            play_round(server)
            play_round(honest)
        assert float((server.state.model - honest.state.model).abs().max()) < 10
