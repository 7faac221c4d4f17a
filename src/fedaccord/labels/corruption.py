"""Annotations of a study from true labels: seeded draws of candidate sets and coarse labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedaccord.errors import ConfigError
from fedaccord.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rng = np.random.Generator
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.floating]
    Ints = NDArray[np.integer]


def uniform_candidates(y: Ints, classes: int, q: float, rng: Rng, min_size: int = 1, drop_full: bool = True) -> Bools:
    """Return sets with every wrong label with probability q."""
    _check_rate("q", q)
    return draw_candidates(np.full((len(y), classes), q), y, rng, min_size, drop_full)


def class_dependent_candidates(y: Ints, flips: Floats, rng: Rng, min_size: int = 1, drop_full: bool = True) -> Bools:
    """Return sets with label j for class y with probability `flips[y, j]`; the diagonal must be one."""
    if flips.ndim != 2 or flips.shape[0] != flips.shape[1] or not np.allclose(np.diag(flips), 1):
        raise ConfigError("a flipping matrix is square with ones on its diagonal")
    if not (flips.min() >= 0 and flips.max() <= 1):
        raise ConfigError("a flipping matrix holds probabilities between 0 and 1")
    return draw_candidates(flips[y], y, rng, min_size, drop_full)


def cyclic_flips(classes: int, following: float, other: float) -> Floats:
    """Return the flipping matrix that confuses each class most with the next one."""
    flips = np.full((classes, classes), other, dtype=np.float64)
    flips[np.arange(classes), (np.arange(classes) + 1) % classes] = following
    np.fill_diagonal(flips, 1.0)
    return flips


def instance_rates(
    probabilities: Floats, y: Ints, rho: float, normalise: str = "mean", temperature: float = 1.0
) -> Floats:
    """Return the probability of each wrong label, from the predictions (n, C) of a classifier trained on true labels.

    With `normalise="none"` it is the published rule `rho * r`; with `"mean"` it is `min(1, rho * r / mean(r))`, whose
    set sizes match the published ones. Here `r_j = f_j / max_{z != y} f_z`, `r_y = 0`, and the mean is over all C
    entries. An overconfident classifier gives small sets, since no rate exceeds 1; a `temperature` above 1 divides its
    logits.
    """
    _check_rate("rho", rho)
    rows = np.arange(len(y))
    ratio = np.array(probabilities, dtype=np.float64)
    ratio[rows, y] = 0.0
    ratio /= np.maximum(ratio.max(1, keepdims=True), np.finfo(np.float64).tiny)  # 0/0 = 0: nothing to confuse
    ratio **= 1 / temperature
    if normalise == "none":
        return rho * ratio
    if normalise != "mean":
        raise ConfigError(f"normalise is 'mean' or 'none', not '{normalise}'")
    return np.minimum(1.0, rho * ratio / np.maximum(ratio.mean(1, keepdims=True), 1e-12))


def superset_candidates(y: Ints, classes: int, rng: Rng) -> Bools:
    """Draw uniformly from the `2^(C-1) - 1` sets that contain the true label, without the full set."""
    if classes < 2:
        raise ConfigError("candidate sets that are not the full set need at least two classes")
    return draw_candidates(np.full((len(y), classes), 0.5), y, rng)


def draw_candidates(rates: Floats, y: Ints, rng: Rng, min_size: int = 1, drop_full: bool = True) -> Bools:
    """Draw each wrong label with its probability; the true label is always in the set."""
    rows = np.arange(len(y))
    classes = rates.shape[1]
    largest = max(classes - 1, 1) if drop_full else classes
    if min_size > largest:
        raise ConfigError(f"min_size is {min_size}, but a candidate set of {classes} classes holds {largest} at most")

    def draw(which: Ints) -> Bools:
        sets = rng.random((len(which), classes)) < rates[which]
        sets[np.arange(len(which)), y[which]] = True
        return sets

    sets = draw(rows)
    for _ in range(100):  # rates near one make the full set all but certain, so redrawing must end
        full = np.flatnonzero(sets.all(1) & drop_full)
        if not len(full):
            break
        sets[full] = draw(full)
    for row in np.flatnonzero(sets.sum(1) < min_size):
        wrong = np.flatnonzero(~sets[row])
        sets[row, rng.choice(wrong, min(min_size - sets[row].sum(), len(wrong)), replace=False)] = True
    if drop_full and classes > 1:
        for row in np.flatnonzero(sets.all(1)):
            sets[row, rng.choice(np.flatnonzero(np.arange(classes) != y[row]))] = False
    return sets


def coarse_annotations(y: Ints, matrix: Floats, rng: Rng) -> Ints:
    """Draw the coarse label of each sample from its class's column of the correspondence matrix."""
    cumulative = np.cumsum(matrix, axis=0)[:, y]
    if not (cumulative[-1] > 0).all():
        column = y[np.argmin(cumulative[-1] > 0)]
        raise ConfigError(f"a sample of class {column} cannot be annotated: the class is under no coarse label")
    drawn = (rng.random(len(y)) * cumulative[-1] >= cumulative).sum(0)
    return np.minimum(drawn, len(matrix) - 1).astype(np.int64)


def _check_rate(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is a probability between 0 and 1, not {value}")
