"""The settings of methods with momentum between rounds, with the papers' defaults; importable without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedaccord.errors import refuse_unused
from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import OF_SITES, ClassicSettings
from fedaccord.training.settings import Count

_PLAIN = "momentum of the sites' own SGD, fresh in every round; what the method adds is set elsewhere"
_BETA = "momentum of the server, kept over the rounds"


class MomentumSettings(ClassicSettings):
    """Settings of all methods with momentum: as published, batches of 64, rate 0.01, a round of 20 steps."""

    steps: Count | None = Field(20, description="mini-batch steps of a site in each round (tau), instead of epochs")
    batch: Count = Field(64, description="samples in a mini-batch")
    lr: float = Field(0.01, gt=0, le=1000, description="learning rate of the sites")
    momentum: float = Field(0.0, ge=0, lt=1, description=_PLAIN)


class ServerMomentumSettings(MomentumSettings):
    """Settings of methods whose server has momentum."""

    beta: float = Field(0.5, ge=0, lt=1, description=_BETA)


class FedMomSettings(ServerMomentumSettings):
    """Settings of `fedmom`."""

    beta: float = Field(0.9, ge=0, lt=1, description=_BETA)
    server_lr: float = Field(1.0, gt=0, le=1000, description="how far the server goes along the sites' mean step")


class SlowMoSettings(ServerMomentumSettings):
    """Settings of `slowmo`."""

    alpha: float = Field(1.0, gt=0, le=1000, description="how far the server goes along its momentum")


class MimeSettings(MomentumSettings):
    """Settings of `mime`."""

    beta: float = Field(0.9, ge=0, lt=1, description="share of the server's statistics in every local step")
    lite: bool = Field(False, description="MimeLite: local gradients are not corrected by those of all sites")
    gradient_samples: Count | None = Field(
        None, description="samples that a site's full gradient is taken on, drawn anew in each round; left out: all"
    )

    @model_validator(mode="after")
    def _one_momentum(self) -> MimeSettings:
        if self.momentum:
            raise ValueError("a step of mime has the server's statistics as momentum, so 'momentum' cannot be set")
        return self

    @model_validator(mode="after")
    def _no_defence(self) -> MimeSettings:
        if self.defence is not None:
            raise ValueError(
                "every step of mime follows gradients of all sites, sent before 'defence' can judge any of them; "
                "use a robust 'aggregation'"
            )
        return self


class DomoSettings(SlowMoSettings):
    """Settings of `domo`; `beta` is the server's momentum and `momentum` that of the sites."""

    momentum: float = Field(0.5, ge=0, lt=1, description="momentum of the sites' own SGD, fresh in every round")
    fusion: float | None = Field(
        None, ge=0, lt=1, description="share of the server's momentum that sites go along with; left out: beta"
    )
    spread: bool = Field(False, description="DOMO-S: the server's momentum spread over a site's steps, not before them")


class FedAdcSettings(SlowMoSettings):
    """Settings of `fedadc`."""

    beta_local: float | None = Field(
        None, ge=0, lt=1, description="share of the server's momentum in a site's steps; left out: beta"
    )
    form: Literal["heavy-ball", "nesterov"] = Field(
        "heavy-ball", description="whether a gradient is taken before or after the momentum's part of a step"
    )


class NesterovSettings(MomentumSettings):
    """Settings of methods whose sites have Nesterov momentum that travels; those of `fednag`."""

    gamma: float = Field(0.5, ge=0, lt=1, description="Nesterov momentum of the sites, kept over the rounds")

    @model_validator(mode="after")
    def _one_momentum(self) -> NesterovSettings:
        if self.momentum:
            raise ValueError("the sites' momentum is 'gamma' here, so 'momentum' cannot be set")
        return self


class FastSlowMoSettings(NesterovSettings):
    """Settings of `fastslowmo`."""

    beta: float = Field(0.5, ge=0, lt=1, description=_BETA)


class PublicDataSettings(NesterovSettings):
    """Settings of methods whose server trains on public data: its steps are as long and as many as a site's."""

    held_out: float = Field(
        0.2, gt=0, lt=1, description="share of the server's labelled samples held out: scores are taken on these"
    )

    @model_validator(mode="after")
    def _as_many_steps_as_a_site(self) -> PublicDataSettings:
        if self.steps is None:
            raise ValueError(
                "the server's own model takes as many steps in a round as every site, and an epoch has as many as "
                "there are samples; give 'steps' instead of 'epochs'"
            )
        return self


class RepresentationSettings(PublicDataSettings):
    """Settings of `representation`; it takes no scores, so it learns from all samples unless told."""

    held_out: float = Field(0.0, ge=0, lt=1, description="share of the server's labelled samples not learned from")

    @model_validator(mode="after")
    def _no_settings_of_sites(self) -> RepresentationSettings:
        # `weights` is let through: comparisons set it for all methods, and without replies it changes nothing.
        names = (*OF_SITES, "aggregation", "hostile", "attack", "defence")
        refuse_unused(self, names, "in 'representation', which trains at the server alone")
        return self


class PfedmoSettings(PublicDataSettings):
    """Settings of `pfedmo`; how the default of `rule` was chosen is said in docs/momentum.md."""

    rule: Literal["pull", "printed", "reversed"] = Field(
        "pull", description="how a site's model follows from mean and representation"
    )
    pi: float = Field(1.0, ge=0, le=1, description="temperature: how strongly scores personalise; 0 is fednag")
    score_batch: Count = Field(256, description="held-out samples that scores are taken on, drawn anew in each round")

    @model_validator(mode="after")
    def _statistics_for_scores(self) -> PfedmoSettings:
        if self.bn == "local":
            raise ValueError('bn = "local" keeps statistics at the sites, and the server cannot score a model without')
        return self


METHODS = (
    MethodEntry(
        "pfedmo",
        "sites' Nesterov momentum, and models returned to each site by its agreement with the server's (pFedMo)",
        PfedmoSettings,
        "fedaccord.methods.momentum.recipe:pfedmo",
        check="fedaccord.methods.momentum.checks:check",
    ),
    MethodEntry(
        "fednag",
        "Nesterov momentum at the sites, averaged with their models (Yang et al. 2022)",
        NesterovSettings,
        "fedaccord.methods.momentum.recipe:fednag",
    ),
    MethodEntry(
        "fastslowmo",
        "Nesterov momentum at the sites and at the server (FastSlowMo, Yang et al.)",
        FastSlowMoSettings,
        "fedaccord.methods.momentum.recipe:fastslowmo",
    ),
    MethodEntry(
        "fedmom",
        "federated averaging with Nesterov momentum at the server (Huo et al. 2020)",
        FedMomSettings,
        "fedaccord.methods.momentum.recipe:fedmom",
    ),
    MethodEntry(
        "slowmo",
        "federated averaging with heavy-ball momentum at the server (Wang et al. 2020)",
        SlowMoSettings,
        "fedaccord.methods.momentum.recipe:slowmo",
    ),
    MethodEntry(
        "domo",
        "momentum at the server and the sites, which begin where the server's leads (Xu and Huang 2022)",
        DomoSettings,
        "fedaccord.methods.momentum.recipe:domo",
    ),
    MethodEntry(
        "fedadc",
        "the server's momentum inside the sites' steps (Ozfatura et al. 2021)",
        FedAdcSettings,
        "fedaccord.methods.momentum.recipe:fedadc",
    ),
    MethodEntry(
        "mime",
        "the server's gradient statistics as momentum in corrected local steps (Karimireddy et al. 2021)",
        MimeSettings,
        "fedaccord.methods.momentum.recipe:mime",
    ),
    MethodEntry(
        "representation",
        "the server's part of pfedmo alone: what its labelled samples give without any site",
        RepresentationSettings,
        "fedaccord.methods.momentum.recipe:representation",
        check="fedaccord.methods.momentum.checks:check",
    ),
)
