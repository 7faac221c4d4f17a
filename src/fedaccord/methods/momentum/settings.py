"""Methods with momentum between rounds: settings with the papers' defaults and entries; importable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedaccord.errors import refuse_unused
from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import OF_SITES, ClassicSettings
from fedaccord.training.settings import Count, FigureSection, Fraction, Rate, server_setting, site_setting

Rule = Literal["pull", "printed", "reversed"]
PERSONALISED_MODELS = FigureSection(
    "Personalised models",
    "A site's score measures how well its model agrees with the server's. The model that the site gets back is moved "
    "towards the server's by that share (times `pi`). The server's model is evaluated on public samples that it does "
    "not train on.",
    {"score": "mean score of the sites", "representation_accuracy": "the server's own model, held-out samples"},
)
_BETA = "momentum of the server, kept over the rounds"


class MomentumSettings(ClassicSettings):
    """Settings of all methods with momentum: as published, batches of 64, learning rate 0.01, 20 steps per round."""

    steps: Count | None = 20
    batch: Count = 64
    lr: Rate = 0.01
    momentum: Fraction = 0.0


class ServerMomentumSettings(MomentumSettings):
    """Settings of methods whose server has momentum."""

    beta: Fraction = server_setting(0.5, _BETA)

    def without_effect(self) -> list[str]:
        """Return also a sentence on a server without momentum."""
        none = "method.beta is 0, so the server has no momentum"
        return super().without_effect() + [none] * (self.beta == 0)


class FedMomSettings(ServerMomentumSettings):
    """FedMom (Huo et al. 2020): FedAvg with Nesterov momentum at the server."""

    beta: Fraction = 0.9
    server_lr: Rate = server_setting(1.0, "learning rate of the server: factor of the mean update")


class SlowMoSettings(ServerMomentumSettings):
    """SlowMo (Wang et al. 2020): FedAvg with heavy-ball momentum at the server."""

    alpha: Rate = server_setting(1.0, "learning rate of the server: factor of its momentum")


class MimeSettings(MomentumSettings):
    """Mime (Karimireddy et al. 2021): the server's gradient statistics as momentum in corrected local steps."""

    beta: Fraction = site_setting(0.9, "weight of the server's statistics in every local step")
    lite: bool = site_setting(False, "MimeLite: do not correct local gradients by the mean gradient of all sites")
    gradient_samples: Count | None = site_setting(
        None, "number of samples for a site's full gradient, sampled in every round; left out: all"
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
    """DOMO (Xu and Huang 2022): momentum at server and sites; sites start from the server's momentum step."""

    beta: Fraction = site_setting(0.5, _BETA)
    momentum: Fraction = 0.5
    fusion: Fraction | None = site_setting(
        None, "fraction of the server's momentum that local models move along; left out: `beta`"
    )
    spread: bool = site_setting(False, "DOMO-S: apply the server's momentum in parts with every local step, not before")


class FedAdcSettings(SlowMoSettings):
    """FedADC (Ozfatura et al. 2021): the server's momentum inside the sites' steps."""

    beta: Fraction = site_setting(0.5, _BETA)
    beta_local: Fraction | None = site_setting(
        None, "fraction of the server's momentum in the local steps of a round; left out: `beta`"
    )
    form: Literal["heavy-ball", "nesterov"] = site_setting(
        "heavy-ball", "whether gradients are evaluated before or after a step's momentum part"
    )


class NesterovSettings(MomentumSettings):
    """Settings of methods whose sites have Nesterov momentum that is sent with the model; those of `fednag`."""

    gamma: Fraction = site_setting(0.5, "Nesterov momentum of the sites, kept over the rounds")

    @model_validator(mode="after")
    def _one_momentum(self) -> NesterovSettings:
        if self.momentum:
            raise ValueError("the sites' momentum is 'gamma' here, so 'momentum' cannot be set")
        return self


class FastSlowMoSettings(NesterovSettings):
    """FastSlowMo (Yang et al.): Nesterov momentum at the sites and at the server."""

    beta: Fraction = server_setting(0.5, _BETA)


class PublicDataSettings(NesterovSettings):
    """Settings of methods whose server trains on public data with the sites' learning rate and number of steps."""

    report_sections: ClassVar[tuple[FigureSection, ...]] = (PERSONALISED_MODELS,)

    held_out: Annotated[float, Field(gt=0, lt=1)] = server_setting(
        0.2, "fraction of the server's labelled samples held out to compute scores"
    )

    @model_validator(mode="after")
    def _as_many_steps_as_a_site(self) -> PublicDataSettings:
        if self.steps is None:
            raise ValueError(
                "the server's own model takes as many steps in a round as every site, and the number of steps in an "
                "epoch differs between sites; give 'steps' instead of 'epochs'"
            )
        return self


class RepresentationSettings(PublicDataSettings):
    """The server's part of pFedMo alone: a model of its labelled samples, without any site."""

    held_out: Fraction = server_setting(0.0, "fraction of the server's labelled samples that it does not train on")

    @model_validator(mode="after")
    def _no_settings_of_sites(self) -> RepresentationSettings:
        # `weights` is allowed: comparisons set it for all methods, and without replies it changes nothing.
        names = (*OF_SITES, "aggregation", "hostile", "attack", "defence")
        refuse_unused(self, names, "in 'representation', which trains at the server alone")
        return self


class PfedmoSettings(PublicDataSettings):
    """pFedMo: Nesterov momentum, and models personalised by each site's agreement with the server's model."""

    rule: Rule = server_setting("pull", "how a site's model is computed from the mean and the server's representation")
    pi: Annotated[float, Field(ge=0, le=1)] = server_setting(
        1.0, "temperature: how strongly scores personalise; 0 is fednag"
    )
    score_batch: Count = server_setting(256, "number of held-out samples for scores, sampled in every round")

    @model_validator(mode="after")
    def _statistics_for_scores(self) -> PfedmoSettings:
        if self.bn == "local":
            raise ValueError('bn = "local" keeps statistics at the sites, and the server cannot score a model without')
        return self


METHODS = (
    MethodEntry("pfedmo", PfedmoSettings, "recipe:pfedmo", check="representation:check"),
    MethodEntry(
        "fednag",
        NesterovSettings,
        "recipe:fednag",
        summary="FedNAG (Yang et al. 2022): Nesterov momentum at the sites, averaged with their models.",
    ),
    MethodEntry("fastslowmo", FastSlowMoSettings, "recipe:fastslowmo"),
    MethodEntry("fedmom", FedMomSettings, "recipe:fedmom"),
    MethodEntry("slowmo", SlowMoSettings, "recipe:slowmo"),
    MethodEntry("domo", DomoSettings, "recipe:domo"),
    MethodEntry("fedadc", FedAdcSettings, "recipe:fedadc"),
    MethodEntry("mime", MimeSettings, "recipe:mime"),
    MethodEntry("representation", RepresentationSettings, "recipe:representation", check="representation:check"),
)
