"""The settings of methods for mixed-type labels, with the papers' defaults; importable without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedaccord.errors import refuse_unused
from fedaccord.methods.averaging.settings import PLAIN_RULE
from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.offers import LocalRuleName, unused_by
from fedaccord.methods.shared_settings import SharedModelSettings
from fedaccord.training.settings import Count, TrainingSettings


class SupercentreSettings(TrainingSettings):
    """Settings of methods whose server trains on labelled samples of its own; those of `single`."""

    rounds: Count = Field(200, description="communication rounds")
    batch: Count = Field(64, description="samples in a mini-batch")
    lr: float = Field(0.03, gt=0, le=1000, description="learning rate of the sites")
    weight_decay: float = Field(5e-4, ge=0, description="weight decay of SGD, at the sites and at the server")
    schedule: Literal["constant", "cosine"] = Field("cosine", description="learning rate over the rounds")
    server_lr: float | None = Field(
        None, gt=0, le=1000, description="learning rate of the server's own steps; left out: lr"
    )
    server_epochs: int = Field(5, ge=0, description="passes over the server's labelled samples in each round")
    server_batch: Count = Field(64, description="samples in a mini-batch of the server")
    warmup: int = Field(0, ge=0, description="steps of the server on its labelled samples before the first round")
    augment: Literal["auto", "images", "features", "words", "none"] = Field(
        "auto", description="how samples are changed: as pictures, standardised features or hashed words"
    )
    server_augment: Literal["weak", "strong"] = Field(
        "weak", description="how the server's labelled samples are changed in its own steps"
    )
    noise: float = Field(0.1, ge=0, description="features: standard deviation of the noise in strongly changed samples")
    gaps: float = Field(0.1, ge=0, lt=1, description="features: share of values set to zero")
    word_dropout: float = Field(0.3, ge=0, lt=1, description="words: share of the words left out")


class MixedSiteSettings(SupercentreSettings, SharedModelSettings):
    """Settings of methods in which a labelled server and coarsely labelled sites train together."""

    epochs: Count | None = Field(5, description="passes over a site's data in each round; 1 if no steps are given")
    local: LocalRuleName = Field(PLAIN_RULE, description="how a site steps")
    mu: float = Field(0.01, ge=0, description="fedprox: weight of the pull towards the received model")
    weights: Literal["equal", "samples"] = Field("equal", description="how much each site that replies counts")

    @model_validator(mode="after")
    def _a_pull_that_is_used(self) -> MixedSiteSettings:
        for rule, settings in unused_by(self.local).items():
            refuse_unused(self, settings, f'unless local = "{rule}"')
        return self


class FedTransSettings(MixedSiteSettings):
    """Settings of `fedtrans`."""

    server_lr: float | None = Field(
        0.01, gt=0, le=1000, description="learning rate of the fine-tuning on the server's samples"
    )
    server_epochs: int = Field(100, ge=0, description="passes of the fine-tuning, after the last round")

    @property
    def last_step(self) -> str:
        """Say what is done after the last round only."""
        return 'method.name = "fedtrans" trains its head' if self.server_epochs else ""

    @model_validator(mode="after")
    def _no_warm_up(self) -> FedTransSettings:
        refuse_unused(self, ("warmup",), "in fedtrans, whose server trains after the last round only")
        return self


class FedRepSettings(MixedSiteSettings):
    """Settings of `fedrep`."""

    server_weight: float | None = Field(
        None, ge=0, lt=1, description="the server's share in the mean encoder; left out: that of one more site"
    )


class SemiFLSettings(MixedSiteSettings):
    """Settings of `semifl`."""

    clip: float = Field(1.0, ge=0, description="largest norm of a step's gradient; 0 means no clipping")
    threshold: float = Field(0.95, ge=0, lt=1, description="a sample is confident when its pseudo-label is likelier")
    lambda1: float = Field(1.0, ge=0, description="weight of mixed samples")
    mixup: float = Field(0.75, gt=0, description="a of Beta(a, a), from which the mixing share is drawn")


class FedMTSettings(SemiFLSettings):
    """Settings of `fedmt`; the paper's threshold and weight need a good model at the server (docs/mixed-types.md)."""

    correspondence: Literal["known", "estimated", "estimated-average", "learnable", "learnable-average"] = Field(
        "estimated", description="what coarse names stand for: as the views declare, or found out, alone or together"
    )
    estimator: Literal["counts", "em-pool"] = Field(
        "counts", description="estimated: by confident samples, or by EM on counts summed over sites of the same names"
    )
    exchanges: Count = Field(5, description="em-pool: times that sites are asked for counts in each round")
    smoothing: float = Field(0.0, ge=0, description="pseudo-count of each coarse name in the estimate")
    pseudo_label: Literal["paper", "posterior"] = Field(
        "paper", description="a sample's likeliest class, or its likeliest class given its coarse label"
    )
    project_on: Literal["confident", "all"] = Field(
        "confident", description="which samples' coarse labels are learned from"
    )
    lambda2: float = Field(0.0625, ge=0, description="weight of pseudo-labels beside the coarse labels")

    @model_validator(mode="after")
    def _one_way_to_the_matrix(self) -> FedMTSettings:
        if self.estimator == "em-pool" and self.correspondence == "estimated-average":
            raise ValueError(
                'estimator = "em-pool" adds up counts of all sites already; use correspondence = "estimated"'
            )
        if not self.correspondence.startswith("estimated"):
            why = f'with correspondence = "{self.correspondence}", which is not estimated'
            refuse_unused(self, ("estimator", "exchanges", "smoothing"), why)
        if self.estimator != "em-pool":
            refuse_unused(self, ("exchanges",), 'unless estimator = "em-pool"')
        if self.lambda2 == 0 and self.project_on == "confident":
            raise ValueError('lambda2 = 0 uses no pseudo-labels, so it needs project_on = "all"')
        return self


class FedMTPlusSettings(FedMTSettings):
    """Settings of `fedmt+`; where its defaults come from is said in docs/mixed-types.md."""

    epochs: Count | None = Field(2, description="passes over a site's data in each round; 1 if no steps are given")
    warmup: int = Field(300, ge=0, description="steps of the server on its labelled samples before the first round")
    server_epochs: int = Field(3, ge=0, description="passes over the server's labelled samples in each round")
    threshold: float = Field(0.5, ge=0, lt=1, description="a sample is confident when its pseudo-label is likelier")
    estimator: Literal["counts", "em-pool"] = Field(
        "em-pool", description="estimated: by confident samples, or by EM on counts summed over sites of the same names"
    )
    pseudo_label: Literal["paper", "posterior"] = Field(
        "posterior", description="a sample's likeliest class, or its likeliest class given its coarse label"
    )
    lambda2: float = Field(1.0, ge=0, description="weight of pseudo-labels beside the coarse labels")


METHODS = (
    MethodEntry(
        "fedmt",
        "a server with few labels, sites with coarse names of known or estimated meaning (FedMT, Zhang et al. 2024)",
        FedMTSettings,
        "fedaccord.methods.mixed_types.recipe:fedmt",
        check="fedaccord.methods.mixed_types.checks:check",
        advice="fedaccord.methods.mixed_types.checks:advice",
    ),
    MethodEntry(
        "fedmt+",
        "fedmt with coarse names learned by EM over all sites, and pseudo-labels given the coarse label (ours)",
        FedMTPlusSettings,
        "fedaccord.methods.mixed_types.recipe:fedmt",
        check="fedaccord.methods.mixed_types.checks:check",
    ),
    MethodEntry(
        "semifl",
        "a server with few labels, pseudo-labels at sites, whose own labels are not used (SemiFL, Diao et al. 2022)",
        SemiFLSettings,
        "fedaccord.methods.mixed_types.recipe:semifl",
        check="fedaccord.methods.mixed_types.checks:check",
    ),
    MethodEntry(
        "fedrep",
        "server and sites train one encoder, each below a head for its own names (FedRep as compared by FedMT)",
        FedRepSettings,
        "fedaccord.methods.mixed_types.recipe:fedrep",
        check="fedaccord.methods.mixed_types.checks:check",
    ),
    MethodEntry(
        "fedtrans",
        "sites train a model of their own names, which the server fine-tunes on its labelled samples",
        FedTransSettings,
        "fedaccord.methods.mixed_types.recipe:fedtrans",
        check="fedaccord.methods.mixed_types.checks:check",
    ),
    MethodEntry(
        "single",
        "the server trains on its labelled samples alone; what sites with coarse labels have to beat",
        SupercentreSettings,
        "fedaccord.methods.mixed_types.recipe:single",
        check="fedaccord.methods.mixed_types.checks:check",
    ),
)
