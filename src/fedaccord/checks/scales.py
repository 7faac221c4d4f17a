"""Checks for numbers whose scale differs wildly between sites: often another unit, or a placeholder for "missing".

In the federations of `benchmarks/standardise.py`, split at random, by label, by hospital or by person, these thresholds
warn twice, and rightly: of a hospital that wrote 0 for every cholesterol, and of phones that measure differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedaccord.data.dataset import Array
from fedaccord.data.features import FeaturePlan
from fedaccord.data.scaling import Moments, fit_moments
from fedaccord.data.sites import FederationData
from fedaccord.errors import listed, listed_sites
from fedaccord.findings import Finding, warning

FARTHEST_MEANS = 3.0  # standard deviations within the sites
WIDEST_RATIO = 10.0  # of the sites' spreads
FARTHEST_CONSTANT = 2.0  # standard deviations within the others; sparse arrays are constant at a site for good reason
ROUNDING = 1e-6  # a standard deviation below this share of the numbers is a rounding error
FEWEST = 10  # rows; fewer give no reliable deviation
MOST_LINES = 3  # if more features differ, one line is about all of them
NORMAL_QUARTILES = 1.349  # distance of the quartiles of a normal distribution, in standard deviations


@dataclass(frozen=True)
class _Scales:
    """Rows, means and two measures of the spread, each (sites, features), of the same features at all sites."""

    sites: list[str]
    n: Array
    mean: Array
    deviation: Array
    quartiles: Array  # distance of the quartiles, in standard deviations of a normal distribution

    @property
    def varied(self) -> Array:
        """Whether a site has enough rows of a feature, and they differ."""
        return (self.n >= FEWEST) & ~self._equal

    @property
    def constant(self) -> Array:
        """Whether a site has enough rows of a feature, and they are equal, although it varies at another site."""
        return (self.n >= FEWEST) & self._equal & self.varied.any(0)

    @property
    def _equal(self) -> Array:
        largest = np.maximum(np.abs(self.mean), self.deviation.max(0))
        return self.deviation <= ROUNDING * largest

    def within(self) -> Array:
        """Return the standard deviation within the sites at which a feature varies, pooled; 0 if it never varies."""
        rows = np.where(self.varied, self.n, 0)
        return np.sqrt((rows * self.deviation**2).sum(0) / np.maximum(rows.sum(0), 1))


def number_findings(data: FederationData) -> list[Finding]:
    """Return findings from a comparison of the sites' numbers: columns of tables, or arrays other than images."""
    if data.features is not None:
        names = [f"column '{column.name}'" for column in data.features.columns if column.kind == "number"]
        rows = {name: _numbers(data.features, site.train.x.numpy()) for name, site in data.sites.items()}
        scales = _scales(rows, {name: fit_moments(x) for name, x in rows.items()})
        return [*_constants(scales, names, "columns", 0.0), *_other_scales(scales, names, "columns")]
    if not data.moments and len(data.input_shape) != 1:
        return []  # pixels have a fixed scale
    rows = {name: site.train.x.numpy().reshape(len(site.train), -1) for name, site in data.sites.items()}
    scaling = {name: _flat(moments) for name, moments in data.scaling().items()}
    rows = {name: _unscaled(x, scaling[name]) if name in scaling else x for name, x in rows.items()}
    own = {name: _flat(data.moments[name]) if name in data.moments else fit_moments(x) for name, x in rows.items()}
    names = [f"feature {', '.join(map(str, place))}" for place in np.ndindex(*data.input_shape)]
    scales = _scales(rows, own)
    return [*_constants(scales, names, "features", FARTHEST_CONSTANT), *_other_scales(scales, names, "features")]


def _constants(scales: _Scales, names: Sequence[str], plural: str, farther: float) -> list[Finding]:
    """Warn of features that are constant at some sites only, `farther` than this from the others' mean."""
    rows = np.where(scales.varied, scales.n, 0)
    mean = (rows * scales.mean).sum(0) / np.maximum(rows.sum(0), 1)
    apart = np.abs(scales.mean - mean) / np.where(scales.constant, scales.within(), np.inf)
    at = scales.constant & (apart >= farther)
    found = np.flatnonzero(at.any(0)).tolist()
    if len(found) > MOST_LINES:
        named = listed([names[feature] for feature in found], quotes=False)
        return [warning(f"{len(found)} {plural} never vary at some sites, but do elsewhere: {named}")]
    sites = {f: [scales.sites[s] for s in np.flatnonzero(at[:, f])] for f in found}
    return [warning(f"{names[f]} never varies at {listed_sites(sites[f])}, but does elsewhere") for f in found]


def _other_scales(scales: _Scales, names: Sequence[str], plural: str) -> list[Finding]:
    """Warn of each feature on another scale at some sites, in one line if there are many."""
    found = {**_wide(scales), **_far(scales)}
    worst = sorted(found, key=lambda feature: -found[feature][0])
    if len(worst) <= MOST_LINES:
        return [warning(f"{names[feature]} {found[feature][1]}; is it the same unit?") for feature in worst]
    first = f"{names[worst[0]]} {found[worst[0]][1]}"
    others = listed([names[feature] for feature in worst[1:]], quotes=False)
    text = f"{len(worst)} {plural} differ wildly in scale between the sites; {first}; the others are {others}"
    return [warning(f"{text}; are they in the same units?")]


def _far(scales: _Scales) -> dict[int, tuple[float, str]]:
    """Return the features with sites whose means are far apart: by how much, and a sentence."""
    varied, within = scales.varied, scales.within()
    low, high = np.where(varied, scales.mean, np.inf), np.where(varied, scales.mean, -np.inf)
    found = {}
    for feature in np.flatnonzero(varied.sum(0) > 1):
        first, last = int(low[:, feature].argmin()), int(high[:, feature].argmax())
        apart = float(high[last, feature] - low[first, feature]) / within[feature]
        if apart > FARTHEST_MEANS:
            sites = f"sites '{scales.sites[first]}' and '{scales.sites[last]}'"
            text = f"has means at {sites} that are {apart:.0f} times the spread within the sites apart"
            found[int(feature)] = (apart, text)
    return found


def _wide(scales: _Scales) -> dict[int, tuple[float, str]]:
    """Return the features that vary far more at one site than at another, by either measure of the spread."""
    varied, both = scales.varied, np.stack([scales.deviation, scales.quartiles])
    least, most = np.where(varied, both.min(0), -np.inf), np.where(varied, both.max(0), np.inf)
    found = {}
    for feature in np.flatnonzero(varied.sum(0) > 1):
        wide, narrow = int(least[:, feature].argmax()), int(most[:, feature].argmin())
        ratio = float(least[wide, feature] / most[narrow, feature])
        if ratio > WIDEST_RATIO:
            more = scales.deviation[wide, feature] / scales.deviation[narrow, feature]
            sites = f"at site '{scales.sites[wide]}' than at site '{scales.sites[narrow]}'"
            found[int(feature)] = (ratio, f"varies {more:.0f} times more {sites}")
    return found


def _scales(rows: Mapping[str, Array], moments: Mapping[str, Moments]) -> _Scales:
    """Return the scales of all sites' rows, (rows, features), NaN: missing, whose moments are known."""
    parts = [moments[name] for name in rows]
    n, mean, variance = (np.stack([getattr(part, key) for part in parts]) for key in ("n", "mean", "variance"))
    return _Scales(list(rows), n, mean, np.sqrt(variance), np.stack([_quartiles(x) for x in rows.values()]))


def _quartiles(x: Array) -> Array:
    """Return the distance of the quartiles of each feature, in standard deviations of a normal distribution."""
    if np.isnan(x).any():
        return np.array([_quartiles(column[~np.isnan(column)]) for column in x.T])
    if not len(x):
        return np.zeros(x.shape[1:])
    low, high = np.quantile(x, (0.25, 0.75), axis=0)
    return np.asarray((high - low) / NORMAL_QUARTILES)


def _unscaled(x: Array, moments: Moments) -> Array:
    """Undo the standardisation of rows; numbers that were cut or missing are not restored."""
    spread = np.sqrt(moments.variance)
    return x * np.where(spread > 0, spread, 1.0) + moments.mean


def _flat(moments: Moments) -> Moments:
    return Moments(moments.n.ravel(), moments.mean.ravel(), moments.variance.ravel())


def _numbers(plan: FeaturePlan, x: Array) -> Array:
    """Return the encoded columns of numbers, (rows, columns), NaN: missing."""
    columns, start = [], 0
    for column in plan.columns:
        if column.kind == "number":
            missing = x[:, start + 1] != 0 if column.flag_missing else np.zeros(len(x), bool)
            columns.append(np.where(missing, np.nan, x[:, start]).astype(np.float64))
        start += len(column.features)
    return np.stack(columns, axis=1) if columns else np.zeros((len(x), 0))
