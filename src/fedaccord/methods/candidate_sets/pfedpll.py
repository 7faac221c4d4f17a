"""pFedPLL: personalised federated partial-label learning (docs/methods.md 5.11), and what became of it here.

`pfedpll` is the published method. Label correlation isolation: the encoder is shared, a p x p layer that begins as the
identity and the head stay at the site. Label correlation personalisation: a loss of three terms with label confidences.
Aggregation: the further a site's features are from those of the model it was sent, the more it counts.

`pfedpll+` is ours: everything is shared (with `head = "local"` all but the head), and what a site has of its own is its
label frequencies, estimated each round from what it believes of its samples and added to the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedaccord.federation.recipe import Recipe
from fedaccord.methods.candidate_sets.baselines import averaged
from fedaccord.methods.candidate_sets.kl_score import KLWeights, warn_without_inputs
from fedaccord.methods.candidate_sets.settings import PfedpllPlusSettings, PfedpllSettings
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.named_losses import site_objective
from fedaccord.models.network import Network, insert_personal_layer


def pfedpll(settings: PfedpllSettings) -> Recipe:
    """Return the recipe, or one of its ablations."""
    sharing = share_model(settings)
    if settings.isolation:
        sharing = replace(sharing, parts=frozenset({"encoder"}))
    scored = settings.score == "kl" and settings.aggregation == "mean"  # the other rules look at no weights
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
    """Put a p x p layer that starts as the identity between encoder and head."""
    insert_personal_layer(network)


def pfedpll_plus(settings: PfedpllPlusSettings) -> Recipe:
    """Return the recipe."""
    return averaged(settings, site_objective(settings.loss, settings))
