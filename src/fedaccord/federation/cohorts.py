"""Cohorts: groups of sites that train, or are evaluated, as one program, if that is expected to be faster.

Cohorts depend on the sampled sites only, so that results are the same for any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch

from fedaccord.data.site_data import SiteData
from fedaccord.federation.recipe import Recipe
from fedaccord.messages.message import SiteId
from fedaccord.models.network import Network
from fedaccord.models.stacked import dense_forward, stacked_forward
from fedaccord.training.cohort import MOST_VALUES, is_batchable, terms_of

MOST_SITES = 16
FEWEST_SITES = 3  # smaller cohorts cost more than they save
# Number of sites from which cohorts are used by default. Fewer sites are fast anyway, and one by one they give the
# same bits as Flower, which trains each site on its own.
MANY_SITES = 20
MOST_EVALUATED = 32  # sites that are evaluated in one pass
MOST_TESTED = 100_000  # values of their test inputs: larger sites are shared among workers
PIECES = 8  # number of cohorts to share among workers, if each keeps at least FEWEST_SITES sites


class Cohorts:
    """Groups the sites of a training or an evaluation into cohorts; other tasks run site by site."""

    def __init__(
        self, sites: Mapping[SiteId, SiteData], size: int, fewest: int = FEWEST_SITES, pieces: int = PIECES
    ) -> None:
        self.size, self.fewest, self.pieces = size, fewest, pieces
        self._rank = {name: (site.view.stacking_key() or "", -len(site.train), name) for name, site in sites.items()}
        self._tested = {name: site.test.x.numel() for name, site in sites.items()}

    def __call__(self, task: str, sites: list[SiteId]) -> list[list[SiteId]]:
        """Return the cohorts: sites with the same stacking key, ordered by size."""
        batched = task == "evaluate" or (task == "train" and self.size >= FEWEST_SITES)
        if not batched or len(sites) < self.fewest:
            return [[site] for site in sites]
        ranked = sorted(sites, key=lambda site: self._rank[site])
        kinds: dict[str, list[SiteId]] = {}
        for site in ranked:
            kinds.setdefault(self._rank[site][0], []).append(site)
        if task == "evaluate":
            return [cohort for kind in kinds.values() for cohort in self._evaluated(kind)]
        return [cohort for kind in kinds.values() for cohort in split_evenly(kind, self.size, self.pieces)]

    def _evaluated(self, sites: list[SiteId]) -> Iterator[list[SiteId]]:
        """Yield groups of sites whose test inputs are few enough for one pass; a larger site is alone."""
        group: list[SiteId] = []
        values = 0
        for site in sites:
            if group and (values + self._tested[site] > MOST_TESTED or len(group) == MOST_EVALUATED):
                yield group
                group, values = [], 0
            group.append(site)
            values += self._tested[site]
        yield group


def split_evenly(sites: list[SiteId], most: int, pieces: int = PIECES) -> list[list[SiteId]]:
    """Split a list into parts of equal length, up to rounding, of at most `most` sites.

    There are at least `pieces` parts, unless these would have fewer than `FEWEST_SITES` sites.
    """
    parts = max(math.ceil(len(sites) / most), min(pieces, len(sites) // FEWEST_SITES), 1)
    bounds = [len(sites) * part // parts for part in range(parts + 1)]
    return [sites[start:stop] for start, stop in pairwise(bounds)]


def cohort_size(recipe: Recipe, network: Network, device: torch.device) -> int:
    """Return the largest number of sites that may train as one program; 1 if stacking is impossible or slower."""
    batchable = terms_of(recipe.objective) is not None and is_batchable(recipe.site_solver)
    if not batchable or not recipe.sites_train or recipe.is_pooled or stacked_forward(network) is None:
        return 1
    if device.type == "cpu" and dense_forward(network) is None:
        return 1  # stacked convolutions are not faster on a CPU
    values = sum(parameter.numel() for parameter in network.parameters())
    return max(1, min(MOST_SITES, MOST_VALUES // max(1, values)))
