"""Candidate sets (docs/methods.md 5): pFedPLL, pFedPLL+ and the baselines they are compared with.

`pfedpll` is the published method. Isolation: the encoder is shared; a p x p layer initialised to the identity and the
head stay at the site. Calibration: a loss of three terms with label confidences. Aggregation: a site counts more if its
features moved further from those of the sent model.

`pfedpll+` is ours. The whole model is shared (with `head = "local"`, only the encoder). A site personalises it by
adding its label frequencies, estimated from its confidences in each round, to the logits.

The baselines are federated averaging with the losses of centralised partial-label learning (docs/methods.md 5.1) that
are compared in pFedPLL: CC and RC (Feng et al. 2020), LW (Wen et al. 2021), CAVL (Zhang et al. 2022), ABS_GCE (Lv et
al. 2023) and uniform cross-entropy over the candidates. CLPL (Cour et al. 2011) is the loss of FairFedPAPL.
`head = "local"` shares the encoder only (FedPer), as a control for personalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.federation.recipe import Recipe
from fedaccord.methods.candidate_sets.alignment import AlignedAugmentation
from fedaccord.methods.candidate_sets.settings import (
    LaApproxSettings,
    PartialBaselineSettings,
    PfedpllPlusSettings,
    PfedpllSettings,
)
from fedaccord.methods.common_model import share_model, site_objective, with_aggregation, with_noise
from fedaccord.models.network import Network, insert_personal_layer, predict_features
from fedaccord.seeds import derive
from fedaccord.training.objectives import Objective

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


def averaged(settings: PartialBaselineSettings, objective: Objective) -> Recipe:
    """Return federated averaging of the whole model, or of the encoder only, with an objective."""
    sharing = share_model(settings, encoder_only=settings.head == "local")
    # If every site knows every label, averaging head rows by owner is the plain mean.
    return with_aggregation(Recipe(settings, None, objective, sharing=sharing), settings, rows_by_owner=True)


def _with_loss(loss: str) -> Callable[[PartialBaselineSettings], Recipe]:
    return lambda settings: averaged(settings, site_objective(loss, settings))


fed_cc = _with_loss("cc")
fed_rc = _with_loss("rc")
fed_lw = _with_loss("lw")
fed_cavl = _with_loss("cavl")
fed_abs_gce = _with_loss("abs-gce")
fed_uniform = _with_loss("uniform")
fed_clpl = _with_loss("clpl")


def fedpll_la_approx(settings: LaApproxSettings) -> Recipe:
    """Return the recipe of our approximation of FedPLL_LAAR (Yan and Guo 2024)."""
    return averaged(settings, with_noise(AlignedAugmentation(settings.rho), settings))


def pfedpll(settings: PfedpllSettings) -> Recipe:
    """Return the recipe of pFedPLL or of one of its ablations."""
    scored = settings.score == "kl" and settings.aggregation == "mean"  # robust rules ignore weights
    recipe = Recipe(
        settings,
        None,
        site_objective("calibrated" if settings.calibration else "lw", settings),
        sharing=share_model(settings, encoder_only=settings.isolation),
        prepare=(warn_without_inputs,) if scored else (),
        admit=(KLWeights(settings.score_inputs),) if scored else (),
        network=with_personal_layer if settings.isolation else None,
    )
    return with_aggregation(recipe, settings, rows_by_owner=True)


def with_personal_layer(network: Network, labels: Sequence[str], seed: int) -> None:
    """Insert a p x p layer, initialised to the identity, between encoder and head."""
    insert_personal_layer(network)


def pfedpll_plus(settings: PfedpllPlusSettings) -> Recipe:
    """Return the recipe of pFedPLL+."""
    return averaged(settings, site_objective(settings.loss, settings))


@dataclass(frozen=True)
class KLWeights:
    """Weight each site by the distance of its features on the server's inputs from those of the sent model."""

    inputs: int = 640  # drawn anew in each round

    def __call__(self, server: Server, replies: Replies) -> Replies:
        """Return the replies with KL weights; without inputs the weights remain sample counts."""
        x = self._draw(server)
        if x is None:
            return replies
        features = torch.stack([_features(server, row, x) for row in replies.matrix])
        return replace(replies, weights=kl_scores(features, _features(server, replies.previous, x)).cpu())

    def _draw(self, server: Server) -> Tensor | None:
        x = server.unlabelled
        if x is None or not len(x):
            return None
        generator = torch.Generator().manual_seed(derive(server.seed, "kl score", server.state.round + 1))
        return x[torch.randperm(len(x), generator=generator)[: self.inputs].sort().values]


def warn_without_inputs(server: Server) -> None:
    """Record in the first round that there are no inputs to compute scores on."""
    if server.state.round == 0 and (server.unlabelled is None or not len(server.unlabelled)):
        reason = "the server has no unlabelled data, so sites are weighted by sample count; give [server] unlabelled"
        server.drop("", "KL score", "", reason)


def kl_distances(features: Tensor, reference: Tensor) -> Tensor:
    """Return the mean over inputs of `KL(softmax features_k || softmax reference)`, float64 (sites,).

    `features` is (sites, inputs, width), `reference` (inputs, width). Features are not distributions: the softmax over
    the width is our reading of the paper.
    """
    log_p, log_q = torch.log_softmax(features.double(), -1), torch.log_softmax(reference.double(), -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean(-1)


def kl_scores(features: Tensor, reference: Tensor) -> Tensor:
    """Return weights that sum to one, proportional to the distances; equal weights if all distances are zero.

    A site with features that are not finite gets weight zero.
    """
    distances = kl_distances(features, reference)
    # Rounding errors can make a distance of zero negative.
    distances = torch.where(torch.isfinite(distances), distances, 0.0).clamp(min=0.0)
    total = distances.sum()
    if not float(total) > 0:
        return torch.full_like(distances, 1 / len(distances))
    return distances / total


def _features(server: Server, model: Tensor, x: Tensor) -> Tensor:
    server.layout.load(server.network, model)
    return predict_features(server.network, x)
