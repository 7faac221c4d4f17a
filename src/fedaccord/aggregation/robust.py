"""Rules that some hostile sites cannot pull where they like: median, trimmed mean, Krum and Multi-Krum.

The rules are functions of a matrix, sites x parameters, and ignore sample counts, which a hostile site could make up
(Yin et al. 2018 for median and trimmed mean, Blanchard et al. 2017 for Krum). `RobustAggregation` applies one to whole
models, or to the encoder over all sites and to each label's head row over the sites that own it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaccord.aggregation.mean import batch_norm_slices, weighted_mean
from fedaccord.aggregation.replies import Replies
from fedaccord.errors import TooFewSitesError

FEWEST = 3  # between two sites that differ, no rule can tell which is hostile


def median(matrix: Tensor) -> Tensor:
    """Return the middle value of each column, of an even number of sites the mean of the two middle ones."""
    _enough("median", len(matrix), 1)
    ranked = matrix.sort(dim=0).values
    low, high = ranked[(len(matrix) - 1) // 2], ranked[len(matrix) // 2]
    return low.clone() if len(matrix) % 2 else low / 2 + high / 2  # halves first: the sum of two large ones overflows


def trimmed_mean(matrix: Tensor, trim: int) -> Tensor:
    """Return each column's mean without its `trim` smallest and `trim` largest values."""
    _enough("trimmed-mean", len(matrix), 2 * trim + 1, trim)
    kept = matrix.sort(dim=0).values[trim : len(matrix) - trim]
    return kept.double().mean(0).to(matrix.dtype)


def krum_scores(matrix: Tensor, hostile: int) -> Tensor:
    """Return each site's sum of squared distances to its `n - hostile - 2` nearest others, float64 (sites,)."""
    sites = len(matrix)
    _enough("krum", sites, 2 * hostile + 3, hostile)
    exact = matrix.double()  # distances by differences: by products, a distant site's size would drown the others'
    distances = torch.cdist(exact, exact, compute_mode="donot_use_mm_for_euclid_dist").square()
    distances.fill_diagonal_(math.inf)
    return distances.sort(dim=1).values[:, : sites - hostile - 2].sum(1)


def krum_choice(matrix: Tensor, hostile: int, keep: int = 1) -> Tensor:
    """Return the rows of the `keep` sites with the lowest scores, ties by order: int64 (keep,)."""
    scores = krum_scores(matrix, hostile)
    if not 1 <= keep <= len(matrix):
        raise ValueError(f"of {len(matrix)} sites between 1 and {len(matrix)} can be kept, not {keep}")
    return scores.sort(stable=True).indices[:keep]


def krum(matrix: Tensor, hostile: int) -> Tensor:
    """Return the row that lies closest to its nearest others."""
    return matrix[krum_choice(matrix, hostile)[0]].clone()


def multi_krum(matrix: Tensor, hostile: int, keep: int | None = None) -> Tensor:
    """Return the plain mean of the `keep` rows with the lowest scores, `n - hostile` of them unless told."""
    chosen = krum_choice(matrix, hostile, len(matrix) - hostile if keep is None else keep)
    return matrix[chosen].double().mean(0).to(matrix.dtype)


@dataclass(frozen=True)
class Rule:
    """A robust rule by name, and the sites it takes to be hostile: a number, or a share of those that sent something.

    A share is rounded down, to at least one site. The median needs no such number and withstands any minority.
    """

    name: str  # "median", "trimmed-mean", "krum", "multi-krum"
    hostile: int | float = 0.2

    def hostile_among(self, sites: int) -> int:
        """Return how many of so many sites are taken to be hostile."""
        if isinstance(self.hostile, int):
            return self.hostile
        # The small step is for products such as 0.29 * 100, which floating point puts just below 29.
        return max(1, math.floor(self.hostile * sites + 1e-9))

    @property
    def chooses(self) -> bool:
        """Whether the rule takes some sites as they are, rather than values of each parameter by themselves."""
        return self.name in ("krum", "multi-krum")

    def among(self, sites: int, left_out: int) -> Rule:
        """Return the rule for what a defence left of a round: as it is, or for as many fewer hostile sites as it needs.

        A defence may have left out honest sites, so a number is lowered only where the rule would not fit otherwise,
        and by no more than were left out. A share is of those that are left.
        """
        if not isinstance(self.hostile, int):
            return self
        lower = (replace(self, hostile=self.hostile - fewer) for fewer in range(min(left_out, self.hostile) + 1))
        return next((rule for rule in lower if rule.fits(sites)), self)

    def fits(self, sites: int) -> bool:
        """Say whether so many sites are enough for the rule to be robust."""
        return sites >= self.needs(sites)

    def needs(self, sites: int) -> int:
        """Return how many sites the rule needs when so many sent something."""
        hostile = self.hostile_among(sites)
        return max(FEWEST, {"median": 0, "trimmed-mean": 2 * hostile + 1}.get(self.name, 2 * hostile + 3))

    def over(self, matrix: Tensor) -> Callable[[Tensor], Tensor]:
        """Return how columns of these sites are combined; Krum chooses its sites by the whole matrix.

        Raises TooFewSitesError where the sites are too few.
        """
        sites, hostile = len(matrix), self.hostile_among(len(matrix))
        if not self.fits(sites):
            raise TooFewSitesError(self.refusal(sites))
        if self.name == "median":
            return median
        if self.name == "trimmed-mean":
            return lambda columns: trimmed_mean(columns, hostile)
        chosen = krum_choice(matrix, hostile, 1 if self.name == "krum" else sites - hostile)
        return lambda columns: columns[chosen].double().mean(0).to(columns.dtype)

    def refusal(self, sites: int) -> str:
        """Say why so many sites are too few."""
        return _too_few(self.name, sites, self.needs(sites), self.hostile_among(sites))


@dataclass(frozen=True)
class RobustAggregation:
    """Combines replies by a robust rule: the `aggregator` slot.

    With `per_label` a head row is combined over the sites that own its label. A row with too few owners is their mean
    by sample count, which is not robust (`thin` says which); one without owners keeps its previous values.
    """

    rule: Rule
    per_label: bool = False
    pooled: bool = False  # batch-norm variances account for the spread of the means

    def __call__(self, replies: Replies) -> Tensor:
        """Return the next model; raises TooFewSitesError where the replies are too few for the rule."""
        rows = replies.layout.head_rows() if self.per_label else torch.zeros(0, 0, dtype=torch.int64)
        common = torch.ones(replies.layout.size, dtype=torch.bool)
        common[rows.flatten()] = False
        places = common.nonzero().flatten()
        result = replies.previous.clone()
        combine = self.rule.among(len(replies), replies.left_out).over(replies.looked_at(places))
        result[places] = combine(replies.matrix[:, places])
        self._batch_norm(replies, combine, result)
        for label, row in enumerate(rows):
            owners = replies.informs[:, label]
            sent = replies.matrix[owners][:, row]
            rule = self.rule.among(len(sent), replies.left_out)
            if rule.fits(len(sent)):
                result[row] = rule.over(replies.looked_at(row)[owners])(sent)
            elif len(sent):
                result[row] = weighted_mean(sent, replies.weights[owners])
        return result

    def thin(self, informs: Tensor, left_out: int = 0) -> Tensor:
        """Mark the labels that some of these sites own, but too few for the rule: bool (labels,).

        None are marked where the sites are too few altogether: then nothing is combined.
        """
        combines = self.per_label and self.rule.among(len(informs), left_out).fits(len(informs))
        owners = informs.sum(0).tolist()
        return torch.tensor([combines and n > 0 and not self.rule.among(n, left_out).fits(n) for n in owners])

    def _batch_norm(self, replies: Replies, combine: Callable[[Tensor], Tensor], result: Tensor) -> None:
        """See to valid variances: a hostile site may send negative ones, and pooling must not let it in again."""
        for mean_at, variance_at in batch_norm_slices(replies.layout):
            variances = replies.matrix[:, variance_at].clamp(min=0)
            if self.pooled:
                variances = variances + (replies.matrix[:, mean_at] - result[mean_at]).square()
            result[variance_at] = combine(variances)


def _enough(rule: str, sites: int, needed: int, hostile: int = 0) -> None:
    if hostile < 0:
        raise ValueError(f"the number of hostile sites is 0 or more, not {hostile}")
    if sites < needed:
        raise TooFewSitesError(_too_few(rule, sites, needed, hostile))


def _too_few(rule: str, sites: int, needed: int, hostile: int) -> str:
    against = f" against {hostile} hostile one{'s' * (hostile > 1)}" if hostile and rule != "median" else ""
    return f"the rule '{rule}' needs at least {needed} sites{against}, and there are {sites}"
