"""Private label sets: sites hold samples of some labels only and need not say which ("Federated Learning with
Heterogeneous and Private Label Sets", arXiv 2508.18774).

Private: a site is sent the encoder and the head rows of its own labels, its softmax runs over these, and every row is
averaged over the sites that own it. Public: every site knows all labels (plain FedAvg or FedProx). After the average
the server may tune its model on unlabelled inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from fedaccord.federation.recipe import Exchange, Recipe, ServerStep
from fedaccord.federation.requirements import RequireViews
from fedaccord.messages.message import SiteId
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.offers import with_local_rule
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.methods.private_labels.tuning import Balancing, CentralTuning
from fedaccord.methods.private_labels.weighing import LabelCountWeights, SendLabelCounts
from fedaccord.models.network import Network, init_head_rows
from fedaccord.seeds import derive
from fedaccord.training.objectives import Sum

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

MOST_NAMED = 10  # sites in a warning


def private_labels(settings: PrivateLabelsSettings) -> Recipe:
    """Return the recipe."""
    private = settings.labels == "private"
    settings = settings.model_copy(update={"softmax": "view" if private else "full"})
    tuning = _tuning(settings)
    recipe = Recipe(
        settings,
        None,
        sharing=replace(share_model(settings), own_rows=private and settings.rows == "known", owners="declared"),
        prepare=(warn_of_public_sites,) if private else (),
        ready=tuple(step.refuse_unfit for step in tuning if isinstance(step, Balancing)),
        refine=tuning,
        network=draw_rows_by_name if private else None,
    )
    if settings.label_weight == "per_label":
        recipe = _weighed_by_labels(recipe)
    per_label = settings.labels != "public"
    return with_local_rule(with_aggregation(recipe, settings, rows_by_owner=per_label), settings.local, per_label)


def draw_rows_by_name(network: Network, labels: Sequence[str], seed: int) -> None:
    """Draw each head row from its label's name, so that a site's first rows do not tell how many other labels exist."""
    init_head_rows(network, [derive(seed, "row", label) for label in labels])


def _weighed_by_labels(recipe: Recipe) -> Recipe:
    own_rows = recipe.sharing.own_rows
    weights = LabelCountWeights(own_rows)
    return replace(
        recipe,
        objective=Sum((recipe.objective, SendLabelCounts(own_rows))),
        admit=(*recipe.admit, weights),
        exchange=Exchange(expected=weights.extras),
        ready=(*recipe.ready, RequireViews("one_label", "one label for each sample with label_weight")),
    )


def sites_knowing_all_labels(informs: Mapping[SiteId, Tensor]) -> str | None:
    """Say which sites are said to know every label, so that no label is kept from them; None: no site is."""
    sites = [f"'{site}'" for site, known in sorted(informs.items()) if bool(known.all())]
    if not sites:
        return None
    named = ", ".join(sites[:MOST_NAMED])
    if len(sites) > MOST_NAMED:
        named += f" and {len(sites) - MOST_NAMED} more"
    return (
        f"no label is private to {named}: such a site is said to know every label of the "
        "federation and is sent all their rows; write the labels that it knows into its view's `known`"
    )


def warn_of_public_sites(server: Server) -> None:
    """Warn of sites that are sent the rows of all labels, since nothing says that they know only some."""
    said = sites_knowing_all_labels({name: card.informs for name, card in server.cards.items()})
    if said is not None:
        server.warn(said)


def _tuning(settings: PrivateLabelsSettings) -> tuple[ServerStep, ...]:
    if settings.tuning == "none":
        return ()
    if settings.tuning == "balance":
        given = settings.frequencies if isinstance(settings.frequencies, list) else None
        return (Balancing(settings.rounds, given, from_sites=settings.frequencies == "sites"),)
    return (
        CentralTuning(
            loss=settings.tuning,
            renormalise=settings.norm == "renorm",
            zero_padded=settings.pairs == "zero-padded",
            mask_absent=settings.mask_absent,
            whole_model=settings.tune == "all",
            peers_know_all=settings.labels != "private",
            all_labels=settings.tuning_labels == "all",
            lr=settings.tuning_lr,
            momentum=settings.tuning_momentum,
            batch=settings.tuning_batch,
        ),
    )
