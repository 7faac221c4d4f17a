"""The settings of methods for candidate sets, with the paper's defaults; importable without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
from fedaccord.training.settings import Count


class PaperSettings(SharedModelSettings, NoiseSettings):
    """What the comparison of pFedPLL gives all methods alike."""

    rounds: Count = Field(100, description="communication rounds")
    steps: Count | None = Field(40, description="mini-batch steps of a site in each round, instead of epochs")
    lr: float = Field(0.01, gt=0, le=1000, description="learning rate of the sites")


class PartialBaselineSettings(PaperSettings):
    """Settings of `fed-cc` and `fed-uniform`."""

    head: Literal["shared", "local"] = Field("shared", description="share the head, or keep it at each site")


class RenewedBaselineSettings(PartialBaselineSettings, RenewalSettings):
    """Settings of `fed-rc` and `fed-cavl`."""


class FedLWSettings(PartialBaselineSettings, LeverageSettings):
    """Settings of `fed-lw`."""


class FedAbsGceSettings(PartialBaselineSettings, BoundedSettings):
    """Settings of `fed-abs-gce`."""


class FedClplSettings(PartialBaselineSettings, ConvexSettings):
    """Settings of `fed-clpl`; a round is one pass over a site's data, as in FairFedPAPL."""

    rounds: Count = Field(50, description="communication rounds")
    steps: Count | None = Field(None, description="mini-batch steps of a site in each round, instead of epochs")


class LaApproxSettings(PartialBaselineSettings):
    """Settings of `fedpll-la-approx`."""

    rho: float = Field(0.1, ge=0, description="weight of the penalty on gradients not along the federation's last step")


class PfedpllSettings(PaperSettings, TripletSettings, LeverageSettings):
    """Settings of `pfedpll`; each of its three parts can be taken away."""

    isolation: bool = Field(True, description="share the encoder only, with a personal layer; false: share everything")
    calibration: bool = Field(True, description="the loss of three terms; false: the loss LW")
    score: Literal["kl", "samples"] = Field(
        "kl",
        description="weights of the sites in a mean: distance of features on the server's unlabelled inputs, or sizes",
    )
    score_inputs: Count = Field(640, description="kl: inputs that the server draws in each round")


class PfedpllPlusSettings(PartialBaselineSettings, AnyLossSettings):
    """Settings of `pfedpll+`; its defaults were chosen on parts of the training data, see docs/partial-labels.md."""

    loss: LossName = Field(
        "pfedpll", description="what a site minimises: its view's likelihood, or a loss for candidate sets"
    )
    prior: Literal["off", "exact-sites", "all"] = Field(
        "all", description="which sites add the log of their own label frequencies to the logits"
    )
    noise: float = Field(
        0.5, ge=0, description="standard deviation of noise on the inputs in training; for standardised features"
    )
    dropout: float = Field(0.3, ge=0, lt=1, description="share of the encoder's output left out in a training step")


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
        "candidate sets: federated averaging with every candidate as good a label as the others",
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
