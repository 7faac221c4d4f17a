"""Methods for candidate sets: settings with the papers' defaults and registry entries; importable without torch."""

from __future__ import annotations

from typing import Literal

from fedaccord.methods.entry import LossName, MethodEntry
from fedaccord.methods.shared_settings import (
    AnyLossSettings,
    BoundedSettings,
    ConvexSettings,
    LeverageSettings,
    NoiseSettings,
    RenewalSettings,
    SharedModelSettings,
    TripletSettings,
)
from fedaccord.training.settings import Count, Fraction, NotNegative, Prior, Rate, server_setting, site_setting


class PaperSettings(SharedModelSettings, NoiseSettings):
    """Settings of all methods for candidate sets: as in pFedPLL's comparison."""

    rounds: Count = 100
    steps: Count | None = 40
    lr: Rate = 0.01


class PartialBaselineSettings(PaperSettings):
    """Settings of federated averaging with a loss for candidate sets; those of `fed-cc` and `fed-uniform`."""

    head: Literal["shared", "local"] = site_setting("shared", "share the head, or keep one at each site")


class RenewedBaselineSettings(PartialBaselineSettings, RenewalSettings):
    """Settings of `fed-rc` and `fed-cavl`."""


class FedLWSettings(PartialBaselineSettings, LeverageSettings):
    """Candidate sets: FedAvg with the leveraged weighted loss (LW, Wen et al. 2021)."""


class FedAbsGceSettings(PartialBaselineSettings, BoundedSettings):
    """Candidate sets: FedAvg with a bounded loss per candidate (ABS-GCE, Lv et al. 2023)."""


class FedClplSettings(PartialBaselineSettings, ConvexSettings):
    """Candidate sets: FedAvg with the convex loss CLPL (Cour et al. 2011), as in FairFedPAPL."""

    rounds: Count = 50
    steps: Count | None = None


class LaApproxSettings(PartialBaselineSettings):
    """Candidate sets: augmentation and gradient alignment; an approximation of FedPLL_LAAR, no reproduction."""

    rho: NotNegative = site_setting(
        0.1, "weight of the penalty on local gradients that deviate from the last global update"
    )


class PfedpllSettings(PaperSettings, TripletSettings, LeverageSettings):
    """Candidate sets: pFedPLL, with a shared encoder, personal layer and head, calibrated loss and KL weights."""

    isolation: bool = site_setting(True, "share only the encoder and add a personal layer; false: share everything")
    calibration: bool = site_setting(True, "use the loss with three terms; false: the loss LW")
    score: Literal["kl", "samples"] = server_setting(
        "kl",
        "weights of the sites in the aggregate: by divergence of their features on the server's unlabelled inputs, "
        "or by number of samples",
    )
    score_inputs: Count = server_setting(640, "kl: number of inputs that the server samples in each round")

    @property
    def uses_terms(self) -> bool:
        """Whether the loss with three terms is used."""
        return self.calibration

    @property
    def reads_server_inputs(self) -> bool:
        """Whether sites are scored on the server's inputs."""
        return self.score == "kl"

    def without_effect(self) -> list[str]:
        """Return also sentences on settings of the loss and of the score that are not used."""
        found = super().without_effect()
        if self.score != "kl" and self.is_changed("score_inputs"):
            found.append(f'method.score_inputs has no effect with score = "{self.score}"')
        if self.calibration:
            changed = [name for name in ("beta", "form") if self.is_changed(name)]
            found += [f"method.{name} has no effect with calibration = true" for name in changed]
        return found


class PfedpllPlusSettings(PartialBaselineSettings, AnyLossSettings):
    """Candidate sets: everything shared, and site priors from label confidences (ours)."""

    loss: LossName = "pfedpll"
    prior: Prior = "all"
    noise: NotNegative = 0.5
    dropout: Fraction = 0.3


METHODS = (
    MethodEntry("pfedpll", PfedpllSettings, "recipe:pfedpll", loss="calibrated"),
    MethodEntry("pfedpll+", PfedpllPlusSettings, "recipe:pfedpll_plus"),
    MethodEntry(
        "fed-cc",
        PartialBaselineSettings,
        "recipe:fed_cc",
        summary="Candidate sets: FedAvg with the likelihood of the set (CC, Feng et al. 2020).",
    ),
    MethodEntry(
        "fed-rc",
        RenewedBaselineSettings,
        "recipe:fed_rc",
        summary="Candidate sets: FedAvg with cross-entropy weighted by confidences (RC, Feng et al. 2020).",
    ),
    MethodEntry("fed-lw", FedLWSettings, "recipe:fed_lw"),
    MethodEntry(
        "fed-cavl",
        RenewedBaselineSettings,
        "recipe:fed_cavl",
        summary="Candidate sets: FedAvg towards the most activated candidate (CAVL, Zhang et al. 2022).",
    ),
    MethodEntry("fed-abs-gce", FedAbsGceSettings, "recipe:fed_abs_gce"),
    MethodEntry(
        "fed-uniform",
        PartialBaselineSettings,
        "recipe:fed_uniform",
        summary="Candidate sets: FedAvg with cross-entropy against all candidates equally.",
    ),
    MethodEntry("fed-clpl", FedClplSettings, "recipe:fed_clpl"),
    MethodEntry("fedpll-la-approx", LaApproxSettings, "recipe:fedpll_la_approx"),
)
