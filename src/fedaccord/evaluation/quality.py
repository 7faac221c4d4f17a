"""How good a model is on test rows: figures with 95 % intervals, and a figure of guessing to compare with.

Figures are scikit-learn's; intervals are percentiles over resamples of the test rows (`intervals`). Guessing means one
constant answer for every row, and for tags a random ranking. `over_guess` is the difference of the first figure from
guessing on the same resamples, so its interval is that of a paired difference.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from fedaccord.evaluation import resampled
from fedaccord.evaluation.intervals import (
    Estimate,
    Resampling,
    percentile_interval,
    reflected_interval,
    share_difference,
    share_interval,
)
from fedaccord.evaluation.metrics import NOT_ANNOTATED, THRESHOLD
from fedaccord.lazy import Array, np

FEWEST_ROWS = 5
MOST_BINS, ROWS_PER_BIN = 10, 5
GUESS, OVER_GUESS = "guess", "over_guess"
_Replicates = dict[str, Array]


@dataclass(frozen=True)
class Quality:
    """Figures of a model on test rows; no measure if there are too few rows or too few classes."""

    rows: int
    classes: int  # with test rows; 0 if classes do not matter
    measures: dict[str, Estimate] = field(default_factory=dict)
    calibration: list[list[float]] = field(default_factory=list)  # by bin: rows, predicted, observed, low, high
    resamples: int = 0
    replicates: Array | None = None  # the first figure for each resample, to pair it with another model's


def class_quality(probabilities: Array, truth: Array, guess: int | None, resampling: Resampling) -> Quality:
    """Return the figures of predicted classes: probabilities (rows, answers), truth (rows,), -1 = unknown.

    `guess` is the column of the constant answer, by default the most frequent class of these rows.
    """
    seen = truth >= 0
    p, y = probabilities[seen].astype(float), truth[seen].astype(int)
    present = np.unique(y)
    if len(y) < FEWEST_ROWS or len(present) < 2:
        return Quality(len(y), len(present))
    predicted = p.argmax(1)
    constant = int(np.bincount(y).argmax()) if guess is None else guess
    right, guessed = predicted == y, y == constant
    one_hot, said = y[:, None] == present, predicted[:, None] == present
    brier = ((p - (y[:, None] == np.arange(p.shape[1]))) ** 2).sum(1) / 2
    bins = calibration_bins(p.max(1))
    sums = _bin_sums(bins, p.max(1), right)

    def figures(weights: Array) -> _Replicates:
        accuracy, chance = resampled.weighted_mean(np.c_[right, guessed], weights).T
        areas = [resampled.auroc(p[:, c], y == c, weights) for c in present]
        return {
            "accuracy": accuracy,
            "balanced_accuracy": resampled.mean_over_classes(resampled.class_recalls(one_hot, said, weights)),
            "macro_f1": resampled.mean_over_classes(resampled.class_f1(one_hot, said, weights)),
            "auroc": resampled.mean_over_classes(np.stack(areas, 1)),
            "brier": resampled.weighted_mean(brier, weights),
            GUESS: chance,
            OVER_GUESS: accuracy - chance,
            **_calibration(sums, weights),
        }

    drawn, number = _replicates(figures, len(y), p.shape[1], resampling)
    points = _class_points(p, y, predicted, present) | {"brier": float(brier.mean())}
    measures = {name: percentile_interval(value, drawn[name]) for name, value in points.items()}
    measures["accuracy"] = share_interval(float(right.mean()), len(y), drawn["accuracy"])
    measures[GUESS] = share_interval(float(guessed.mean()), len(y), drawn[GUESS])
    measures[OVER_GUESS] = share_difference(float(right.mean() - guessed.mean()), len(y), drawn[OVER_GUESS])
    measures["ece"] = reflected_interval(float(figures(np.ones((1, len(y))))["ece"][0]), drawn["ece"])
    return Quality(len(y), len(present), measures, _curve(sums, drawn), number, drawn["accuracy"])


def tag_quality(scores: Array, target: Array, resampling: Resampling) -> Quality:
    """Return the figures of tags: scores and targets (rows, tags), -1 = not annotated.

    Guessing ranks the rows at random: its figure is that of shuffled labels, whose mAP in small tests is far above the
    share of rows with a tag. The interval of `over_guess` is that of a permutation test.
    """
    annotated = (target != NOT_ANNOTATED).any(1)
    p, t = scores[annotated].astype(float), target[annotated]
    seen, actual = t != NOT_ANNOTATED, t == 1
    judged = np.flatnonzero(actual.any(0))
    mixed = np.flatnonzero(actual.any(0) & (seen & ~actual).any(0))  # tags that some rows have and others lack
    if len(p) < FEWEST_ROWS or not len(mixed):
        return Quality(len(p), len(mixed))
    said = (p >= THRESHOLD) & seen
    squares, decisions = np.where(seen, (p - actual) ** 2, 0.0).sum(1), seen.sum(1)
    sums = _bin_sums(np.where(seen, calibration_bins(p, seen), -1), p, actual)

    def figures(weights: Array) -> _Replicates:
        def mean(of: Callable[[Array, Array, Array], Array], tags: Array) -> Array:
            each = [of(p[seen[:, c], c], actual[seen[:, c], c], weights[:, seen[:, c]]) for c in tags]
            return resampled.mean_over_classes(np.stack(each, 1))

        f1 = resampled.class_f1(actual[:, judged], said[:, judged], weights)
        return {
            "map": mean(resampled.average_precision, judged),
            "macro_f1": resampled.mean_over_classes(f1),
            "auroc": mean(resampled.auroc, mixed),
            "brier": (weights @ squares) / (weights @ decisions),
            **_calibration(sums, weights),
        }

    drawn, number = _replicates(figures, len(p), p.shape[1], resampling)
    whole = figures(np.ones((1, len(p))))
    points = _tag_points(p, actual, seen, said, judged, mixed) | {"brier": float(whole["brier"][0])}
    measures = {name: percentile_interval(value, drawn[name]) for name, value in points.items()}
    measures |= _above_chance(points["map"], _shuffled_map(p, actual, seen, judged, resampling, number))
    measures["ece"] = reflected_interval(float(whole["ece"][0]), drawn["ece"])
    return Quality(len(p), len(judged), measures, _curve(sums, drawn), number, drawn["map"])


def share_quality(name: str, hits: Array, guessed: Array, resampling: Resampling) -> Quality:
    """Return a share of rows, such as predictions inside candidate sets, and that of guessing: bool (rows,) each."""
    if len(hits) < FEWEST_ROWS:
        return Quality(len(hits), 0)

    def figures(weights: Array) -> _Replicates:
        share, chance = resampled.weighted_mean(np.c_[hits, guessed], weights).T
        return {name: share, GUESS: chance, OVER_GUESS: share - chance}

    drawn, number = _replicates(figures, len(hits), 1, resampling)
    shares, rows = {name: float(hits.mean()), GUESS: float(guessed.mean())}, len(hits)
    measures = {which: share_interval(share, rows, drawn[which]) for which, share in shares.items()}
    measures[OVER_GUESS] = share_difference(shares[name] - shares[GUESS], rows, drawn[OVER_GUESS])
    return Quality(len(hits), 0, measures, [], number, drawn[name])


def calibration_bins(probabilities: Array, counted: Array | bool = True) -> Array:
    """Return the bin of each predicted probability: bins of equal size, at most 10, with at least 5 rows on average.

    The edges are those of scikit-learn's `calibration_curve` with the strategy "quantile".
    """
    values = probabilities[np.broadcast_to(counted, probabilities.shape)]
    number = int(np.clip(len(values) // ROWS_PER_BIN, 1, MOST_BINS))
    return np.searchsorted(np.quantile(values, np.linspace(0, 1, number + 1)[1:-1]), probabilities)


def _class_points(p: Array, y: Array, predicted: Array, present: Array) -> dict[str, float]:
    # Imported here, because scikit-learn takes a second to load.
    from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

    return {
        "accuracy": float((predicted == y).mean()),
        "balanced_accuracy": _quiet(balanced_accuracy_score, y, predicted),
        "macro_f1": float(f1_score(y, predicted, labels=present, average="macro", zero_division=0)),
        "auroc": float(roc_auc_score(y[:, None] == present, p[:, present], average="macro")),
    }


def _tag_points(p: Array, actual: Array, seen: Array, said: Array, judged: Array, mixed: Array) -> dict[str, float]:
    from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

    def mean(of: Callable[..., float], answers: Array, tags: Array) -> float:
        return float(np.mean([of(actual[seen[:, c], c], answers[seen[:, c], c]) for c in tags]))

    return {
        "map": mean(average_precision_score, p, judged),
        "macro_f1": mean(lambda *pair: f1_score(*pair, zero_division=0), said, judged),
        "auroc": mean(roc_auc_score, p, mixed),
    }


def _shuffled_map(p: Array, actual: Array, seen: Array, judged: Array, resampling: Resampling, number: int) -> Array:
    """Return the mean average precision for random orders of the rows' labels."""

    def figure(orders: Array) -> Array:
        each = [resampled.shuffled_average_precision(p[:, c], actual[:, c], seen[:, c], orders) for c in judged]
        return resampled.mean_over_classes(np.stack(each, 1))

    return np.concatenate([figure(orders) for orders in resampling.orders(len(p), number)])


def _above_chance(value: float, chance: Array) -> dict[str, Estimate]:
    """Return the figure of guessing, and the difference from it: above zero if 97.5 % of guesses are below `value`."""
    guess = percentile_interval(float(chance.mean()), chance)
    difference = value - guess.value
    if guess.low is None or guess.high is None:
        return {GUESS: guess, OVER_GUESS: Estimate(difference)}
    return {GUESS: guess, OVER_GUESS: Estimate(difference, value - guess.high, value - guess.low)}


def _quiet(score: Callable[[Array, Array], float], truth: Array, predicted: Array) -> float:
    """Return a score without scikit-learn's warning that a predicted class has no row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return float(score(truth, predicted))


def _replicates(
    figures: Callable[[Array], _Replicates], rows: int, answers: int, resampling: Resampling
) -> tuple[_Replicates, int]:
    """Return each figure for every resample, and the number of resamples."""
    number = resampling.number(rows, answers)
    blocks = [figures(weights) for weights in resampling.weights(rows, number)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}, number


def _bin_sums(bins: Array, predicted: Array, observed: Array) -> Array:
    """Return for each row and bin the number of decisions and the sums of both: (3, rows, bins); bin -1 is left out."""
    rows = len(bins)
    inside = bins.reshape(rows, -1)[:, :, None] == np.arange(int(bins.max()) + 1)
    values = (np.ones(bins.shape), predicted, observed)
    each = np.stack([(value.reshape(rows, -1)[:, :, None] * inside).sum(1) for value in values])
    return each[:, :, inside.any((0, 1))]  # equal probabilities may leave a bin empty


def _calibration(sums: Array, weights: Array) -> _Replicates:
    """Return the expected calibration error, and the observed share in each bin: (resamples, bins)."""
    counts, predicted, observed = (weights @ each for each in sums)
    shares = resampled.ratio(observed, counts)
    return {"ece": np.abs(observed - predicted).sum(1) / counts.sum(1), "bins": shares}


def _curve(sums: Array, drawn: _Replicates) -> list[list[float]]:
    """Return the calibration curve: rows, mean prediction, observed share and its interval for each bin."""
    curve = []
    for at, (count, predicted, observed) in enumerate(sums.sum(1).T):
        share = share_interval(float(observed / count), float(count), drawn["bins"][:, at])
        ends = [share.value if end is None else end for end in (share.low, share.high)]
        curve.append([float(count), float(predicted / count), share.value, *ends])
    return curve
