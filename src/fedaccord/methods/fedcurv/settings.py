"""FedCurv: its settings and its entry; importable without torch."""

from __future__ import annotations

from pydantic import Field

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import ClassicSettings
from fedaccord.training.settings import Count


class FedCurvSettings(ClassicSettings):
    """Settings of `fedcurv`."""

    curvature: float = Field(0.1, ge=0, description="weight of the pull towards the other sites' models")
    fisher_samples: Count = Field(256, description="samples, at most, that a site's Fisher information is taken over")


METHODS = (
    MethodEntry(
        "fedcurv",
        "federated averaging with a pull to the other sites' models where these are sure (Shoham et al. 2019)",
        FedCurvSettings,
        "fedaccord.methods.fedcurv.recipe:fedcurv",
    ),
)
