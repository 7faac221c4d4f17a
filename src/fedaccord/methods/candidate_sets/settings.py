"""Methods for candidate sets: settings with the papers' defaults and registry entries; importable without torch."""

from __future__ import annotations

from typing import Literal

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.loss_settings import (
    AnyLossSettings,
    BoundedSettings,
    ConvexSettings,
    LeverageSettings,
    NoiseSettings,
    RenewalSettings,
    TripletSettings,
)
from fedaccord.methods.offers import LossName
from fedaccord.methods.shared_settings import SharedModelSettings
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
    """Settings of `fed-lw`."""


class FedAbsGceSettings(PartialBaselineSettings, BoundedSettings):
    """Settings of `fed-abs-gce`."""


class FedClplSettings(PartialBaselineSettings, ConvexSettings):
    """Settings of `fed-clpl`; a round is one local epoch, as in FairFedPAPL."""

    rounds: Count = 50
    steps: Count | None = None


class LaApproxSettings(PartialBaselineSettings):
    """Settings of `fedpll-la-approx`."""

    rho: NotNegative = site_setting(
        0.1, "weight of the penalty on local gradients that deviate from the last global update"
    )


class PfedpllSettings(PaperSettings, TripletSettings, LeverageSettings):
    """Settings of `pfedpll`; each of its three parts can be switched off."""

    isolation: bool = site_setting(True, "share only the encoder and add a personal layer; false: share everything")
    calibration: bool = site_setting(True, "use the loss with three terms; false: the loss LW")
    score: Literal["kl", "samples"] = server_setting(
        "kl",
        "weights of the sites in the aggregate: by divergence of their features on the server's unlabelled inputs, "
        "or by number of samples",
    )
    score_inputs: Count = server_setting(640, "kl: number of inputs that the server samples in each round")


class PfedpllPlusSettings(PartialBaselineSettings, AnyLossSettings):
    """Settings of `pfedpll+`; its defaults were chosen on parts of the training data, see docs/partial-labels.md."""

    loss: LossName = "pfedpll"
    prior: Prior = "all"
    noise: NotNegative = 0.5
    dropout: Fraction = 0.3


METHODS = (
    MethodEntry(
        "pfedpll",
        "candidate sets: shared encoder, personal layer and head, calibrated loss, KL weights (pFedPLL)",
        PfedpllSettings,
        "fedaccord.methods.candidate_sets.pfedpll:pfedpll",
        loss="calibrated",
    ),
    MethodEntry(
        "pfedpll+",
        "candidate sets: everything shared, and each site's label frequencies by its confidences (ours)",
        PfedpllPlusSettings,
        "fedaccord.methods.candidate_sets.pfedpll:pfedpll_plus",
    ),
    MethodEntry(
        "fed-cc",
        "candidate sets: federated averaging with the likelihood of the set (CC, Feng et al. 2020)",
        PartialBaselineSettings,
        "fedaccord.methods.candidate_sets.baselines:fed_cc",
    ),
    MethodEntry(
        "fed-rc",
        "candidate sets: federated averaging with cross-entropy by confidences (RC, Feng et al. 2020)",
        RenewedBaselineSettings,
        "fedaccord.methods.candidate_sets.baselines:fed_rc",
    ),
    MethodEntry(
        "fed-lw",
        "candidate sets: federated averaging with the leveraged weighted loss (LW, Wen et al. 2021)",
        FedLWSettings,
        "fedaccord.methods.candidate_sets.baselines:fed_lw",
    ),
    MethodEntry(
        "fed-cavl",
        "candidate sets: federated averaging towards the most activated candidate (CAVL, Zhang et al. 2022)",
        RenewedBaselineSettings,
        "fedaccord.methods.candidate_sets.baselines:fed_cavl",
    ),
    MethodEntry(
        "fed-abs-gce",
        "candidate sets: federated averaging with a bounded loss of each candidate (ABS_GCE, Lv et al. 2023)",
        FedAbsGceSettings,
        "fedaccord.methods.candidate_sets.baselines:fed_abs_gce",
    ),
    MethodEntry(
        "fed-uniform",
        "candidate sets: federated averaging with equal weight on every candidate",
        PartialBaselineSettings,
        "fedaccord.methods.candidate_sets.baselines:fed_uniform",
    ),
    MethodEntry(
        "fed-clpl",
        "candidate sets: federated averaging with the convex loss CLPL (Cour et al. 2011), as in FairFedPAPL",
        FedClplSettings,
        "fedaccord.methods.candidate_sets.baselines:fed_clpl",
    ),
    MethodEntry(
        "fedpll-la-approx",
        "candidate sets: augmentation and gradient alignment; our approximation of FedPLL_LAAR, not a reproduction",
        LaApproxSettings,
        "fedaccord.methods.candidate_sets.baselines:fedpll_la_approx",
    ),
)
