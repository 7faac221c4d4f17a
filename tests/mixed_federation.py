"""A labelled server and coarsely labelled sites, small enough to follow, for tests of mixed-type methods."""

from __future__ import annotations

import torch

from fedaccord.federation.round import play_round
from fedaccord.labels.views import Coarse
from fedaccord.methods.registry import make_recipe
from small_federation import SPACE, cloud, exact, federation, pets_or_cattle, site

QUICK = {"rounds": 3, "lr": 0.1, "batch": 8}
READY = {"warmup": 60, "threshold": 0.5, "lambda2": 1.0, "epochs": 1, "server_epochs": 2}
COUNT = "count coarse names"
SWAPPED = torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])  # pets are called cattle, and cattle pets
HOWS = ("known", "estimated", "estimated-average", "learnable", "learnable-average")


def horses_and_others():
    """Coarse names of another set: only the dog is told apart."""
    return Coarse(SPACE, {"dog": ["dog"], "other": ["cat", "cow"]})


def coarse_sites():
    return [site(name, samples=40, view=pets_or_cattle()) for name in "abc"]


def samples(number=12, seed=5):
    part = cloud(number, exact(), torch.Generator().manual_seed(seed))
    return part.x, part.truth


def started(name, sites=None, labelled=True, **settings):
    recipe = make_recipe(name, {**QUICK, **settings})
    server = federation(recipe, sites or coarse_sites(), test=samples(60, seed=6))
    server.labelled = samples() if labelled else None
    server.ready()
    return server


def played(name, sites=None, rounds=3, **settings):
    server = started(name, sites, **settings)
    records = [play_round(server) for _ in range(rounds)]
    return server, records


def tasks(server):
    return [task for task, _, _ in server.engine.asked]
