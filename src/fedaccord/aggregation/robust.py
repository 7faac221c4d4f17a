"""Byzantine-robust aggregation: median, trimmed mean, Krum and Multi-Krum.

The rules are functions of a matrix, sites x parameters, and ignore sample counts, which a hostile site could forge
(median and trimmed mean: Yin et al. 2018; Krum: Blanchard et al. 2017). `RobustAggregation` applies a rule to whole
models, or to the encoder over all sites and to each head row over the owners of its label.
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

FEWEST = 3  # with two different sites no rule can tell which one is hostile


def median(matrix: Tensor) -> Tensor:
    """Return the median of each column; for an even number of sites, the mean of the two middle values."""
    _check_enough("median", len(matrix), 1)
    ranked = matrix.sort(dim=0).values
    low, high = ranked[(len(matrix) - 1) // 2], ranked[len(matrix) // 2]
    return low.clone() if len(matrix) % 2 else low / 2 + high / 2  # halved before adding, to avoid overflow


def trimmed_mean(matrix: Tensor, trim: int) -> Tensor:
    """Return the mean of each column without its `trim` smallest and `trim` largest values."""
    _check_enough("trimmed-mean", len(matrix), 2 * trim + 1, trim)
    trimmed = matrix.sort(dim=0).values[trim : len(matrix) - trim]
    return trimmed.double().mean(0).to(matrix.dtype)


def krum_scores(matrix: Tensor, hostile: int) -> Tensor:
    """Return each site's sum of squared distances to its `n - hostile - 2` nearest neighbours, float64 (sites,)."""
    sites = len(matrix)
    _check_enough("krum", sites, 2 * hostile + 3, hostile)
    exact = matrix.double()  # distances from differences: products would lose precision if one site is far away
    distances = torch.cdist(exact, exact, compute_mode="donot_use_mm_for_euclid_dist").square()
    distances.fill_diagonal_(math.inf)
    return distances.sort(dim=1).values[:, : sites - hostile - 2].sum(1)


def krum_choice(matrix: Tensor, hostile: int, keep: int = 1) -> Tensor:
    """Return the row indices of the `keep` sites with the lowest scores, ties by order: int64 (keep,)."""
    return krum_scores(matrix, hostile).sort(stable=True).indices[:keep]


@dataclass(frozen=True)
class Rule:
    """A robust rule and the number of sites assumed hostile, or their share of the sites that replied.

    A share is rounded down, to at least one site. The median ignores it and tolerates any minority.
    """

    name: str  # "median", "trimmed-mean", "krum", "multi-krum"
    hostile: int | float = 0.2

    def hostile_among(self, sites: int) -> int:
        """Return the number of sites assumed hostile, out of `sites`."""
        if isinstance(self.hostile, int):
            return self.hostile
        # The epsilon corrects products such as 0.29 * 100, which is just below 29 in floating point.
        return max(1, math.floor(self.hostile * sites + 1e-9))

    @property
    def chooses(self) -> bool:
        """Whether the rule selects whole sites instead of combining each parameter separately."""
        return self.name in ("krum", "multi-krum")

    def among(self, sites: int, left_out: int) -> Rule:
        """Return the rule for the `sites` that remain after a defence excluded `left_out`.

        The defence may have excluded honest sites, so a number of hostile sites is only lowered if too few sites
        remain, and by at most `left_out`. A share applies to the remaining sites.
        """
        if not isinstance(self.hostile, int):
            return self
        lower = (replace(self, hostile=self.hostile - fewer) for fewer in range(min(left_out, self.hostile) + 1))
        return next((rule for rule in lower if rule.fits(sites)), self)

    def fits(self, sites: int) -> bool:
        """Return whether `sites` sites are enough for the rule to be robust."""
        return sites >= self.needs(sites)

    def needs(self, sites: int) -> int:
        """Return the number of sites that the rule needs if `sites` replied."""
        hostile = self.hostile_among(sites)
        return max(FEWEST, {"median": 0, "trimmed-mean": 2 * hostile + 1}.get(self.name, 2 * hostile + 3))

    def over(self, matrix: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function that combines columns of these sites; Krum selects sites by the whole matrix.

        Raise TooFewSitesError if there are too few sites.
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
        """Return the message that `sites` sites are too few."""
        return _too_few(self.name, sites, self.needs(sites), self.hostile_among(sites))


@dataclass(frozen=True)
class RobustAggregation:
    """Aggregates replies by a robust rule.

    With `per_label` a head row is aggregated over the owners of its label. A row with too few owners is their mean by
    sample count, which is not robust (see `underowned`); a row without owners keeps its previous values.
    """

    rule: Rule
    per_label: bool = False
    pooled: bool = False  # whether batch-norm variances include the spread of the means

    def __call__(self, replies: Replies) -> Tensor:
        """Return the next model; raise TooFewSitesError if there are too few replies for the rule."""
        rows = replies.layout.head_rows() if self.per_label else torch.zeros(0, 0, dtype=torch.int64)
        is_common = torch.ones(replies.layout.size, dtype=torch.bool)
        is_common[rows.flatten()] = False
        common = is_common.nonzero().flatten()
        result = replies.previous.clone()
        combine = self.rule.among(len(replies), replies.left_out).over(replies.scored_columns(common))
        result[common] = combine(replies.matrix[:, common])
        self._aggregate_variances(replies, combine, result)
        for label, row in enumerate(rows):
            owners = replies.informs[:, label]
            sent = replies.matrix[owners][:, row]
            rule = self.rule.among(len(sent), replies.left_out)
            if rule.fits(len(sent)):
                result[row] = rule.over(replies.scored_columns(row)[owners])(sent)
            elif len(sent):
                result[row] = weighted_mean(sent, replies.weights[owners])
        return result

    def underowned(self, informs: Tensor, left_out: int = 0) -> Tensor:
        """Return a mask of the labels with owners, but too few for the rule: bool (labels,).

        The mask is all false if there are too few sites altogether, because then nothing is aggregated.
        """
        aggregates = self.per_label and self.rule.among(len(informs), left_out).fits(len(informs))
        owners = informs.sum(0).tolist()
        return torch.tensor([aggregates and n > 0 and not self.rule.among(n, left_out).fits(n) for n in owners])

    def _aggregate_variances(self, replies: Replies, combine: Callable[[Tensor], Tensor], result: Tensor) -> None:
        """Aggregate batch-norm variances robustly: a hostile site may send negative or inflated ones."""
        for mean_at, variance_at in batch_norm_slices(replies.layout):
            variances = replies.matrix[:, variance_at].clamp(min=0)
            if self.pooled:
                variances = variances + (replies.matrix[:, mean_at] - result[mean_at]).square()
            result[variance_at] = combine(variances)


def _check_enough(rule: str, sites: int, needed: int, hostile: int = 0) -> None:
    if hostile < 0:
        raise ValueError(f"the number of hostile sites must be 0 or more, not {hostile}")
    if sites < needed:
        raise TooFewSitesError(_too_few(rule, sites, needed, hostile))


def _too_few(rule: str, sites: int, needed: int, hostile: int) -> str:
    against = f" against {hostile} hostile one{'s' * (hostile > 1)}" if hostile and rule != "median" else ""
    return f"the rule '{rule}' needs at least {needed} sites{against}, and there are {sites}"
