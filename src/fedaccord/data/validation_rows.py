"""Validation rows: kept apart from training, to choose settings by.

Test rows are dropped, so that nothing can read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.server_data import pooled_test
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.sites import FederationData
from fedaccord.errors import DataError
from fedaccord.lazy import Array
from fedaccord.seeds import derive

SHARE = 0.2  # of the annotated training rows
FEWEST = 3  # rows; a judge with fewer would be mostly noise
SMALLEST = 3 * FEWEST  # annotated rows; a smaller site keeps all of them for training
SERVER_ROWS = "labelled samples of the server that were kept apart from training"
TOO_FEW = (
    f"settings cannot be judged: no site has {SMALLEST} annotated training rows with several of the same class, and "
    "the server has too few labelled samples to keep some apart"
)


@dataclass(frozen=True)
class Validation:
    """A federation whose test parts are rows kept apart from training."""

    data: FederationData
    server_judges: bool  # the server's test is its own labelled samples, kept apart
    not_judged: list[str] = field(default_factory=list)  # sites with too few annotated rows


def keep_apart(data: FederationData, seed: int) -> Validation:
    """Make a share of the training rows the test rows, at every site and of the server's labelled samples.

    All rows that were test rows are dropped. The rows kept apart have no truth but their annotations, so that settings
    are chosen by figures that a site could measure. Sites with too few annotated rows keep them all for training.
    Raise DataError if nobody could keep rows apart.
    """
    sites = {name: _site(site, derive(seed, "apart", name)) for name, site in data.sites.items()}
    labelled, test = data.labelled, None
    if labelled is not None:
        train, apart = split_rows(labelled[1] >= 0, labelled[1], derive(seed, "apart from the server's"))
        test = (labelled[0][apart], labelled[1][apart]) if len(apart) else None
        labelled = labelled[0][train], labelled[1][train]
    not_judged = [name for name, site in sites.items() if not len(site.test)]
    if test is None and len(not_judged) == len(sites):
        raise DataError(TOO_FEW)
    found = replace(data, sites=sites, labelled=labelled, test=None, test_groups=None, notes=[], flaws=[])
    if test is not None:
        found.test, found.test_source = test, SERVER_ROWS
    else:
        found.set_test(pooled_test(sites))
    return Validation(found, test is not None, not_judged)


def _site(site: SiteData, seed: int) -> SiteData:
    train, view = site.train, site.view
    rest, apart = split_rows(view.annotated(train.target), train.target, seed)
    seen = train.map(itemgetter(apart))
    judged = Samples(seen.x, seen.target, view.true_classes(seen.target), seen.group)
    return SiteData(site.name, view, train.map(itemgetter(rest)), judged)


def split_rows(annotated: Tensor, target: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return the rows to train on, and the rows kept apart: none if there are too few."""
    rng = np.random.default_rng(seed)
    among = rng.permutation(annotated.nonzero().flatten().numpy())
    number = max(FEWEST, round(SHARE * len(among)))
    enough = len(among) >= SMALLEST
    if target.ndim == 1 and not target.is_floating_point():
        among = _sorted_by_class(among, target.numpy()[among])
    if not enough or len(among) < number:
        return torch.arange(len(target)), torch.arange(0)
    # Equal steps through rows that are sorted by class take the same share of every class.
    steps = ((np.arange(number) + rng.random()) * len(among) / number).astype(np.int64)
    apart = np.sort(among[steps])
    return torch.from_numpy(np.setdiff1d(np.arange(len(target)), apart)), torch.from_numpy(apart)


def _sorted_by_class(rows: Array, classes: Array) -> Array:
    """Return the rows in the order of their classes, without one row of each class, which stays for training."""
    spare = np.setdiff1d(np.arange(len(rows)), np.unique(classes, return_index=True)[1])
    return rows[spare][np.argsort(classes[spare], kind="stable")]
