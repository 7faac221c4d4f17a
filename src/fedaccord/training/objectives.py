"""What a site minimises: the `objective` slot. Parts that can be added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.training.work import Batch, LocalWork

UpdateFrom = Literal["nothing", "step", "forward"]
Reduction = Literal["mean", "sum"]


class Objective:
    """One term of a site's loss, with hooks around the local loop; a subclass overrides what it needs."""

    @property
    def reads_model(self) -> bool:
        """Whether `finish` looks at the trained model, which then has to be loaded."""
        return False

    def start(self, work: LocalWork) -> None:
        """Get ready before the first step, with the model as it was received."""

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the loss of one batch."""
        raise TypeError(f"{type(self).__name__} has no loss")

    def after_step(self, work: LocalWork, batch: Batch) -> None:
        """Follow up a step, e.g. refresh label confidences."""

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Add to the reply what the method sends beside the model."""

    # What the rest of a site's work asks of the objective

    @property
    def uses_labels(self) -> bool:
        """Whether the loss reads annotations; otherwise a site trains on all its rows, annotated or not."""
        return True

    def site_view(self, view: View, brief: Message, memory: Message) -> View:
        """Return the view that a site works through, e.g. with a correspondence that was estimated."""
        return view

    def confidences(self, memory: Message) -> Tensor | None:
        """Return the label confidences that a site keeps of its training samples, (n, C); None: it keeps none."""
        return None

    def evaluation_model(self, work: LocalWork, view: View) -> tuple[nn.Module, View] | None:
        """Return the model and the view that a site is evaluated with; None if it has nothing to evaluate yet."""
        return work.model, view


class WrappedObjective(Objective):
    """An objective around another one, which answers all questions that are not about the loss."""

    @property
    def wrapped(self) -> Objective:
        """The objective inside."""
        raise TypeError(f"{type(self).__name__} does not say which objective it wraps")

    @property
    def uses_labels(self) -> bool:
        """Delegates to the inner objective."""
        return self.wrapped.uses_labels

    def site_view(self, view: View, brief: Message, memory: Message) -> View:
        """Delegates to the inner objective."""
        return self.wrapped.site_view(view, brief, memory)

    def confidences(self, memory: Message) -> Tensor | None:
        """Delegates to the inner objective."""
        return self.wrapped.confidences(memory)

    def evaluation_model(self, work: LocalWork, view: View) -> tuple[nn.Module, View] | None:
        """Delegates to the inner objective."""
        return self.wrapped.evaluation_model(work, view)


class RowObjective(Objective):
    """The batch mean of a loss of each row's logits; in this form many sites can train as one program.

    Then every tensor has a first axis of sites, the view's too: `row_losses` and `renewed` look at the last axes only.
    """

    augments: ClassVar[bool] = False  # steps are not computed on a batch as it is, but on what `drawn` makes of it
    reduction: ClassVar[Reduction] = "mean"

    def is_batchable(self) -> bool:
        """Say whether sites may train as one program, with these settings."""
        return True

    def augment(self, work: LocalWork, batch: Batch) -> Batch:
        """Return the rows that one site's step is computed on, changed by draws from `work.random`."""
        return batch

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each row: logits (..., B, C) -> (..., B)."""
        raise TypeError(f"{type(self).__name__} has no loss")

    def row_state(self, work: LocalWork) -> dict[str, Tensor]:
        """Return tensors of the training rows, (n, ...), after `start`; `batch.row_state` holds those of a batch."""
        return {}

    def stack_state(self, works: Sequence[LocalWork]) -> Any:
        """Return what `batch_loss` needs of sites that have started to train as one program; None: it is not called."""
        return None

    def stacked_size(self, work: LocalWork) -> int:
        """Return how many values a site that has started adds to what `joined` stacks: few sites may have many."""
        return 0

    def batch_loss(self, joined: Any, view: View, logits: Tensor, batch: Batch, own: Tensor | None) -> Tensor:
        """Return what each site's loss has beside those of its rows: logits (sites, B, C) -> (sites,).

        `own`, bool (sites, B), tells a site's rows from those that fill up its batch; None: all are its own. The sites
        are the first ones of those joined: as many as still train.
        """
        raise TypeError(f"{type(self).__name__} has no loss of a whole batch")

    def updates_from(self) -> UpdateFrom:
        """Say by which logits `renewed` is to be called: the loss's own, the model's after the step, or not at all."""
        return "nothing"

    def updated_rows(self, view: View, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return what is kept of a batch's rows after a step, where that changes."""
        return {}


class ViewLikelihood(RowObjective):
    """The mean negative log-likelihood of the site's own annotations under its view."""

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        return work.view.mean_nll(work.model(batch.x), batch.target)

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return each row's."""
        return view.nll(logits, batch.target)


class SquaredError(Objective):
    """Half the squared distance of the scores from the one-hot label, as a mean over classes and samples.

    With a linear model this is least squares, "linear regression as a classifier". For exact labels.
    """

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        scores = work.model(batch.x)
        wanted = torch.nn.functional.one_hot(batch.target, scores.shape[-1]).to(scores.dtype)
        return 0.5 * (scores - wanted).square().mean()


@dataclass(frozen=True)
class Proximal(Objective):
    """FedProx: `(mu / 2) * ||theta - theta_received||^2` over the parameters that train."""

    mu: float

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the term; it is the same for every batch."""
        return proximal_term(work.parameters, work.received, self.mu)

    def of_each(self, parameters: list[Tensor], received: list[Tensor]) -> Tensor:
        """Return the term of each site from stacked parameters, (sites, ...) -> (sites,)."""
        distances = torch._foreach_sub(parameters, received)
        return 0.5 * self.mu * torch.stack([d.square().flatten(1).sum(1) for d in distances]).sum(0)


@dataclass(frozen=True)
class Sum(WrappedObjective):
    """The sum of several terms; the first one is the site's task, the others are penalties on it."""

    terms: tuple[Objective, ...]

    @property
    def wrapped(self) -> Objective:
        """The first term."""
        return self.terms[0]

    @property
    def reads_model(self) -> bool:
        """Whether any term does."""
        return any(term.reads_model for term in self.terms)

    def start(self, work: LocalWork) -> None:
        """Start every term."""
        for term in self.terms:
            term.start(work)

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Add the terms' losses."""
        total = self.terms[0].loss(work, batch)
        for term in self.terms[1:]:
            total = total + term.loss(work, batch)
        return total

    def after_step(self, work: LocalWork, batch: Batch) -> None:
        """Tell every term."""
        for term in self.terms:
            term.after_step(work, batch)

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Let every term add to the reply."""
        for term in self.terms:
            term.finish(work, reply)


def proximal_term(parameters: list[Tensor], received: list[Tensor], mu: float) -> Tensor:
    """Return `(mu / 2) * sum of squared distances`."""
    distances = torch._foreach_sub(parameters, received)
    return 0.5 * mu * torch.stack([d.square().sum() for d in distances]).sum()
