"""Objectives: the loss that a site minimises. Several can be summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedaccord.errors import UserError
from fedaccord.evaluation.ranges import Range
from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.training.work import Batch, LocalWork

UpdateFrom = Literal["nothing", "step", "forward"]
"""The logits that row state is updated from: none, the model's after the step, or those of the loss."""
Reduction = Literal["mean", "sum"]
_LOGITS = "logits"  # in the scratch: those of the last batch, detached


class Objective:
    """One term of a site's loss, with hooks into the training loop; a subclass overrides the methods it needs."""

    @property
    def reads_model(self) -> bool:
        """Whether `finish` reads the trained model, which then has to be loaded."""
        return False

    def start(self, work: LocalWork) -> None:
        """Prepare the round before its first step, with the received model loaded."""

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the loss of a batch, a scalar."""
        raise TypeError(f"{type(self).__name__} does not implement loss")

    def after_step(self, work: LocalWork, batch: Batch) -> None:
        """Update state after a step, e.g. label confidences."""

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Add the method's tensors and numbers to the reply at the end of a round."""

    # Hooks outside the training loop

    @property
    def uses_labels(self) -> bool:
        """Whether the loss reads annotations; if not, sites also train on rows without annotation."""
        return True

    @property
    def figures(self) -> Mapping[str, Range]:
        """Further metrics that a site reports, from its memory under `figures/`, with their ranges."""
        return {}

    def site_view(self, view: View, brief: Message, memory: Message) -> View:
        """Return the view that a site trains with, e.g. with an estimated correspondence matrix."""
        return view

    def confidences(self, memory: Message) -> Tensor | None:
        """Return the label confidences of the training samples in a site's memory, (n, C), if any."""
        return None

    def prior_rows(self, work: LocalWork) -> Tensor | None:
        """Return the training rows that the site's label frequencies are counted on; None: all."""
        return None

    def evaluation_model(self, work: LocalWork, view: View) -> tuple[nn.Module, View] | None:
        """Return the model and the view for a site's evaluation; None if there is nothing to evaluate yet."""
        return work.model, view


class WrappedObjective(Objective):
    """An objective around an inner one, which answers everything outside the training loop."""

    @property
    def wrapped(self) -> Objective:
        """The inner objective."""
        raise TypeError(f"{type(self).__name__} does not implement wrapped")

    @property
    def uses_labels(self) -> bool:
        """Delegates to the inner objective."""
        return self.wrapped.uses_labels

    @property
    def figures(self) -> Mapping[str, Range]:
        """Delegates to the inner objective."""
        return self.wrapped.figures

    def site_view(self, view: View, brief: Message, memory: Message) -> View:
        """Delegates to the inner objective."""
        return self.wrapped.site_view(view, brief, memory)

    def confidences(self, memory: Message) -> Tensor | None:
        """Delegates to the inner objective."""
        return self.wrapped.confidences(memory)

    def prior_rows(self, work: LocalWork) -> Tensor | None:
        """Delegates to the inner objective."""
        return self.wrapped.prior_rows(work)

    def evaluation_model(self, work: LocalWork, view: View) -> tuple[nn.Module, View] | None:
        """Delegates to the inner objective."""
        return self.wrapped.evaluation_model(work, view)


class RowObjective(Objective):
    """The mean (or sum) over a batch of a loss per row. Sites with such an objective can train as one program.

    There, all tensors and the view have a leading axis of sites, so `row_losses` and `updated_rows` may only address
    the last axes.
    """

    augments: ClassVar[bool] = False  # `augment` changes batches
    reduction: ClassVar[Reduction] = "mean"  # over the rows of a batch

    def is_batchable(self) -> bool:
        """Return whether sites may train as one program with these settings."""
        return True

    def augment(self, work: LocalWork, batch: Batch) -> Batch:
        """Return the rows that a step of one site is computed on; randomness comes from `work.random`."""
        return batch

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each row: logits (..., B, C) -> (..., B)."""
        raise TypeError(f"{type(self).__name__} does not implement row_losses")

    def row_state(self, work: LocalWork) -> dict[str, Tensor]:
        """Return the objective's tensors of the training rows, (n, ...) each; called after `start`."""
        return {}

    def updates_from(self) -> UpdateFrom:
        """Return the logits that `updated_rows` is called with after a step."""
        return "nothing"

    def updated_rows(self, view: View, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the new row state of a batch after a step, without tensors that do not change."""
        return {}

    # One site

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the mean or sum of `row_losses` over the augmented batch."""
        batch = self.augment(work, batch.with_state(self.checked_state(work)))
        logits = work.model(batch.x)
        work.scratch[_LOGITS] = logits.detach()
        if type(self).row_losses is ViewLikelihood.row_losses and self.reduction == "mean":
            return work.view.mean_nll(logits, batch.target)  # faster
        losses = self.checked_losses(work.view, logits, batch)
        return losses.mean() if self.reduction == "mean" else losses.sum()

    def checked_state(self, work: LocalWork) -> dict[str, Tensor]:
        """Return `row_state`; raise UserError for a tensor without one entry per training row."""
        state, rows = self.row_state(work), len(work.site.train)
        for name, tensor in state.items():
            if tensor.shape[:1] != (rows,):
                problem = f"'{name}' has shape {tuple(tensor.shape)}, but the site has {rows} training rows"
                raise UserError(f"{type(self).__name__}.row_state: {problem}")
        return state

    def checked_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return `row_losses`; raise UserError for a wrong shape."""
        losses = self.row_losses(view, logits, batch)
        if losses.shape != logits.shape[:-1]:
            expected, found = tuple(logits.shape[:-1]), tuple(losses.shape)
            raise UserError(
                f"{type(self).__name__}.row_losses must return one loss per row, shape {expected}, not {found}"
            )
        return losses

    @torch.no_grad()
    def after_step(self, work: LocalWork, batch: Batch) -> None:
        """Update the row state of the batch in place."""
        source = self.updates_from()
        state = {} if source == "nothing" else self.row_state(work)
        if not state:
            return
        logits = work.scratch[_LOGITS]
        if source == "step":
            # In evaluation mode, so that this pass does not update batch-norm statistics or draw dropout.
            work.model.eval()
            logits = work.model(batch.x)
            work.model.train()
        for name, values in self.updated_rows(work.view, logits, batch.with_state(state)).items():
            state[name].index_copy_(0, batch.rows, values)

    # Several sites as one program

    def stack_state(self, works: Sequence[LocalWork]) -> Any:
        """Return the stacked state that `batch_loss` needs, after `start`; with None, it is not called."""
        return None

    def stacked_size(self, work: LocalWork) -> int:
        """Return the number of values that a site adds to `stack_state`, which limits the size of a cohort."""
        return 0

    def batch_loss(self, state: Any, view: View, logits: Tensor, batch: Batch, mask: Tensor | None) -> Tensor:
        """Return the term of the loss that is not a mean over rows: logits (sites, B, C) -> (sites,).

        `mask`, bool (sites, B), is false for padding rows; None: no padding. Sites that have finished are missing at
        the end, so there may be fewer sites than in `state`.
        """
        raise TypeError(f"{type(self).__name__} does not implement batch_loss")


class ViewLikelihood(RowObjective):
    """The mean negative log-likelihood of the site's annotations under its view."""

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return the negative log-likelihood of each row."""
        return view.nll(logits, batch.target)


class SquaredError(Objective):
    """Half the squared distance between scores and one-hot label, averaged over classes and samples.

    With a linear model this is least-squares classification. It needs exact labels.
    """

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        scores = work.model(batch.x)
        one_hot = torch.nn.functional.one_hot(batch.target, scores.shape[-1]).to(scores.dtype)
        return 0.5 * (scores - one_hot).square().mean()


@dataclass(frozen=True)
class Proximal(Objective):
    """FedProx: `(mu / 2) * ||theta - theta_received||^2` over the trainable parameters."""

    mu: float

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the term, which is independent of the batch."""
        return proximal_term(work.parameters, work.received, self.mu)

    def per_site(self, parameters: list[Tensor], received: list[Tensor]) -> Tensor:
        """Return the term of each site from stacked parameters: (sites, ...) -> (sites,)."""
        distances = torch._foreach_sub(parameters, received)
        return 0.5 * self.mu * torch.stack([d.square().flatten(1).sum(1) for d in distances]).sum(0)


@dataclass(frozen=True)
class Sum(WrappedObjective):
    """The sum of several terms: first the site's task, then penalties."""

    terms: tuple[Objective, ...]

    @property
    def wrapped(self) -> Objective:
        """The first term."""
        return self.terms[0]

    @property
    def reads_model(self) -> bool:
        """Whether any term reads the trained model."""
        return any(term.reads_model for term in self.terms)

    def start(self, work: LocalWork) -> None:
        """Start every term."""
        for term in self.terms:
            term.start(work)

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the sum of the losses."""
        total = self.terms[0].loss(work, batch)
        for term in self.terms[1:]:
            total = total + term.loss(work, batch)
        return total

    def after_step(self, work: LocalWork, batch: Batch) -> None:
        """Call `after_step` of every term."""
        for term in self.terms:
            term.after_step(work, batch)

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Call `finish` of every term."""
        for term in self.terms:
            term.finish(work, reply)


def proximal_term(parameters: list[Tensor], received: list[Tensor], mu: float) -> Tensor:
    """Return `(mu / 2) * sum of squared distances`."""
    distances = torch._foreach_sub(parameters, received)
    return 0.5 * mu * torch.stack([d.square().sum() for d in distances]).sum()
