"""Private label sets (Breitholtz et al. 2025, arXiv 2508.18774; docs/methods.md 4).

Sites have samples of some labels only, and do not reveal to other sites which. Private: a site receives the encoder and
the head rows of its known labels, its softmax runs over these, and every row is averaged over its owners. Public: every
site knows the names of all labels. After aggregation the server may tune its model on unlabelled inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from fedaccord.data.sites import FederationData
from fedaccord.federation.recipe import Exchange, Recipe, ServerStep
from fedaccord.federation.requirements import RequireViews
from fedaccord.findings import Finding, warning
from fedaccord.messages.message import SiteId
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.offers import with_local_rule
from fedaccord.methods.private_labels.balance import Balancing
from fedaccord.methods.private_labels.label_counts import LabelCountWeights, SendLabelCounts
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.methods.private_labels.tuning import CentralTuning
from fedaccord.models.network import Network, init_head_rows
from fedaccord.seeds import derive
from fedaccord.training.objectives import Sum

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

MOST_NAMED = 10  # sites in a warning


def private_labels(settings: PrivateLabelsSettings) -> Recipe:
    """Return the recipe of `private-labels`."""
    private = settings.labels == "private"
    settings = settings.model_copy(update={"softmax": "view" if private else "full"})
    tuning = _tuning(settings)
    recipe = Recipe(
        settings,
        None,
        sharing=replace(share_model(settings), own_rows=private and settings.rows == "known", owners="declared"),
        prepare=(warn_of_sites_knowing_all_labels,) if private else (),
        ready=tuple(step.refuse_unfit for step in tuning if isinstance(step, Balancing)),
        refine=tuning,
        network=init_rows_by_name if private else None,
    )
    if settings.label_weight == "per_label":
        recipe = _with_label_count_weights(recipe)
    per_label = settings.labels != "public"
    return with_local_rule(with_aggregation(recipe, settings, rows_by_owner=per_label), settings.local, per_label)


def init_rows_by_name(network: Network, labels: Sequence[str], seed: int) -> None:
    """Initialise each head row by its label's name, so that the rows do not reveal how many other labels exist."""
    init_head_rows(network, [derive(seed, "row", label) for label in labels])


def _with_label_count_weights(recipe: Recipe) -> Recipe:
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
    """Return a warning about sites declared to know every label, from which no label is private; None without any."""
    sites = [f"'{site}'" for site, known in sorted(informs.items()) if bool(known.all())]
    if not sites:
        return None
    named = ", ".join(sites[:MOST_NAMED])
    if len(sites) > MOST_NAMED:
        named += f" and {len(sites) - MOST_NAMED} more"
    return (
        f"no label is private to {named}: such a site is declared to know every label of the federation and is sent "
        "all head rows; list the labels that it knows in its view's `known`"
    )


def warn_of_sites_knowing_all_labels(server: Server) -> None:
    """Warn about sites that are sent the rows of all labels."""
    text = sites_knowing_all_labels({name: card.informs for name, card in server.cards.items()})
    if text is not None:
        server.warn(text)


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
            full_softmax=settings.labels != "private",
            all_labels=settings.tuning_labels == "all",
            lr=settings.tuning_lr,
            momentum=settings.tuning_momentum,
            batch=settings.tuning_batch,
        ),
    )


def check(settings: PrivateLabelsSettings, data: FederationData) -> list[Finding]:
    """Return warnings about sites that know every label, and about tuning without inputs."""
    findings = []
    if settings.labels == "private":
        text = sites_knowing_all_labels({name: site.view.informs() for name, site in data.sites.items()})
        findings += [] if text is None else [warning(text)]
    if settings.tuning != "none" and data.unlabelled is None:
        text = f'method.tuning = "{settings.tuning}" has no effect: the server has no inputs; give [server] unlabelled'
        findings.append(warning(text))
    return findings
