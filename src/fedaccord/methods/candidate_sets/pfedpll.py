"""pFedPLL (docs/methods.md 5.11): personalised federated partial-label learning; and pFedPLL+ (docs/methods.md 5.12).

`pfedpll` is the published method. Isolation: the encoder is shared; a p x p layer initialised to the identity and the
head stay at the site. Calibration: a loss of three terms with label confidences. Aggregation: a site counts more if its
features moved further from those of the sent model.

`pfedpll+` is ours. The whole model is shared (with `head = "local"`, only the encoder). A site personalises it by
adding its label frequencies, estimated from its confidences in each round, to the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedaccord.federation.recipe import Recipe
from fedaccord.methods.candidate_sets.baselines import averaged
from fedaccord.methods.candidate_sets.kl_weights import KLWeights, warn_without_inputs
from fedaccord.methods.candidate_sets.settings import PfedpllPlusSettings, PfedpllSettings
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.named_losses import site_objective
from fedaccord.models.network import Network, insert_personal_layer


def pfedpll(settings: PfedpllSettings) -> Recipe:
    """Return the recipe of pFedPLL or of one of its ablations."""
    sharing = share_model(settings)
    if settings.isolation:
        sharing = replace(sharing, parts=frozenset({"encoder"}))
    scored = settings.score == "kl" and settings.aggregation == "mean"  # robust rules ignore weights
    recipe = Recipe(
        settings,
        None,
        site_objective("calibrated" if settings.calibration else "lw", settings),
        sharing=sharing,
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
