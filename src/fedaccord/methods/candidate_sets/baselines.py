"""Baselines for candidate sets: federated averaging with the losses of centralised partial-label learning.

The losses (docs/methods.md 5.1) are those compared in pFedPLL: CC and RC (Feng et al. 2020), LW (Wen et al. 2021), CAVL
(Zhang et al. 2022), ABS_GCE (Lv et al. 2023) and uniform cross-entropy over the candidates. CLPL (Cour et al. 2011) is
the loss of FairFedPAPL. `head = "local"` shares the encoder only (FedPer), as a control for personalisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedaccord.federation.recipe import Recipe
from fedaccord.methods.candidate_sets.alignment import AlignedAugmentation
from fedaccord.methods.candidate_sets.settings import LaApproxSettings, PartialBaselineSettings
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.named_losses import site_objective, with_noise
from fedaccord.training.objectives import Objective


def averaged(settings: PartialBaselineSettings, objective: Objective) -> Recipe:
    """Return federated averaging of the whole model, or of the encoder only, with an objective."""
    sharing = share_model(settings)
    if settings.head == "local":
        sharing = replace(sharing, parts=frozenset({"encoder"}))
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
