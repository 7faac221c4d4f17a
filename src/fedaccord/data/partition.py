"""Seven kinds of partition of one data set into sites, all deterministic given their random generator.

Every kind except `natural` and `iid` first computes a table of sites x classes, the number of samples of each class at
each site, and then deals these numbers from the shuffled samples of each class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaccord.errors import PartitionError, did_you_mean

IntArray = npt.NDArray[np.int64]
Rng = np.random.Generator
_TIE = 9  # decimals to which shares are rounded, so that ties are the same on every machine
_REPLACED = "samples were drawn with replacement, so a sample may be at several sites and more than once at one"


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of each site, the samples of no site, and notes on what differs from the request."""

    parts: list[IntArray]  # sorted sample indices, one array per site
    unused: IntArray
    labels: list[list[int]] | None = None  # the classes of each site, if the kind deals classes
    notes: list[str] = field(default_factory=list)
    names: list[str] | None = None  # if the data name the sites

    def histogram(self, y: IntArray, classes: int) -> IntArray:
        """Return the number of samples of each class at each site: sites x classes."""
        index = class_index(y, classes)
        return np.stack([np.bincount(index[part], minlength=classes) for part in self.parts]).astype(np.int64)

    def report(self, y: IntArray | None, class_names: Sequence[str]) -> dict[str, Any]:
        """Return a description of the partition for JSON, with a histogram if samples have one class."""
        table = [] if y is None else self.histogram(y, len(class_names)).tolist()
        return {
            "sizes": [int(part.size) for part in self.parts],
            "histogram": [dict(zip(class_names, row, strict=True)) for row in table] or None,
            "labels": None if self.labels is None else [[class_names[c] for c in dealt] for dealt in self.labels],
            "names": self.names,
            "unused": int(self.unused.size),
            "notes": list(self.notes),
        }


def allocate(class_counts: npt.ArrayLike, proportions: npt.ArrayLike) -> IntArray:
    """Split each class's count over the sites by its row of proportions (classes x sites), by largest remainder."""
    counts, shares = np.asarray(class_counts, dtype=np.int64), np.asarray(proportions, dtype=np.float64)
    sums = shares.sum(axis=1, keepdims=True)
    fine = np.isfinite(sums).all() and (shares >= 0).all() and (counts >= 0).all() and (sums[counts > 0] > 0).all()
    require(fine, "counts and shares must be finite and not negative, and some share above zero")
    exact = shares / np.where(sums > 0, sums, 1.0) * counts[:, None]
    floors = np.floor(exact).astype(np.int64)
    # A stable sort leaves ties in the order of the sites, so the lowest index gets the extra sample.
    order = np.argsort(-np.round(exact - floors, _TIE), axis=1, kind="stable")
    rank = np.argsort(order, axis=1)
    return floors + (rank < (counts - floors.sum(axis=1))[:, None])


def largest_remainder(shares: npt.ArrayLike, total: int) -> IntArray:
    """Split `total` into whole parts in proportion to `shares`; ties go to the lowest index."""
    return allocate([total], np.asarray(shares)[None])[0]


def iid(y: IntArray, sites: int, rng: Rng, stratified: bool = False) -> Partition:
    """Split at random into equal sizes; stratified, the counts of a class differ by at most one between sites."""
    n, sites = len(y), site_count(sites, len(y))
    order = rng.permutation(n)
    if not stratified:
        return _partition(n, np.array_split(order, sites))
    index = class_index(y)
    turn = rng.permutation(index.max() + 1)  # the numbers of classes must not decide which sites get one sample more
    order = order[np.argsort(turn[index[order]], kind="stable")]
    return _partition(n, [order[site::sites] for site in range(sites)])


def by_classes(y: IntArray, sites: int, classes_per_site: int, rng: Rng, replace: bool = False) -> Partition:
    """Give each site the same number of classes and, if its classes have enough, the same number of samples."""
    index = class_index(y)
    sites, classes = site_count(sites, index.size), np.unique(index)
    each = whole("classes per site", classes_per_site, 1, classes.size)
    ring = rng.permutation(classes)
    # The next `each` entries of the ring never repeat a class; all classes are dealt if sites * each >= classes.
    dealt = [ring[np.arange(site * each, (site + 1) * each) % ring.size] for site in rng.permutation(sites)]
    return _among_owners(index, dealt, index.size // sites, rng, replace)


def quantity(y: IntArray, sizes: Sequence[int], rng: Rng) -> Partition:
    """Give each site its size, with the same class proportions everywhere."""
    index = class_index(y)
    require(isinstance(sizes, Sequence | np.ndarray) and len(sizes) > 0, "sizes must be a list, one for each site")
    asked = [whole("each of the sizes", size, 1) for size in sizes]
    require(sum(asked) <= index.size, f"the sizes add up to {sum(asked)}, but there are only {index.size} samples")
    classes, left = np.unique(index, return_counts=True)
    counts = np.zeros((len(asked), classes.size), dtype=np.int64)
    # Proportions of the remaining samples never exceed a class; the largest site first keeps rounding errors small.
    for site in np.argsort(asked, kind="stable")[::-1]:
        counts[site] = largest_remainder(left, asked[site])
        left = left - counts[site]
    return _partition(index.size, _deal(index, classes, counts, rng))


def dirichlet(y: IntArray, sites: int, alpha: float, rng: Rng, min_size: int = 10, tries: int = 1000) -> Partition:
    """Split each class by a draw from Dir(alpha); draw again while a site has fewer than `min_size` samples."""
    index = class_index(y)
    sites, alpha = site_count(sites, index.size), number("alpha", alpha)
    least, tries = whole("min_size", min_size, 1), whole("tries", tries, 1)
    require(alpha > 0, f"alpha must be above 0, not {alpha:g}")
    notes = []
    if least * sites > index.size:
        notes.append(f"{index.size} samples cannot give {sites} sites {least} each, so the smallest may have 1")
        least = 1
    classes, available = np.unique(index, return_counts=True)
    concentration = np.full(sites, min(alpha, 1e100))  # numpy's draw overflows near the largest float
    for _ in range(tries):
        counts = allocate(available, rng.dirichlet(concentration, size=classes.size)).T
        if counts.sum(axis=1).min() >= least:
            break
    moved = 0
    while (sizes := counts.sum(axis=1)).min() < least:  # terminates because least * sites <= samples
        common = counts[sizes.argmax()].argmax()
        counts[sizes.argmax(), common] -= 1
        counts[sizes.argmin(), common] += 1
        moved += 1
    if moved:
        notes.append(f"no draw of {tries} gave every site {least} samples, so the largest sites gave {moved} away")
    return _partition(index.size, _deal(index, classes, counts, rng), notes=notes)


def gamma_prior(draws: npt.ArrayLike, client: int, gamma: float, reading: str = "multiply") -> npt.NDArray[np.float64]:
    """Return a site's class proportions: the draws, with its two majority classes times (or set to) 4 / (1 - gamma)."""
    prior = np.array(draws, dtype=np.float64)
    majority = sorted({2 * client % prior.size, (2 * client + 1) % prior.size})
    prior[majority] = (1 if reading == "set" else prior[majority]) * (4 / (1 - gamma))
    return prior / prior.sum()


def gamma(
    y: IntArray,
    sites: int,
    gamma: float,
    rng: Rng,
    samples_per_site: int | None = None,
    low: float = 0.45,
    high: float = 0.55,
    reading: str = "multiply",
    groups: IntArray | None = None,
    replace: bool = False,
) -> Partition:
    """Give each site two majority classes, as in FedMT; `groups` maps a class to the coarse class that is skewed."""
    index = class_index(y)
    sites, gamma = site_count(sites, index.size), number("gamma", gamma)
    low, high = number("low", low), number("high", high)
    require(0 <= gamma < 1, f"gamma must be at least 0 and below 1, not {gamma:g}")
    require(0 < low <= high, f"low and high must satisfy 0 < low <= high, not {low:g} and {high:g}")
    require(reading in ("multiply", "set"), f"reading must be 'multiply' or 'set', not {reading!r}")
    if groups is not None:
        index = class_index(groups)[class_index(y, len(groups))]
    size = index.size // sites if samples_per_site is None else whole("samples per site", samples_per_site, 1)
    classes, available = np.unique(index, return_counts=True)
    priors = [gamma_prior(rng.uniform(low, high, classes.size), site, gamma, reading) for site in range(sites)]
    wanted = np.floor(np.stack(priors) * size + 10.0**-_TIE).astype(np.int64)
    if replace:
        return _partition(index.size, _deal(index, classes, wanted, rng, replace), notes=[_REPLACED])
    counts = np.diff(np.minimum(np.cumsum(wanted, axis=0), available), axis=0, prepend=0)  # first come, first served
    short = wanted - counts
    hit, ran_out = short.any(axis=1).sum(), classes[short.any(axis=0)].tolist()
    note = f"{hit} of {sites} sites hold fewer samples than asked, {short.sum()} in all, as classes ran out: {ran_out}"
    return _partition(index.size, _deal(index, classes, counts, rng), notes=[note] if hit else [])


def label_sets(
    y: IntArray, sites: int, labels_per_site: int, rng: Rng, samples_per_site: int | None = None, coverage: bool = True
) -> Partition:
    """Draw a set of labels for each site; with `coverage` every label has a site."""
    index = class_index(y)
    sites, classes = site_count(sites, index.size), np.unique(index)
    each = whole("labels per site", labels_per_site, 1, classes.size)
    size = None if samples_per_site is None else whole("samples per site", samples_per_site, 1)
    drawn: list[list[int]] = [[] for _ in range(sites)]
    if coverage:
        enough = sites * each >= classes.size
        require(enough, f"{sites} sites with {each} labels each cannot cover {classes.size} labels")
        for label in rng.permutation(classes):
            drawn[rng.choice([site for site in range(sites) if len(drawn[site]) < each])].append(label)
    for labels in drawn:
        labels.extend(rng.choice(np.setdiff1d(classes, labels), each - len(labels), replace=False))
    return _among_owners(index, drawn, size, rng, replace=False)


def natural(ids: npt.ArrayLike, min_size: int = 1, small: str = "drop", most: int | None = None) -> Partition:
    """Make a site of each distinct id; drop or merge those below `min_size`, and keep the `most` largest."""
    column, least = np.asarray(ids, dtype=object), whole("min_size", min_size, 1)
    require(small in ("drop", "merge"), f"small must be 'drop' or 'merge', not {small!r}")
    found: dict[str, list[int]] = {}
    for sample, value in enumerate(column):
        found.setdefault(_site_name(value), []).append(sample)
    nameless = len(found.pop("", []))
    require(len(found) > 0, "no sample has a site id")
    ordered = sorted(found, key=lambda name: (int(name) if name.isdecimal() else np.inf, name))
    sites = {name: found[name] for name in ordered if len(found[name]) >= least}
    lost = [name for name in ordered if name not in sites]
    pooled = sorted(sample for name in lost for sample in found[name])
    merged = small == "merge" and len(pooled) >= least
    if merged:
        sites["other"] = sorted(sites.get("other", []) + pooled)
    require(len(sites) > 0, f"no site has {least} samples; the largest has {max(map(len, found.values()))}")
    fate = "merged into 'other'" if merged else "dropped"
    notes = [f"samples without a site id, unused: {nameless}"] if nameless else []
    notes += [f"sites with fewer than {least} samples, {fate}: {len(lost)}"] if lost else []
    if most is not None and len(sites) > whole("most", most, 1):
        largest = sorted(sites, key=lambda name: -len(sites[name]))[:most]
        notes.append(f"only the {most} largest of {len(sites)} sites are kept")
        sites = {name: sites[name] for name in sites if name in largest}
    return _partition(len(column), [np.array(part) for part in sites.values()], notes=notes, names=list(sites))


# For each kind: its function, its required parameters, its optional parameters.
_KINDS: dict[str, tuple[Callable[..., Partition], str, str]] = {
    "iid": (iid, "sites", "stratified"),
    "classes": (by_classes, "sites classes", "replace"),
    "quantity": (quantity, "sizes", ""),
    "dirichlet": (dirichlet, "sites alpha", "min_size"),
    "gamma": (gamma, "sites gamma", "samples low high reading replace"),
    "label-sets": (label_sets, "sites labels", "samples coverage"),
    "natural": (natural, "", "by min_size small most"),
}
_ARGUMENTS = {"classes": "classes_per_site", "labels": "labels_per_site", "samples": "samples_per_site"}


def split(y: IntArray, spec: Mapping[str, Any], rng: Rng, ids: Any = None, groups: IntArray | None = None) -> Partition:
    """Return the partition of a specification such as `{"kind": "dirichlet", "sites": 4, "alpha": 0.5}`.

    A value of None means the default. Only `natural` uses `ids`, only `gamma` uses `groups`.
    """
    require("kind" in spec, f"a partition needs a 'kind'; {did_you_mean('', _KINDS)}")
    kind = str(spec["kind"])
    require(kind in _KINDS, f"unknown partition kind '{kind}'; {did_you_mean(kind, _KINDS)}")
    function, needed, optional = _KINDS[kind]
    given = {name: value for name, value in spec.items() if name != "kind" and value is not None}
    known = needed.split() + optional.split()
    for name, value in given.items():
        require(name in known, f"partition '{kind}' has no parameter '{name}'; {did_you_mean(name, known)}")
        switch = name in ("stratified", "replace", "coverage")
        require(not switch or isinstance(value, bool), f"{name} must be true or false, not {value!r}")
    for name in needed.split():
        require(name in given, f"partition '{kind}' needs the parameter '{name}'")
    arguments = {_ARGUMENTS.get(name, name): value for name, value in given.items() if name != "by"}
    if kind == "natural":
        require(ids is not None and len(ids) == len(y), "partition 'natural' needs one site id for each sample")
        return function(ids, **arguments)
    arguments |= {"groups": groups} if kind == "gamma" else {}
    return function(y, rng=rng, **arguments)


def _among_owners(y: IntArray, dealt: Sequence[Iterable[int]], size: int | None, rng: Rng, replace: bool) -> Partition:
    """Split each class evenly among its sites, and reduce every site to at most `size` samples."""
    labels = [sorted(map(int, classes_of_site)) for classes_of_site in dealt]
    classes, available = np.unique(y, return_counts=True)
    owned = np.stack([np.isin(classes, own) for own in labels])
    owners = owned.sum(axis=0)
    limit = y.size if size is None else size
    notes = []
    if replace:
        shares = owned * available / np.maximum(owners, 1)
        counts = allocate(np.full(len(labels), limit), shares)
        notes.append(_REPLACED)
    else:
        supply = np.zeros(owned.shape, dtype=np.int64)
        for c in np.flatnonzero(owners):  # the remainder goes to the owners with the fewest samples
            poorest = sorted(np.flatnonzero(owned[:, c]), key=lambda site: supply[site].sum())
            supply[poorest, c] = largest_remainder(np.ones(len(poorest)), available[c])
        sizes = supply.sum(axis=1)
        counts = allocate(np.minimum(sizes, limit), supply)
        if size is not None and sizes.min() < size:
            notes.append(f"the classes of {(sizes < size).sum()} of {len(labels)} sites cannot supply {size} samples")
    if not owners.all():
        notes.append(f"classes that no site was dealt, their samples unused: {classes[owners == 0].tolist()}")
    if bare := (owned & (counts == 0)).sum():
        notes.append(f"classes dealt to a site that got no sample of them: {bare}")
    return _partition(y.size, _deal(y, classes, counts, rng, replace), labels, notes)


def _deal(y: IntArray, classes: IntArray, counts: IntArray, rng: Rng, replace: bool = False) -> list[IntArray]:
    """Draw these numbers of samples (sites x classes) at random, without replacement unless `replace`."""
    shares = []
    for c, asked in zip(classes, counts.T, strict=True):
        pool = np.flatnonzero(y == c)
        drawn = rng.choice(pool, asked.sum()) if replace and pool.size else rng.permutation(pool)
        shares.append(np.split(drawn, np.cumsum(asked))[:-1])
    return [np.concatenate(site) for site in zip(*shares, strict=True)]


def _partition(n: int, parts: Sequence[IntArray], labels: Any = None, notes: Any = (), names: Any = None) -> Partition:
    empty = sum(not part.size for part in parts)
    require(not empty, f"{empty} of {len(parts)} sites would get no samples; ask for fewer sites or more for each")
    parts = [np.sort(part).astype(np.int64) for part in parts]
    return Partition(parts, np.setdiff1d(np.arange(n), np.concatenate(parts)), labels, list(notes), names)


def _site_name(value: Any) -> str:
    """Return an id as a name; empty if the id is missing."""
    if isinstance(value, float):  # whole numbers in a column with missing values are floats
        value = None if np.isnan(value) else int(value) if value.is_integer() else value
    text = "" if value is None else str(value).strip()
    return "" if text in ("<NA>", "NaT") else text


def require(condition: Any, message: str) -> None:
    """Raise PartitionError with a message unless a condition holds."""
    if not condition:
        raise PartitionError(message)


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number between two limits."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    fits = whole and value >= least and (most is None or value <= most)
    require(fits, f"{name} must be a whole number {bounds}, not {value!r}")
    return int(value)


def number(name: str, value: Any) -> float:
    """Return a finite number."""
    fits = isinstance(value, int | float | np.number) and not isinstance(value, bool) and np.isfinite(value)
    require(fits, f"{name} must be a finite number, not {value!r}")
    return float(value)


def site_count(sites: Any, samples: int) -> int:
    """Return a number of sites, at most the number of samples."""
    count = whole("sites", sites, 1)
    require(count <= samples, f"{count} sites cannot be made from {samples} samples")
    return count


def class_index(y: IntArray, total: int | None = None) -> IntArray:
    """Return class indices, one for each sample, below `total`."""
    index = np.asarray(y)
    fits = index.ndim == 1 and index.dtype.kind in "iu" and not (index < 0).any()
    require(fits, "this partition needs one class index (0, 1, 2, ...) for each sample")
    require(total is None or not (index >= total).any(), f"a class index does not fit into {total} classes")
    return index.astype(np.int64)
