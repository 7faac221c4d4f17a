"""The settings of methods for several labels at once, with the papers' defaults; importable without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedaccord.methods.entry import MethodEntry
from fedaccord.methods.shared_settings import SharedModelSettings
from fedaccord.training.settings import Count


class FedHarmonySettings(SharedModelSettings):
    """Settings of `fedharmony`, with the published choices where the paper tells them."""

    rounds: Count = Field(50, description="communication rounds")
    epochs: Count | None = Field(5, description="passes over a site's data in each round; 1 if no steps are given")
    batch: Count = Field(16, description="samples in a mini-batch")
    lr: float = Field(1e-4, gt=0, le=1000, description="learning rate of the sites")
    optimiser: Literal["sgd", "adam"] = Field("adam", description="how sites step")
    teacher: Literal["scores", "counts", "none"] = Field(
        "scores", description="the others' correlations: of model scores in each round, of tags counted once, or none"
    )
    strength: float = Field(1.0, ge=0, description="weight of the alignment with the teacher")
    strength_against: Literal["tag", "frequencies"] = Field(
        "tag", description="what strength is against: the loss of one tag, or of a model that knows frequencies only"
    )
    mu: float = Field(0.0, ge=0, description="weight of a pull towards the received model, as in fedprox")
    exchanges: Literal[1, 2] = Field(
        1, description="scores: 1: the teacher is of the last round; 2: asked for anew before each round"
    )
    consensus: Literal["mean", "uniform-mean", "median", "trimmed-mean"] = Field(
        "mean", description="how the others' correlations become one; the last two withstand some hostile sites"
    )
    beta: float = Field(0.5, gt=0, le=1, description="share of a batch in a site's running correlations")
    blocks: Literal["off", "common", "per-site", "auto"] = Field(
        "common", description="align inside blocks of tags only, common or each site's; auto: common from 100 tags on"
    )
    block_count: Count | None = Field(None, description="number of blocks; left out: the square root of that of tags")
    block_loss: Literal["sum", "mean"] = Field(
        "sum", description="add up the blocks' mean distances, or take the mean over all pairs inside blocks"
    )
    weights: Literal["quality", "samples", "uniform"] = Field(
        "quality", description="weights of the sites: more and more by agreement with the others, or by size, or equal"
    )
    gamma: float = Field(5.0, ge=0, description="quality: how much a distance from the others costs")
    volume_rounds: float | None = Field(
        None, ge=0, description="quality: rounds until sizes do not count any more; left out: half of all"
    )
    head_rows: Literal["owners", "annotated"] = Field(
        "owners",
        description="a tag's head row: averaged over the sites that know it, or also by how often they annotate",
    )
    site_prior: bool = Field(
        False, description="a site adds to its predictions by how much its tag frequencies differ from everybody's"
    )
    shrinkage: float = Field(20.0, ge=0, description="counts: rows of a pair that count as much as knowing nothing")
    correlation_noise: float = Field(
        0.0, ge=0, description="noise on what leaves a site of its tags, in units of what one row can change there"
    )
    permuted: bool = Field(False, description="a control: teach each tag another tag's correlations")

    @model_validator(mode="after")
    def _one_prior(self) -> FedHarmonySettings:
        if self.site_prior and self.prior != "off":
            raise ValueError("'site_prior' and 'prior' are two forms of a site's own frequencies; set one of them")
        return self


class FedHarmonyPlusSettings(FedHarmonySettings):
    """Settings of `fedharmony+`; its defaults were chosen on parts of the training data, see docs/multi-label.md."""

    epochs: Count | None = Field(2, description="passes over a site's data in each round; 1 if no steps are given")
    batch: Count = Field(32, description="samples in a mini-batch")
    lr: float = Field(3e-3, gt=0, le=1000, description="learning rate of the sites")
    teacher: Literal["scores", "counts", "none"] = Field(
        "counts", description="the others' correlations: of model scores in each round, of tags counted once, or none"
    )
    strength: float = Field(5.0, ge=0, description="weight of the alignment with the teacher")
    strength_against: Literal["tag", "frequencies"] = Field(
        "frequencies",
        description="what strength is against: the loss of one tag, or of a model that knows frequencies only",
    )
    blocks: Literal["off", "common", "per-site", "auto"] = Field(
        "auto", description="align inside blocks of tags only, common or each site's; auto: common from 100 tags on"
    )
    block_loss: Literal["sum", "mean"] = Field(
        "mean", description="add up the blocks' mean distances, or take the mean over all pairs inside blocks"
    )
    weights: Literal["quality", "samples", "uniform"] = Field(
        "uniform", description="weights of the sites: more and more by agreement with the others, or by size, or equal"
    )
    head_rows: Literal["owners", "annotated"] = Field(
        "annotated",
        description="a tag's head row: averaged over the sites that know it, or also by how often they annotate",
    )
    site_prior: bool = Field(
        True, description="a site adds to its predictions by how much its tag frequencies differ from everybody's"
    )


METHODS = (
    MethodEntry(
        "fedharmony",
        "several labels at once: sites drawn to how the others' tags go together, weighed by agreement (FedHarmony)",
        FedHarmonySettings,
        "fedaccord.methods.harmony.recipe:fedharmony",
    ),
    MethodEntry(
        "fedharmony+",
        "several labels at once: correlations from counts of tags, head rows by annotations, site frequencies (ours)",
        FedHarmonyPlusSettings,
        "fedaccord.methods.harmony.recipe:fedharmony",
    ),
)
