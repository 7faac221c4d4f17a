"""What a site minimises: the `objective` slot. Parts that can be added up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.messages.message import Message
from fedaccord.training.work import Batch, LocalWork


class Objective:
    """One term of a site's loss, with hooks around the local loop; a subclass overrides what it needs."""

    def start(self, work: LocalWork) -> None:
        """Get ready before the first step, with the model as it was received."""

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the loss of one batch."""
        raise TypeError(f"{type(self).__name__} has no loss")

    def stepped(self, work: LocalWork, batch: Batch) -> None:
        """Follow up a step, e.g. refresh label confidences."""

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Add to the reply what the method sends beside the model."""


class ViewLikelihood(Objective):
    """The mean negative log-likelihood of the site's own annotations under its view."""

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        return work.view.mean_nll(work.model(batch.x), batch.target)


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


@dataclass(frozen=True)
class Sum(Objective):
    """Several terms added up."""

    terms: tuple[Objective, ...]

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

    def stepped(self, work: LocalWork, batch: Batch) -> None:
        """Tell every term."""
        for term in self.terms:
            term.stepped(work, batch)

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Let every term add to the reply."""
        for term in self.terms:
            term.finish(work, reply)


def proximal_term(parameters: list[Tensor], received: list[Tensor], mu: float) -> Tensor:
    """Return `(mu / 2) * sum of squared distances`."""
    distances = torch._foreach_sub(parameters, received)
    return 0.5 * mu * torch.stack([d.square().sum() for d in distances]).sum()
