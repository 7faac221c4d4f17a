"""Methods for mixed-type labels: settings with the papers' defaults and registry entries; importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedaccord.errors import refuse_unused
from fedaccord.methods.averaging.settings import PLAIN_RULE
from fedaccord.methods.entry import LocalRuleName, MethodEntry, local_rules
from fedaccord.methods.shared_settings import SharedModelSettings
from fedaccord.training.settings import (
    Count,
    FigureSection,
    Fraction,
    NotNegative,
    Positive,
    Rate,
    Schedule,
    TrainingSettings,
    server_setting,
    site_setting,
)

if TYPE_CHECKING:
    from fedaccord.labels.views.declaration import ViewDeclaration

Whole = Annotated[int, Field(ge=0)]
Estimator = Literal["counts", "em-pool"]
PseudoLabel = Literal["paper", "posterior"]
PSEUDO_LABELS = FigureSection(
    "Pseudo-labels",
    "Confident samples are those whose pseudo-label is more likely than the threshold: without any, the sites teach "
    "nothing. The server's accuracy is on the samples that it trains on.",
    {"confident": "confident samples of the sites", "server_accuracy": "the server's own samples, fitted"},
)


class SupercentreSettings(TrainingSettings):
    """Settings of methods whose server trains on labelled samples of its own; those of `single`."""

    report_sections: ClassVar[tuple[FigureSection, ...]] = (PSEUDO_LABELS,)

    rounds: Count = 200
    batch: Count = 64
    lr: Rate = 0.03
    weight_decay: NotNegative = site_setting(5e-4, "weight decay of SGD, at the sites and at the server")
    schedule: Schedule = "cosine"
    server_lr: Rate | None = server_setting(None, "learning rate of the server's own steps; left out: `lr`")
    server_epochs: Whole = server_setting(5, "number of epochs over the server's labelled samples in each round")
    server_batch: Count = server_setting(64, "mini-batch size of the server")
    warmup: Whole = server_setting(0, "number of steps on the server's labelled samples before the first round")
    augment: Literal["auto", "images", "features", "words", "none"] = site_setting(
        "auto", "how samples are augmented: as images, standardised features or hashed words"
    )
    server_augment: Literal["weak", "strong"] = server_setting("weak", "augmentation of the server's labelled samples")
    noise: NotNegative = site_setting(0.1, "features: standard deviation of the noise in strong augmentation")
    gaps: Fraction = site_setting(0.1, "features: fraction of values set to zero")
    word_dropout: Fraction = site_setting(0.3, "words: fraction of the words that are dropped")

    def server_lr_at(self, round_: int) -> float:
        """Return the learning rate of the server's own steps in a round, counted from 1."""
        return self.lr_at(round_, self.server_lr)


class MixedSiteSettings(SupercentreSettings, SharedModelSettings):
    """Settings of methods in which a labelled server and coarsely labelled sites train together."""

    epochs: Count | None = 5
    local: LocalRuleName = site_setting(PLAIN_RULE, "local training rule")
    mu: NotNegative = site_setting(0.01, "fedprox: weight of the proximal term")
    weights: Literal["equal", "samples"] = server_setting(
        "equal", "weights of the sites in the aggregate: equal, or by number of samples"
    )

    @model_validator(mode="after")
    def _settings_of_the_rule_are_used(self) -> MixedSiteSettings:
        for name, rule in local_rules().items():
            if name != self.local:
                refuse_unused(self, rule.settings, f'unless local = "{name}"')
        return self


class FedTransSettings(MixedSiteSettings):
    """Sites train a model of their own names, which the server fine-tunes on its labelled samples."""

    server_lr: Rate | None = server_setting(0.01, "learning rate of the fine-tuning on the server's samples")
    server_epochs: Whole = server_setting(100, "number of epochs of the fine-tuning after the last round")

    @property
    def last_step(self) -> str:
        """What is done only after the last round."""
        return 'method.name = "fedtrans" trains its head' if self.server_epochs else ""

    @model_validator(mode="after")
    def _no_warm_up(self) -> FedTransSettings:
        refuse_unused(self, ("warmup",), "in fedtrans, whose server trains after the last round only")
        return self


class FedRepSettings(MixedSiteSettings):
    """FedRep as FedMT compares it: server and sites train one encoder, each below its own head."""

    server_weight: Fraction | None = server_setting(
        None, "weight of the server in the mean encoder; left out: that of one more site"
    )


class SemiFLSettings(MixedSiteSettings):
    """SemiFL (Diao et al. 2022): a server with few labels, pseudo-labels at sites whose labels are not used."""

    clip: NotNegative = 1.0
    threshold: Fraction = site_setting(
        0.95, "confidence threshold: a pseudo-label is used if its probability is above it"
    )
    lambda1: NotNegative = site_setting(1.0, "weight of mixup samples")
    mixup: Positive = site_setting(0.75, "parameter a of the distribution Beta(a, a) of mixup weights")


class FedMTSettings(SemiFLSettings):
    """FedMT (Zhang et al. 2024): a server with few labels, sites with coarse names, declared or estimated."""

    correspondence: Literal["known", "estimated", "estimated-average", "learnable", "learnable-average"] = site_setting(
        "estimated",
        "how the correspondence between coarse names and classes is obtained: declared by the views, or estimated or "
        "learned, per site or averaged over sites",
    )
    estimator: Estimator = site_setting(
        "counts", "estimated: from confident samples, or by EM on counts summed over sites with the same names"
    )
    exchanges: Count = server_setting(5, "em-pool: number of times that sites are asked for counts in each round")
    smoothing: NotNegative = site_setting(0.0, "pseudo-count of each coarse name in the estimate")
    pseudo_label: PseudoLabel = site_setting(
        "paper", "pseudo-label of a sample: its most likely class, or its most likely class given its coarse label"
    )
    project_on: Literal["confident", "all"] = site_setting(
        "confident", "samples whose coarse labels contribute to the loss"
    )
    lambda2: NotNegative = site_setting(0.0625, "weight of pseudo-labels relative to the coarse labels")

    def without_effect(self) -> list[str]:
        """Return also sentences on mixup without pseudo-labels."""
        found = super().without_effect()
        if self.lambda2 == 0:
            found += [
                f"method.{name} has no effect: lambda2 = 0 leaves out the pseudo-labels"
                for name in ("lambda1", "mixup")
                if self.is_changed(name)
            ]
        return found

    def view_problem(self, view: ViewDeclaration) -> str:
        """Return why a site has no correspondence, if the views have to declare them."""
        if self.correspondence == "known" and view.is_unexplained:
            return "declares names without a correspondence, but method.correspondence is 'known'; use 'estimated'"
        return ""

    @model_validator(mode="after")
    def _consistent_correspondence(self) -> FedMTSettings:
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
    """FedMT with correspondences by EM over all sites, and pseudo-labels given the coarse label (ours)."""

    epochs: Count | None = 2
    warmup: Whole = 300
    server_epochs: Whole = 3
    threshold: Fraction = 0.5
    estimator: Estimator = "em-pool"
    pseudo_label: PseudoLabel = "posterior"
    lambda2: NotNegative = 1.0


METHODS = (
    MethodEntry("fedmt", FedMTSettings, "recipe:fedmt", check="checks:check", advice="checks:advice"),
    MethodEntry("fedmt+", FedMTPlusSettings, "recipe:fedmt", check="checks:check"),
    MethodEntry("semifl", SemiFLSettings, "recipe:semifl", check="checks:check"),
    MethodEntry("fedrep", FedRepSettings, "recipe:fedrep", check="checks:check"),
    MethodEntry("fedtrans", FedTransSettings, "recipe:fedtrans", check="checks:check"),
    MethodEntry(
        "single",
        SupercentreSettings,
        "recipe:single",
        check="checks:check",
        summary="The server trains alone on its labelled samples: the baseline for coarsely labelled sites.",
    ),
)
