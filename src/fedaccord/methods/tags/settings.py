"""FedHarmony and SphereFed: settings with the papers' defaults and registry entries; importable without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import UNUSED_LOSS, Aggregation, ClassicSettings, SharedModelSettings
from fedaccord.training.settings import (
    Count,
    FigureSection,
    NotNegative,
    Optimiser,
    Positive,
    Rate,
    server_setting,
    site_setting,
)

Teacher = Literal["scores", "counts", "none"]
StrengthAgainst = Literal["tag", "frequencies"]
Blocks = Literal["off", "common", "per-site", "auto"]
BlockLoss = Literal["sum", "mean"]
Weights = Literal["quality", "samples", "uniform"]
HeadRows = Literal["owners", "annotated"]
AGREEMENT = FigureSection(
    "Agreement of the sites",
    "Quality is near 1 if a site's model has the correlations that the other sites agree on.",
    per_site="quality/",
    means={"alignment_share": "Aligning the sites took {mean} of their training time."},
)


class FedHarmonySettings(SharedModelSettings):
    """Tags: FedHarmony, which aligns sites with the others' tag correlations and weights them by agreement."""

    report_sections: ClassVar[tuple[FigureSection, ...]] = (AGREEMENT,)

    epochs: Count | None = 5
    batch: Count = 16
    lr: Rate = 1e-4
    optimiser: Optimiser = "adam"
    # Sites read these four to decide whether to send correlations: rules other than the mean use no weights.
    aggregation: Aggregation = site_setting(
        "mean", "rule that aggregates the sites' models; all except the mean are robust to some hostile sites"
    )
    teacher: Teacher = site_setting(
        "scores",
        "source of the teacher, the other sites' tag correlations: model scores in every round, tag counts collected "
        "once, or no teacher",
    )
    exchanges: Literal[1, 2] = site_setting(
        1, "scores: 1: the teacher is that of the previous round; 2: sites are asked again before each round"
    )
    weights: Weights = site_setting(
        "quality",
        "weights of the sites: by size at first and increasingly by agreement with the others, by size, or equal",
    )
    strength: NotNegative = site_setting(1.0, "weight of the alignment with the teacher")
    strength_against: StrengthAgainst = site_setting(
        "tag", "unit of `strength`: the loss of one tag, or the loss of a model that predicts the tag frequencies"
    )
    mu: NotNegative = site_setting(0.0, "weight of a proximal term, as in fedprox")
    consensus: Literal["mean", "uniform-mean", "median", "trimmed-mean"] = server_setting(
        "mean", "rule that aggregates the other sites' correlations; the last two are robust to some hostile sites"
    )
    beta: Annotated[float, Field(gt=0, le=1)] = site_setting(0.5, "weight of a batch in a site's running correlations")
    blocks: Blocks = server_setting(
        "common",
        "align correlations only within blocks of tags, common to all sites or per site; auto: common for 100 tags or "
        "more",
    )
    block_count: Count | None = server_setting(
        None, "number of blocks; left out: the square root of the number of tags"
    )
    block_loss: BlockLoss = site_setting(
        "sum", "sum of the blocks' mean distances, or mean over all pairs within blocks"
    )
    gamma: NotNegative = server_setting(5.0, "quality: decay rate of a site's weight with its distance from the others")
    volume_rounds: NotNegative | None = server_setting(
        None, "quality: number of rounds after which sizes are ignored; left out: half of all rounds"
    )
    head_rows: HeadRows = server_setting(
        "owners",
        "average of a tag's head row: over the sites that know the tag, or also weighted by how often they annotate it",
    )
    site_prior: bool = site_setting(
        False, "correct a site's predictions by the difference of its tag frequencies from the federation's"
    )
    shrinkage: NotNegative = server_setting(
        20.0, "counts: number of rows at which a pair's correlation is shrunk by half"
    )
    correlation_noise: NotNegative = site_setting(
        0.0,
        "standard deviation of noise on the tag statistics that a site sends, in units of their sensitivity to one row",
    )
    permuted: bool = server_setting(False, "a control: teach each tag the correlations of another tag")

    @model_validator(mode="after")
    def _one_prior(self) -> FedHarmonySettings:
        if self.site_prior and self.prior != "off":
            raise ValueError("'site_prior' and 'prior' are two forms of a site's own frequencies; set one of them")
        return self

    def without_effect(self) -> list[str]:
        """Return also sentences on the teacher, the blocks and the weights."""
        is_taught = self.teacher != "none" and self.strength > 0
        works = {
            "strength": (self.teacher != "none", 'teacher = "none"'),
            "strength_against": (is_taught, "no teacher, or strength = 0"),
            "consensus": (self.teacher != "none" or self.weights == "quality", 'teacher = "none"'),
            "exchanges": (self.teacher == "scores", f'teacher = "{self.teacher}"'),
            "shrinkage": (self.teacher == "counts", f'teacher = "{self.teacher}"'),
            "block_count": (self.blocks != "off", 'blocks = "off"'),
            "block_loss": (self.blocks != "off" and is_taught, 'blocks = "off", or without a teacher'),
            "gamma": (self.weights == "quality", f'weights = "{self.weights}"'),
            "volume_rounds": (self.weights == "quality", f'weights = "{self.weights}"'),
            "permuted": (is_taught, "no teacher, or strength = 0"),
        }
        found = [
            f"method.{name} has no effect with {when}"
            for name, (effective, when) in works.items()
            if not effective and self.is_changed(name)
        ]
        return super().without_effect() + found


class FedHarmonyPlusSettings(FedHarmonySettings):
    """Tags: correlations from tag counts, head rows weighted by annotations, site priors (ours)."""

    epochs: Count | None = 2
    batch: Count = 32
    lr: Rate = 3e-3
    teacher: Teacher = "counts"
    strength: NotNegative = 5.0
    strength_against: StrengthAgainst = "frequencies"
    blocks: Blocks = "auto"
    block_loss: BlockLoss = "mean"
    weights: Weights = "uniform"
    head_rows: HeadRows = "annotated"
    site_prior: bool = True


class SphereFedSettings(ClassicSettings):
    """Tags: SphereFed (Dong et al. 2022), with unit features below a frozen head that is solved for at the end."""

    ridge: Positive = server_setting(1.0, "ridge penalty of the head that is solved for after the last round")

    @property
    def last_step(self) -> str:
        """What is done only after the last round."""
        return 'method.name = "spherefed" solves for its head'

    def without_effect(self) -> list[str]:
        """Return also a sentence on the loss, which is always that of the view."""
        return super().without_effect() + [UNUSED_LOSS.format("spherefed")] * self.is_changed("loss")


METHODS = (
    MethodEntry("fedharmony", FedHarmonySettings, "recipe:fedharmony", check="checks:check"),
    MethodEntry("fedharmony+", FedHarmonyPlusSettings, "recipe:fedharmony", check="checks:check"),
    MethodEntry("spherefed", SphereFedSettings, "spherefed:spherefed"),
)
