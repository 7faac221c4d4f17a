"""The baselines for candidate sets: which loss each minimises, what it shares, and `local` with the same losses."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from fedaccord.federation.admission import AdmitSection
from fedaccord.federation.round import play_round
from fedaccord.labels.views import Candidates
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.candidate_sets.alignment import RECEIVED, augmented, misalignment, pseudo_target
from fedaccord.methods.registry import METHODS, make_recipe
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.methods.without_federation.recipe import local
from fedaccord.methods.without_federation.settings import LocalSettings
from fedaccord.training.candidate_losses import CONFIDENCES
from small_federation import SPACE, exact, federation, pets_or_cattle, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"rounds": 3, "steps": 3, "batch": 8, "lr": 0.1}
BASELINES = ["fed-cc", "fed-rc", "fed-lw", "fed-cavl", "fed-abs-gce", "fed-uniform", "fedpll-la-approx"]
KEEPING = {"fed-rc", "fed-lw", "fed-cavl"}
SETS = Candidates(SPACE)


def unsure(*names):
    return [site(name, samples=12 + 4 * number, view=SETS) for number, name in enumerate(names)]


def played(recipe, sites, rounds=2):
    server = federation(recipe, sites)
    for _ in range(rounds):
        play_round(server)
    return server


def run(name, sites=None, rounds=2, **settings):
    return played(make_recipe(name, {**QUICK, **settings}), sites or unsure("a", "b"), rounds)


class TestAll:
    def test_the_papers_are_the_defaults(self):
        for name in BASELINES:
            settings = METHODS[name].settings()
            assert (settings.rounds, settings.steps, settings.lr, settings.head) == (100, 40, 0.01, "shared")

    def test_each_has_a_loss_of_its_own(self):
        # In the first step RC, CAVL and uniform candidates are the same; from the second on they differ.
        models = {name: run(name).state.model for name in BASELINES}
        for one, other in itertools.combinations(BASELINES, 2):
            assert not torch.allclose(models[one], models[other], atol=1e-5), f"{one} and {other}"

    @pytest.mark.parametrize("name", BASELINES)
    def test_the_whole_model_is_shared(self, name):
        server = run(name)
        assert server.has_full_model
        assert server.dropped == []
        assert "model/head.weight" in server.engine.replies["train", "a"].tensors
        assert (CONFIDENCES in server.engine.kept["a"].tensors) == (name in KEEPING)

    @pytest.mark.parametrize("name", BASELINES)
    def test_or_the_encoder_alone(self, name):
        server = run(name, head="local")
        travelled = {key for key in server.engine.replies["train", "a"].tensors if key.startswith("model/")}
        assert travelled == {"model/encoder.0.weight", "model/encoder.0.bias"}
        heads = [server.engine.kept[s].tensors["personal/head.weight"] for s in "ab"]
        assert not torch.equal(*heads)
        assert not server.has_full_model

    @pytest.mark.parametrize("name", BASELINES)
    def test_sites_of_every_view_take_part(self, name):
        sites = [*unsure("a"), site("b"), site("c", view=pets_or_cattle()), site("d", view=exact(["cat", "dog"]))]
        server = run(name, sites)
        assert server.dropped == []
        assert bool(torch.isfinite(server.state.model).all())

    def test_uniform_candidates_are_fedavg_where_labels_are_exact(self):
        sites = [site("a"), site("b", samples=16)]
        ours = run("fed-uniform", sites)
        theirs = played(fedavg(ClassicSettings(**QUICK)), sites)
        assert torch.allclose(ours.state.model, theirs.state.model, atol=1e-6)


class TestDefences:
    """A hostile site that sends a huge model must not carry the others with it."""

    @pytest.mark.parametrize("name", ["fed-rc", "fed-lw", "pfedpll", "pfedpll+"])
    @pytest.mark.parametrize("rule", ["median", "krum"])
    def test_a_robust_rule_holds(self, name, rule):
        def model(aggregation, hostile):
            recipe = make_recipe(name, {**QUICK, "aggregation": aggregation})
            network = small_network()
            sites = unsure(*"abcde")
            server = federation(recipe, sites, network)
            server.unlabelled = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
            if hostile:
                server.engine.spoil["train", "e"] = enlarge
                server.admission = AdmitSection(norm=0)  # the rule alone
            for _ in range(2):
                play_round(server)
            return server.state.model

        honest = model(rule, hostile=False)
        assert (model(rule, hostile=True) - honest).abs().max() < 1
        assert (model("mean", hostile=True) - honest).abs().max() > 10

    @pytest.mark.parametrize("rule", ["mean", "median"])
    def test_rows_of_known_labels(self, rule):
        """Candidates among cats and dogs, or dogs and cows: nobody who does not know a label moves its row."""

        def some(name, known):
            view = Candidates(SPACE, known)
            data = site(name, samples=20, view=view)
            target = data.train.target & view.informs()
            return dataclasses.replace(data, train=dataclasses.replace(data.train, target=target))

        sites = [some(name, ["cat", "dog"]) for name in "abc"] + [some(name, ["dog", "cow"]) for name in "def"]
        server = run("fed-rc", sites, rounds=1, aggregation=rule)
        assert server.dropped == []
        sent = {name: server.engine.replies["train", name].tensors["model/head.weight"] for name in "abcdef"}
        owners = torch.stack([sent[name][0] for name in "abc"])
        counts = torch.tensor([server.engine.replies["train", name].numbers["samples"] for name in "abc"])
        expected = owners.median(0).values if rule == "median" else counts / counts.sum() @ owners
        row = server.layout.named(server.state.model)["head.weight"][0]
        assert torch.allclose(row, expected, atol=1e-6)


def enlarge(reply):
    for name, tensor in reply.tensors.items():
        if tensor.is_floating_point():
            reply.tensors[name] = tensor + 1000.0
    return reply


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("fed-lw", {"beta": 2.0}),
            ("fed-lw", {"form": "cross-entropy"}),
            ("fed-abs-gce", {"q": 0.2}),
            ("fed-rc", {"alpha_from": "forward"}),
            ("fed-cavl", {"alpha_from": "forward"}),
            ("fedpll-la-approx", {"rho": 5.0}),
        ],
    )
    def test_they_change_the_model(self, name, change):
        # One site and one step would do for a loss; confidences are first used in the second round.
        plain, changed = run(name, rounds=4), run(name, rounds=4, **change)
        if name == "fed-cavl":  # its targets are whole numbers, which need not change with the logits
            kept = [server.engine.kept["a"].tensors[CONFIDENCES] for server in (plain, changed)]
            assert all(set(table.flatten().tolist()) <= {0.0, 0.5, 1.0} for table in kept)
        else:
            assert not torch.allclose(plain.state.model, changed.state.model, atol=1e-6)

    @pytest.mark.parametrize("name", [*BASELINES, "pfedpll", "pfedpll+", "local"])
    @pytest.mark.parametrize("setting", [{"noise": 1.0, "dropout": 0.0}, {"dropout": 0.5, "noise": 0.0}])
    def test_noise(self, name, setting):
        def model(**noise):
            settings = {"score": "samples", "isolation": False} if name == "pfedpll" else {}
            server = run(name, rounds=1, **noise, **settings)
            return server.engine.kept["a"].tensors["personal/head.weight"] if name == "local" else server.state.model

        assert not torch.allclose(model(noise=0.0, dropout=0.0), model(**setting), atol=1e-4)
        assert torch.equal(model(**setting), model(**setting))

    def test_a_loss_has_no_setting_of_another(self):
        with pytest.raises(ValueError, match="beta"):
            METHODS["fed-cc"].settings(beta=2.0)


class TestLocal:
    @pytest.mark.parametrize("loss", ["cc", "rc", "lw", "cavl", "abs-gce", "uniform"])
    def test_one_site_alone_is_one_site_federated(self, loss):
        alone = played(local(LocalSettings(**QUICK, loss=loss)), unsure("a"))
        together = run(f"fed-{loss}", unsure("a"))
        kept = alone.engine.kept["a"].select("personal")
        for name, tensor in together.layout.named(together.state.model).items():
            assert torch.allclose(kept[name], tensor, atol=1e-6)

    def test_the_view_s_likelihood_unless_told(self):
        plain, named, other = (
            played(local(LocalSettings(**QUICK, **more)), unsure("a")).engine.kept["a"].tensors
            for more in ({}, {"loss": "view"}, {"loss": "pfedpll", "terms": ["pc"]})
        )
        assert torch.equal(plain["personal/head.weight"], named["personal/head.weight"])
        assert not torch.allclose(plain["personal/head.weight"], other["personal/head.weight"], atol=1e-5)


class TestApproximation:
    def test_the_pseudo_target_is_the_restricted_mean_of_two_predictions(self):
        p, q = torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([[0.2, 0.5, 0.3]])
        sets = torch.tensor([[True, False, True]])
        target = pseudo_target(p.log(), q.log(), sets)
        assert target[0].tolist() == pytest.approx([0.4 / 0.6, 0, 0.2 / 0.6])

    def test_misalignment_is_one_minus_the_cosine(self):
        g = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])]
        assert misalignment(g, [2 * part for part in g]).item() == pytest.approx(0, abs=1e-6)
        assert misalignment(g, [-part for part in g]).item() == pytest.approx(2)
        assert misalignment(g, [torch.tensor([0.0, 1.0]), torch.tensor([0.0])]).item() == pytest.approx(1)
        assert misalignment(g, [torch.zeros(2), torch.zeros(1)]).item() == 0

    def test_a_site_remembers_what_it_was_sent(self):
        server = run("fedpll-la-approx", rounds=1)
        sent = next(brief for task, name, brief in server.engine.asked if (task, name) == ("train", "a"))
        assert torch.equal(server.engine.kept["a"].tensors[f"{RECEIVED}/0"], sent.tensors["model/encoder.0.weight"])

    def test_in_the_first_round_there_is_no_direction_to_align_with(self):
        plain, strong = (run("fedpll-la-approx", rounds=1, rho=rho) for rho in (0.0, 5.0))
        assert torch.equal(plain.state.model, strong.state.model)

    @pytest.mark.parametrize("shape", [(6, 1, 8, 8), (6, 3, 9, 5), (6, 7)])
    def test_augmented_samples_are_near_the_samples(self, shape):
        torch.manual_seed(0)
        x = torch.rand(shape)
        weak, strong = augmented(x, strong=False), augmented(x, strong=True)
        assert weak.shape == strong.shape == x.shape
        assert not torch.equal(strong, x)
        if x.ndim == 4:
            assert torch.equal(weak.flatten(1).sort().values, x.flatten(1).sort().values)  # moved, nothing else
            blank = (strong == x.amin()).all(0).all(0)
            assert int(blank.sum()) == (shape[2] // 3) * (shape[3] // 3)
        else:
            assert (weak - x).abs().max() < 0.3
