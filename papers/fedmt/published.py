"""The figures of the FedMT paper, in percent."""

from __future__ import annotations

from papers.fedmt.cells import ESTIMATORS, FOUND, KNOWN, LEARNED, LEARNED_AVERAGED

# CIFAR-100. The paper's tables swap the names FedTrans and FedRep; these are the figures of its table 2.
MAIN: dict[str, dict[int, float]] = {
    "Single": {5: 15.80, 10: 20.38, 25: 29.57},
    "FedTrans": {5: 39.45, 10: 42.97, 25: 47.37},
    "FedRep": {5: 43.43, 10: 48.70, 25: 54.83},
    "SemiFL": {5: 27.93, 10: 40.80, 25: 55.98},
    KNOWN: {5: 57.12, 10: 61.57, 25: 66.70},
    FOUND: {5: 46.41, 10: 57.11, 25: 66.01},
}
FROM_RANDOM = (  # the appendix, with its names: table 2 swaps FedRep and FedTrans
    ["Single", "8.56", "12.29", "17.73"],
    ["FedRep", "16.89", "21.90", "26.53"],
    ["FedTrans", "21.31", "24.53", "28.16"],
)
BY_ESTIMATOR = {  # even split, gamma 0.9 and 0.99; n = 25
    FOUND: (66.01, 58.64, 41.09),
    ESTIMATORS[1]: (63.14, 48.33, 33.92),
    LEARNED: (56.51, 49.49, 36.55),
    LEARNED_AVERAGED: (56.03, 49.45, 37.09),
}
BY_THRESHOLD = {"SemiFL": {0.7: 58.48, 0.9: 56.00, 0.95: 55.13}, FOUND: {0.7: 61.39, 0.9: 59.71, 0.95: 56.76}}
BY_WEIGHT = {
    KNOWN: {1.0: 58.63, 0.25: 64.02, 0.0625: 66.90, 0.015625: 66.29},
    FOUND: {1.0: 56.76, 0.25: 60.18, 0.0625: 65.93, 0.015625: 64.76},
}
