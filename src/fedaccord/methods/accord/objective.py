"""The loss of a site in `accord`: the likelihood of its annotations, with label confidences for candidate sets."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedaccord.data.validation_rows import split_rows
from fedaccord.federation.branch import BRANCH
from fedaccord.federation.experts import stored_experts
from fedaccord.federation.pooled_correspondence import remember_matrix
from fedaccord.federation.site_views import annotated_rows
from fedaccord.labels.correspondence import CORRESPONDENCE
from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.seeds import derive
from fedaccord.training.candidate_losses import PartialLabels, PartialLoss, partial_loss
from fedaccord.training.regularisation import is_regularised
from fedaccord.training.work import LocalWork

CONFIDENT = "confidences"  # the word of a brief that switches label confidences on
# The branches of a run. The first three never see the rows that are kept apart to weigh the experts by.
WEIGHING = "weighing"  # the shared model
REGULARISED, PLAIN_WAY = "alone, regularised", "alone, plain"  # models of one site, in two ways
ALONE = "alone"  # the model of one site on all of its rows, in the better way


@dataclass(frozen=True)
class AccordLoss(PartialLabels):
    """The likelihood of the view; at a site with candidate sets, the loss of pFedPLL with label confidences.

    Confidences are used if the brief says so: where few sites have candidate sets, they confirm the errors of a model
    that learns more from the other sites' labels.
    """

    partial: PartialLoss = field(default_factory=lambda: partial_loss("calibrated"))

    def site_view(self, view: View, brief: Message, memory: Message) -> View:
        """Return the view; names of unknown meaning get the last estimate of their correspondence."""
        if view.is_known:
            return view
        return view.with_matrix(brief.tensors.get(CORRESPONDENCE, memory.tensors.get(CORRESPONDENCE)))

    def prior_rows(self, work: LocalWork) -> Tensor | None:
        """Leave out the rows kept apart in the branch that has not seen them."""
        return rows_to_weigh(work)[0] if work.brief.words.get(BRANCH) == WEIGHING else None

    def start(self, work: LocalWork) -> None:
        """Select the rows of the branch, and load the label confidences of a site with candidate sets."""
        branch = work.brief.words.get(BRANCH)
        if branch in (WEIGHING, REGULARISED, PLAIN_WAY):
            rest, apart = rows_to_weigh(work)
            # No row: nothing to weigh by, or the other way is the same because the inputs need no regularisation.
            idle = branch != WEIGHING and (not len(apart) or (branch == REGULARISED and not is_regularised(work)))
            work.rows = rest[:0] if idle else rest
        if not work.view.is_known:  # the likelihood says nothing yet, and the reply would only slow the others down
            work.rows = torch.zeros(0, dtype=torch.long)
        elif work.view.estimated:
            remember_matrix(work, work.view.matrix)
        if CONFIDENT in work.brief.words and work.view.ambiguous:
            super().start(work)
        else:
            work.scratch["sets"] = None

    def evaluation_model(self, work: LocalWork, view: View) -> tuple[nn.Module, View]:
        """Return the mixture of the site's experts if it has them, otherwise the shared model."""
        experts = stored_experts(work.memory)
        return (work.model if experts is None else experts.answering(work.model, view)), view


def rows_to_weigh(work: LocalWork) -> tuple[Tensor, Tensor]:
    """Return the annotated training rows, and those among them that are kept apart to weigh the experts by."""
    target, view = work.site.train.target.cpu(), work.site.view
    rest, apart = split_rows(view.annotated(target), target, derive(work.seed, WEIGHING, work.site.name))
    annotated = annotated_rows(work.site)
    kept = rest if annotated is None else rest[torch.isin(rest, annotated.cpu())]
    device = work.site.train.x.device
    return kept.to(device), apart.to(device)
