"""Private label sets (Breitholtz et al. 2025, arXiv 2508.18774; docs/methods.md 4).

Sites have samples of some labels only, and do not reveal to other sites which. Private: a site receives the encoder and
the head rows of its known labels, its softmax runs over these, and every row is averaged over its owners. Public: every
site knows the names of all labels. After aggregation the server may tune its model on unlabelled inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.data.sites import FederationData
from fedaccord.federation.recipe import Exchange, Recipe, RequireViews, ServerStep
from fedaccord.findings import Finding, warning
from fedaccord.messages.checks import TensorSpec
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.common_model import share_model, with_aggregation
from fedaccord.methods.entry import with_local_rule
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.methods.private_labels.tuning import Balancing, CentralTuning
from fedaccord.models.network import Network, init_head_rows
from fedaccord.seeds import derive
from fedaccord.training.objectives import Objective, Sum
from fedaccord.training.work import Batch, LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

MOST_NAMED = 10  # sites in a warning
LABEL_COUNTS = "label counts"  # in a reply: of the training samples, float32


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
    return (Balancing(settings),) if settings.tuning == "balance" else (CentralTuning(settings),)


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


@dataclass(frozen=True)
class SendLabelCounts(Objective):
    """A term without loss that sends the number of training samples of each label; a candidate counts as a fraction."""

    own_rows: bool  # send the counts of known labels only

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return zero."""
        return batch.x.new_zeros(())

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Add the counts to the reply."""
        view, target = work.site.view, work.site.train.target
        if work.rows is not None:
            target = target[work.rows]
        counts = view.posterior(torch.zeros(len(target), len(view.space), device=target.device), target).sum(0)
        reply.tensors[LABEL_COUNTS] = counts[view.informs().to(counts.device)] if self.own_rows else counts


@dataclass(frozen=True)
class LabelCountWeights:
    """Weight a site's rows of the head by its label counts."""

    own_rows: bool  # counts cover the site's known labels only

    def extras(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return the tensors of a reply in addition to the model."""
        labels = int(card.informs.sum()) if self.own_rows else len(card.informs)
        return {LABEL_COUNTS: TensorSpec((labels,), torch.float32)}

    def __call__(self, server: Server, replies: Replies) -> Replies:
        """Return the replies with counts as row weights; a site's counts sum to at most its sample count."""
        counts = torch.zeros(replies.informs.shape, dtype=torch.float64)
        for row, message, known in zip(counts, replies.messages, replies.informs, strict=True):
            sent = message.tensors[LABEL_COUNTS].double().clamp(min=0)
            row[known] = sent if self.own_rows else sent[known]
        claimed = counts.sum(1).clamp(min=torch.finfo(torch.float64).tiny)
        return replace(replies, row_weights=counts * (replies.weights / claimed).clamp(max=1)[:, None])
