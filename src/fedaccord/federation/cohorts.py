"""Which sites train as one program, where that is expected to be faster.

A cohort depends on who is asked and on nothing else, so that results are the same for any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import torch

from fedaccord.data.site_data import SiteData
from fedaccord.federation.recipe import Recipe
from fedaccord.messages.message import SiteId
from fedaccord.models.network import Network
from fedaccord.models.stacked import dense_forward, stacked_forward
from fedaccord.training.cohort import MOST_VALUES, is_batchable, terms_of

MOST_SITES = 16
FEWEST_SITES = 3  # below, a stack gains too little for what it costs
# From here on sites train as one program without being told to. Fewer sites take little time anyway, and one by one
# their model has the same bits as on Flower, where each site trains by itself.
MANY_SITES = 20
PIECES = 8  # so many jobs, where that leaves cohorts worth their name: several workers share them


class Cohorts:
    """Deals the sites that are asked to train into cohorts; every other task is each site's own."""

    def __init__(
        self, sites: Mapping[SiteId, SiteData], size: int, fewest: int = FEWEST_SITES, pieces: int = PIECES
    ) -> None:
        self.size, self.fewest, self.pieces = size, fewest, pieces
        self._rank = {name: (site.view.stacking_key() or "", -len(site.train), name) for name, site in sites.items()}

    def __call__(self, task: str, sites: list[SiteId]) -> list[list[SiteId]]:
        """Return the cohorts, sites of one kind and of like sizes together."""
        if task != "train" or self.size < FEWEST_SITES or len(sites) < self.fewest:
            return [[site] for site in sites]
        ranked = sorted(sites, key=lambda site: self._rank[site])
        kinds: dict[str, list[SiteId]] = {}
        for site in ranked:
            kinds.setdefault(self._rank[site][0], []).append(site)
        return [cohort for kind in kinds.values() for cohort in split_evenly(kind, self.size, self.pieces)]


def split_evenly(sites: list[SiteId], most: int, pieces: int = PIECES) -> list[list[SiteId]]:
    """Cut a list into parts of even length, none longer than `most`: `pieces` where that leaves enough in each."""
    parts = max(math.ceil(len(sites) / most), min(pieces, len(sites) // FEWEST_SITES), 1)
    bounds = [len(sites) * part // parts for part in range(parts + 1)]
    return [sites[start:stop] for start, stop in pairwise(bounds)]


def cohort_size(recipe: Recipe, network: Network, device: torch.device) -> int:
    """Return how many sites may train as one program; 1 where that would gain nothing or cannot be done."""
    together = terms_of(recipe.objective) is not None and is_batchable(recipe.site_solver)
    if not together or recipe.trains not in ("sites", "sites and server") or stacked_forward(network) is None:
        return 1
    if device.type == "cpu" and dense_forward(network) is None:
        return 1  # a CPU's convolutions do not gain from being many
    values = sum(parameter.numel() for parameter in network.parameters())
    return max(1, min(MOST_SITES, MOST_VALUES // max(1, values)))
