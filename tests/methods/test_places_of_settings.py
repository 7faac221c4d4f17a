"""Every setting belongs to the server or to the sites, and the sites' side of every method needs only its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from fedaccord import Federation, Recipe, RowObjective, SharedModelSettings, Site, shared_model_recipe
from fedaccord.config import check_experiment
from fedaccord.data.sites import pool_sites
from fedaccord.errors import ConfigError
from fedaccord.experiment import load_federation
from fedaccord.federation.round import play_round
from fedaccord.federation.server import Server
from fedaccord.federation.state import RunState
from fedaccord.hosting import build_host, build_network, host_spec, site_spec
from fedaccord.labels.views import Candidates, Coarse, Tags
from fedaccord.messages.message import Message
from fedaccord.messages.names import POOL
from fedaccord.methods.registry import METHODS, make_recipe, outside_entry
from fedaccord.methods.tags.site import ALIGNMENT_SHARE
from fedaccord.models.layout import Layout
from fedaccord.session import open_server
from fedaccord.training.settings import TrainingSettings, place_of, server_setting, site_setting
from small_federation import SPACE, ScriptedEngine, cloud, copied, exact, pets_or_cattle, site

# A setting that only the server reads takes the first of these values that is not its default and that is allowed.
OTHER_VALUES = {
    "iterations": (4,),
    "sites": (["a", "b", "c"],),
    "participation": (3,),
    "aggregation": ("median",),
    "hostile": (1,),
    "defence": ({"kind": "group-update"},),
    "weights": ("equal", "samples"),
    "personal": ("cheap",),
    "confidences": (False,),
    "labels": ("views",),
    "server_lr": (0.5,),
    "server_epochs": (2,),
    "server_batch": (4,),
    "server_augment": ("strong",),
    "server_weight": (0.7,),
    "warmup": (3,),
    "exchanges": (2,),
    "ridge": (0.1,),
    "beta": (0.25,),
    "alpha": (0.5,),
    "held_out": (0.4,),
    "rule": ("printed",),
    "pi": (0.5,),
    "score_batch": (3,),
    "score": ("samples",),
    "score_inputs": (5,),
    "tuning": ("mse",),
    "norm": ("renorm",),
    "pairs": ("zero-padded",),
    "tuning_labels": ("all",),
    "mask_absent": (False,),
    "tune": ("all",),
    "tuning_lr": (0.1,),
    "tuning_momentum": (0.5,),
    "tuning_batch": (4,),
    "frequencies": ([1.0, 2.0, 3.0],),
    "consensus": ("median",),
    "blocks": ("per-site",),
    "block_count": (2,),
    "gamma": (1.0,),
    "volume_rounds": (1.0,),
    "head_rows": ("annotated", "owners"),
    "shrinkage": (3.0,),
    "permuted": (True,),
}
# Further runs of a method: every task is asked for, and settings that exclude each other are all used.
VARIANTS = {
    "accord": [{"personal": "mixture", "sites": ["a", "b", "c", "d"], "participation": 4}],
    "fedharmony": [{"exchanges": 2}, {"teacher": "counts", "aggregation": "median", "mu": 0.1}],
    "fedharmony+": [{"teacher": "scores", "exchanges": 2}],
    "fedmt": [
        {"correspondence": "estimated-average"},
        {"estimator": "em-pool"},
        {"correspondence": "learnable-average", "local": "scaffold"},
    ],
    "fedrep": [{"local": "fedprox"}],
    "private-labels": [
        {"tuning": "pairwise", "local": "scaffold"},
        {"tuning": "balance", "label_weight": "per_label", "aggregation": "mean"},
        {"labels": "public", "local": "fedprox"},
    ],
    "pfedpll": [{"isolation": False, "calibration": False}],
    "fedadc": [{"form": "nesterov", "beta_local": 0.2}],
    "domo": [{"spread": True, "fusion": 0.2}],
    "mime": [{"lite": True}],
    "fedavg": [{"loss": "squared"}, {"schedule": "cosine"}],
}


class TwinEngine(ScriptedEngine):
    """Asks a host with all settings and one with the sites' own, and compares their replies bit for bit."""

    def __init__(self, host, twin, label):
        super().__init__(host)
        self.twin, self.label = twin, label

    def ask(self, task, briefs, deadline=None):
        jobs = [(name, briefs[name], self.kept.get(name, Message())) for name in sorted(briefs)]
        if task == "train":
            one, other = (host.handle_together(task, jobs) for host in (self.host, self.twin))
            self._compare(f"{task} as a cohort", jobs, one, other)
        answers = [tuple(map(copied, self.twin.handle(task, *job))) for job in jobs]
        replies = super().ask(task, briefs, deadline)
        given = [(replies[name], self.kept.get(name, Message())) for name, *_ in jobs]
        self._compare(task, jobs, given, answers)
        return replies

    def _compare(self, task, jobs, one, other):
        for (name, *_), own, twin in zip(jobs, one, other, strict=True):
            for what, ours, theirs in zip(("reply", "memory"), own, twin, strict=True):
                where = f"{self.label}: the {what} of site '{name}' to the task '{task}' depends on server settings"
                ours, theirs = untimed(ours), untimed(theirs)
                assert ours.words == theirs.words, where
                assert ours.numbers == theirs.numbers, where
                assert ours.tensors.keys() == theirs.tensors.keys(), where
                for key, tensor in ours.tensors.items():
                    assert torch.equal(tensor, theirs.tensors[key]), f"{where}: {key}"


def untimed(message):
    numbers = {key: value for key, value in message.numbers.items() if key != ALIGNMENT_SHARE}
    return Message(message.tensors, numbers, message.words)


def keys(method, place):
    return [key for key, field in METHODS[method].settings.model_fields.items() if place_of(field) == place]


def changed(method, settings):
    """Return settings in which everything that belongs to the server, where possible, is not its default."""
    fields = METHODS[method].settings.model_fields
    for key in keys(method, "server"):
        if key in settings:
            continue
        value = next(value for value in OTHER_VALUES[key] if value != fields[key].default)
        try:
            make_recipe(method, {**settings, key: value})
        except (ValidationError, ConfigError):
            continue
        settings = {**settings, key: value}
    return settings


def sites_for(method):
    family = METHODS[method].recipe.split(".")[2]
    views = {
        "candidate_sets": [Candidates(SPACE)] * 3,
        "mixed_types": [pets_or_cattle()] * 3,
        "private_labels": [exact(["cat", "dog"]), exact(["dog", "cow"]), exact(["cat", "cow"])],
        "tags": [Tags(SPACE), Tags(SPACE), Tags(SPACE, ("cat", "dog"))],
        "spherefed": [Tags(SPACE)] * 3,
    }.get(family, [exact()] * 3)
    sites = {name: site(name, 8, view, test=4) for name, view in zip("abc", views, strict=True)}
    if family == "accord":  # a site that does not say what its names stand for, so that it is asked to count them
        sites["d"] = replace(site("d", 8, pets_or_cattle(), test=4), view=Coarse(SPACE, names=["pet", "cattle"]))
    return sites


def play(method, settings):
    """Play two rounds with both hosts, and return the engine that compared them."""
    model = {"name": "sphere-mlp" if method == "spherefed" else "mlp", "settings": {"hidden": [5]}, "input_shape": [4]}
    sites, checked = sites_for(method), METHODS[method].settings(**settings)
    if method == "pooled":
        sites[POOL] = pool_sites(POOL, sites, SPACE, checked.labels)
    spec = host_spec(sites, SPACE, model, method, checked, seed=0)
    assert set(spec.spec["settings"]) == set(keys(method, "site")), method  # the embedded engine sends no more either
    whole = {**spec.spec, "settings": checked.model_dump(mode="json")}
    engine = TwinEngine(build_host(whole, spec.tensors), build_host(spec.spec, spec.tensors), f"{method} {settings}")
    # A defence needs sensitive groups, so only the host is given one.
    recipe = make_recipe(method, {key: value for key, value in settings.items() if key != "defence"})
    network = build_network(model, SPACE.names, recipe, 0)
    public = cloud(12, exact(), torch.Generator().manual_seed(5))
    state = RunState(Layout.of(network).read(network), {})
    server = Server("run", 0, SPACE, recipe, network, state, engine, unlabelled=public.x)
    server.labelled = (public.x, public.truth) if recipe.server_trains else None
    server.join()
    server.ready()
    for _ in range(2):
        play_round(server)
    for step in recipe.conclude:
        list(step(server))
    assert server.dropped == []
    described = site_spec(spec, sites["a"]).spec["settings"]
    assert set(described) == set(keys(method, "site")), method
    return engine


def test_every_setting_says_where_it_belongs():
    for method, entry in METHODS.items():
        for key, field in entry.settings.model_fields.items():
            assert place_of(field) is not None, f"{method}.{key} is neither site_setting nor server_setting"


def test_the_sites_side_of_every_method_needs_only_the_sites_settings():
    assert VARIANTS.keys() <= METHODS.keys()
    refused = {}
    for method in METHODS:
        recipe = make_recipe(method, {})
        unused, unasked = set(keys(method, "server")), {*recipe.tasks, *(["train"] if recipe.sites_train else [])}
        for variant in [{}, *VARIANTS.get(method, [])]:
            settings = changed(method, {"rounds": 2, "steps": 2, "batch": 4, "lr": 0.05, **variant})
            engine = play(method, settings)
            unused -= settings.keys()
            unasked -= {task for task, _, _ in engine.asked}
        assert not unasked, f"{method}: no variant asks for these tasks"
        if unused:
            refused[method] = unused
    assert refused == {
        "fedtrans": {"warmup"},
        "mime": {"defence"},
        "representation": {"aggregation", "defence", "hostile", "participation", "sites"},
        "pooled": {"participation", "sites"},
    }, "give these settings a value in OTHER_VALUES or VARIANTS, unless the method refuses every value but the default"


def test_a_method_from_outside_must_say_where_its_settings_belong():
    class Plain(TrainingSettings):
        tau: float = 1.0

    class Marked(TrainingSettings):
        tau: float = site_setting(1.0, "temperature")
        trust: float = server_setting(1.0, "trust")
        lr: float = 0.1

    def recipe(settings: Plain):
        """Return nothing."""

    recipe.__annotations__["settings"] = Plain
    with pytest.raises(ConfigError, match=r"'tau' must say where it belongs: declare it by .*site_setting"):
        outside_entry("mine", recipe)
    recipe.__annotations__["settings"] = Marked
    fields = outside_entry("mine", recipe).settings.model_fields
    assert [place_of(fields[key]) for key in ("tau", "trust", "lr")] == ["site", "server", "site"]
    assert fields["lr"].description == TrainingSettings.model_fields["lr"].description


class Scaled(RowObjective):
    """Scales the loss, and writes down the factor that the site was given."""

    def __init__(self, factor, seen):
        self.factor, self.seen = factor, seen

    def row_losses(self, view, logits, batch):
        self.seen.append(self.factor)
        return self.factor * view.nll(logits, batch.target)


@pytest.mark.parametrize("batched", ["always", "never"])
def test_the_embedded_engine_keeps_server_settings_from_sites_as_a_deployment_does(batched):
    class Own(SharedModelSettings):
        mistaken: float = server_setting(1.0, "read by the sites all the same")
        attack: float = site_setting(1.0, "a setting of the method that only shares its name with ours")

    seen = {"mistaken": [], "attack": []}

    def recipe_of(key):
        def recipe(settings: Own) -> Recipe:
            return shared_model_recipe(settings, Scaled(getattr(settings, key), seen[key]))

        recipe.__annotations__["settings"] = Own
        return recipe

    rows = cloud(30, exact(), torch.Generator().manual_seed(1))
    labels = [SPACE.names[label] for label in rows.truth.tolist()]
    federation = Federation([Site(name, rows.x.numpy(), labels, exact()) for name in "abc"])
    run = {"batched": batched, "workers": 0}
    for key in seen:
        assert federation.train(recipe_of(key), rounds=1, run=run, **{key: 3.0}).summary["dropped"] == 0
    assert set(seen["mistaken"]) == {1.0}  # the default, as in a deployment
    assert set(seen["attack"]) == {3.0}


def test_a_cohort_sends_no_mean_where_a_setting_of_the_server_asks_for_more():
    """The sites' host cannot know that: it has no settings of the server."""
    for settings, means in (
        ({}, "always"),
        ({"aggregation": "median"}, "never"),
        ({"attack": {"kind": "sign-flip", "sites": 1}}, "never"),
    ):
        method = {"name": "fedavg", "rounds": 1, "steps": 1, **settings}
        data = {"dataset": "digits", "samples": 100, "partition": {"kind": "iid", "sites": 4}}
        run = {"batched": "whole", "workers": 0}
        experiment = check_experiment({"data": data, "model": {"hidden": [8]}, "method": method, "run": run})
        with open_server(experiment, load_federation(experiment, Path())) as server:
            assert server.engine._host.cohort_means == means
            record = play_round(server)
            assert (record.replied, record.dropped) == (4, [])
