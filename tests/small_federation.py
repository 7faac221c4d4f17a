"""A federation small enough to follow: the real server and the real host, between them an engine a test can script."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.federation.attack import make_attack
from fedaccord.federation.host import SiteHost
from fedaccord.federation.round import play_round
from fedaccord.federation.server import Server
from fedaccord.federation.state import RunState
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, Coarse, Exact, Tags, Unlabelled
from fedaccord.messages.message import Message, from_bytes, to_bytes
from fedaccord.methods.candidate_sets.recipe import with_personal_layer
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network, insert_personal_layer
from fedaccord.training.objectives import Objective
from fedaccord.training.work import LocalWork

SPACE = LabelSpace(["cat", "dog", "cow"])
INPUTS, FEATURES = 4, 5


class ScriptedEngine:
    """Serves all sites from one host, one after the other; a test may spoil what a site replies to a task.

    Every message goes through its bytes, as between two machines, so that nothing is shared by accident.
    """

    def __init__(self, host):
        self.host = host
        self.kept = {}
        self.spoil = {}  # (task, site) -> function of the honest reply that returns another one, or a Failure
        self.asked = []  # (task, site, brief) in the order of work
        self.replies = {}  # (task, site) -> the last reply that was sent
        self.backwards = False  # work and answer in the opposite order of site names

    def sites(self):
        return sorted(self.host.sites)

    def ask(self, task, briefs, deadline=None):
        answers = {}
        for site in sorted(briefs, reverse=self.backwards):
            self.asked.append((task, site, copied(briefs[site])))
            memory = self.kept.get(site, Message())
            reply, kept = self.host.handle(task, site, copied(briefs[site]), copied(memory))
            self.kept[site] = copied(kept)
            reply = copied(reply)
            if (task, site) in self.spoil:
                reply = self.spoil[task, site](reply)
            self.replies[task, site] = answers[site] = reply
        return answers

    def memories(self):
        return {site: memory for site, memory in sorted(self.kept.items()) if not memory.is_empty()}

    def restore(self, memories):
        self.kept = {site: copied(memory) for site, memory in memories.items()}

    def close(self):
        pass


class TogetherEngine(ScriptedEngine):
    """Has all sites that are asked to train do so as one cohort."""

    def ask(self, task, briefs, deadline=None):
        if task != "train":
            return super().ask(task, briefs, deadline)
        jobs = [(name, copied(briefs[name]), self.kept.get(name, Message())) for name in sorted(briefs)]
        for (name, *_), (reply, kept) in zip(jobs, self.host.handle_together(task, jobs), strict=True):
            reply, self.kept[name] = copied(reply), copied(kept)
            self.replies[task, name] = self.spoil.get((task, name), lambda honest: honest)(reply)
        return {name: self.replies[task, name] for name in briefs}


def copied(message):
    return from_bytes(to_bytes(message))


def federation(recipe, sites, network=None, seed=0, test=None, run="this-run"):
    """Return a server whose sites have joined; `server.engine` is the scripted engine."""
    network = copy.deepcopy(network or small_network())
    if recipe.network is with_personal_layer and network.personal is None:
        insert_personal_layer(network)
    attack = make_attack(recipe.settings)
    host = SiteHost({site.name: site for site in sites}, copy.deepcopy(network), recipe, seed, attack=attack)
    counters = {name: b.clone() for name, b in network.named_buffers() if not b.is_floating_point()}
    server = Server(
        run=run,
        seed=seed,
        space=SPACE,
        recipe=recipe,
        network=copy.deepcopy(network),
        state=RunState(Layout.of(network).read(network), counters),
        engine=ScriptedEngine(host),
        test=test,
        attack=attack,
    )
    server.join()
    return server


def whole_and_resumed(fresh):
    """Play three rounds twice, the second time with a cut after two; returns both servers."""
    whole, first, second = fresh(), fresh(), fresh()
    for _ in range(3):
        play_round(whole)
    for _ in range(2):
        play_round(first)
    second.state = RunState.from_message(copied(first.state.to_message()))
    second.engine.restore(first.engine.memories())
    play_round(second)
    return whole, second


def small_network(batch_norm=False, personal=False):
    """4 inputs, 5 features, 3 classes; always the same values."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        between = nn.BatchNorm1d(FEATURES) if batch_norm else nn.Identity()
        layer = nn.Linear(FEATURES, FEATURES, bias=False) if personal else None
        return Network(
            nn.Sequential(nn.Linear(INPUTS, FEATURES), between, nn.Tanh()), nn.Linear(FEATURES, len(SPACE)), layer
        )


def exact(known=None):
    return Exact(SPACE, known)


def pets_or_cattle():
    return Coarse(SPACE, {"pet": ["cat", "dog"], "cattle": ["cow"]})


def site(name, samples=12, view=None, test=6, seed=None):
    """A site whose classes are three clouds of points; its annotations are what its view shows of the truth."""
    view = view or exact()
    generator = torch.Generator().manual_seed(sum(map(ord, name)) if seed is None else seed)
    return SiteData(name, view, cloud(samples, view, generator), cloud(test, view, generator))


def cloud(samples, view, generator):
    # A tag site has samples of every class and says nothing of tags it does not know.
    possible = SPACE.columns(SPACE.names if isinstance(view, Tags) or view.known is None else view.known)
    truth = torch.tensor(possible)[torch.randint(len(possible), (samples,), generator=generator)]
    centres = 2 * torch.eye(len(SPACE), INPUTS)
    x = centres[truth] + 0.5 * torch.randn(samples, INPUTS, generator=generator)
    return Samples(x, annotations(view, truth), truth)


def annotations(view, truth):
    one_hot = nn.functional.one_hot(truth, len(SPACE))
    if isinstance(view, Candidates):  # the truth and the label after it
        return (one_hot + one_hot.roll(1, -1)).bool()
    if isinstance(view, Coarse):
        return view.matrix[:, truth].argmax(0)
    if isinstance(view, Tags):
        return one_hot.to(torch.int8).masked_fill(~view.informs(), -1)
    if isinstance(view, Unlabelled):
        return torch.full_like(truth, -1)
    return truth


def work_for(data, network, round_=1, lr=0.1, seed=0, brief=None, memory=None):
    """What one task of one site works with, for tests of the local loop alone."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    return LocalWork(
        site=data,
        view=data.view,
        model=network,
        brief=brief or Message(),
        memory=memory or Message(),
        round=round_,
        lr=lr,
        parameters=parameters,
        received=[p.detach().clone() for p in parameters],
        seed=seed,
    )


class Parabolas(Objective):
    """The problem of docs/methods.md 3.4 in every parameter: F_a = 0.5 (w - 1)^2, F_b = 2 (w + 1)^2."""

    CURVES = {"a": (0.5, 1.0), "b": (2.0, -1.0)}

    def loss(self, work, batch):
        scale, centre = self.CURVES[work.site.name]
        return sum(scale * (p - centre).square().sum() for p in work.parameters)


def zero_network(batch_norm=False):
    network = small_network(batch_norm)
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    return network
