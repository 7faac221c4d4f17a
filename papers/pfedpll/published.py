"""The accuracy in the pFedPLL paper (T = 100), in percent."""

from __future__ import annotations

from papers.pfedpll.cells import OURS

PUBLISHED_NAMES = (
    OURS,
    "Fed_LW",
    "Fed_CC",
    "Fed_RC",
    "Fed_CAVL",
    "our approximation of LAAR",
    "Fed_ABS_GCE",
    "FedAvg, uniform targets",
)
PUBLISHED: dict[str, tuple[float, ...]] = {
    "MNIST": (98.14, 97.04, 96.60, 96.44, 48.21, 82.01, 94.18, 92.69),
    "Fashion-MNIST": (84.06, 82.89, 82.35, 80.17, 46.35, 51.23, 76.44, 80.12),
    "Lost": (56.04, 55.29, 55.03, 53.87, 38.82, 52.96, 49.46, 47.69),
    "MSRCv2": (56.10, 49.98, 49.16, 50.19, 35.43, 46.31, 40.96, 41.60),
}
