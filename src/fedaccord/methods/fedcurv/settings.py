"""FedCurv: settings and registry entry; importable without torch."""

from __future__ import annotations

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.training.settings import Count, NotNegative, site_setting


class FedCurvSettings(ClassicSettings):
    """Settings of `fedcurv`."""

    curvature: NotNegative = site_setting(0.1, "weight of the penalty that pulls towards the other sites' models")
    fisher_samples: Count = site_setting(256, "maximum number of samples for a site's Fisher information")


METHODS = (
    MethodEntry(
        "fedcurv",
        "federated averaging with a Fisher-weighted penalty towards the other sites' models (Shoham et al. 2019)",
        FedCurvSettings,
        "fedaccord.methods.fedcurv.recipe:fedcurv",
    ),
)
