"""Momentum of the server on the sites' mean: FedMom, SlowMo, FastSlowMo, DOMO, FedADC (docs/methods.md 8.2 to 8.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.messages.checks import all_finite
from fedaccord.methods.momentum.settings import Rule
from fedaccord.training.settings import TrainingSettings

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

SERVER_MOMENTUM = "server momentum"  # in the method's state


def combined(server: Server) -> Replies | None:
    """Return the round's replies if they were aggregated to a new model, otherwise None."""
    replies = server.replies
    return None if replies is None or server.state.model is replies.previous else replies


@dataclass(frozen=True)
class ServerNesterov:
    """A server step: Nesterov's rule on the sites' mean (FedMom, FastSlowMo)."""

    rate: float
    beta: float

    def __call__(self, server: Server) -> None:
        """Step from the mean; the initial momentum is the model that was sent."""
        replies = combined(server)
        if replies is not None:
            last = server.state.method.tensors.get(SERVER_MOMENTUM, replies.previous)
            _step(server, *nesterov(replies.previous, server.state.model, last, self.rate, self.beta))


@dataclass(frozen=True)
class ServerHeavyBall:
    """A server step: heavy-ball momentum on the sites' mean (SlowMo, DOMO, FedADC)."""

    settings: TrainingSettings
    alpha: float
    beta: float

    def __call__(self, server: Server) -> None:
        """Step from the model that was sent, along the momentum."""
        replies = combined(server)
        if replies is not None:
            lr = self.settings.lr_at(server.state.round + 1)
            last = server_momentum(server)
            _step(server, *heavy_ball(replies.previous, server.state.model, last, lr, self.alpha, self.beta))


def server_momentum(server: Server) -> Tensor:
    """Return the server's heavy-ball momentum, initially zero."""
    momentum = server.state.method.tensors.get(SERVER_MOMENTUM)
    return torch.zeros(server.layout.size) if momentum is None else momentum


def _step(server: Server, model: Tensor, momentum: Tensor) -> None:
    """Adopt a model and its momentum if they are finite; batch-norm statistics remain the sites' mean."""
    trainable = server.layout.trainable_mask()
    if all_finite(model[trainable]) and all_finite(momentum[trainable]):
        server.state.model = torch.where(trainable, model, server.state.model)
        server.state.method.tensors[SERVER_MOMENTUM] = momentum.where(trainable, torch.zeros(()))
    else:
        server.drop("", "refine", "", "the server's momentum led to a model that is not finite; the mean is kept")


def nesterov(sent: Tensor, mean: Tensor, last: Tensor, rate: float, beta: float) -> tuple[Tensor, Tensor]:
    """Return the next model and momentum of FedMom: `v+ = w + rate (mean - w)`, `w+ = v+ + beta (v+ - v)`."""
    momentum = torch.lerp(sent, mean, rate)
    return momentum + beta * (momentum - last), momentum


def heavy_ball(sent: Tensor, mean: Tensor, last: Tensor, lr: float, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """Return the next model and momentum of SlowMo: `u+ = beta u + (w - mean) / lr`, `w+ = w - alpha lr u+`."""
    momentum = beta * last + (sent - mean) / lr
    return sent - alpha * lr * momentum, momentum


def personalised(
    rule: Rule, share: float, mean: Tensor, mean_momentum: Tensor, model: Tensor, momentum: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a site's model and momentum: the sites' means, moved by `share` towards the representation's.

    The printed rule, `w_i = (1 - s) mean + s w_r + (mean_m - m_i)`, is computed in its simplified form: the pull on the
    model cancels, and without momentum (`w = m` everywhere) the result is exactly the mean.
    """
    site_momentum = torch.lerp(mean_momentum, momentum, share)
    if rule == "printed":
        return mean + share * ((model - momentum) - (mean - mean_momentum)), site_momentum
    pulled = torch.lerp(mean, model, share)
    return (pulled + (site_momentum - mean_momentum) if rule == "reversed" else pulled), site_momentum


def agreement_losses(representation: Tensor, logits: Tensor) -> Tensor:
    """Return each site's mean cross-entropy against the representation's predictions: (sites,).

    `representation` is (samples, classes), `logits` (sites, samples, classes).
    """
    targets = representation.double().softmax(-1)
    return -(targets * logits.double().log_softmax(-1)).sum(-1).mean(-1)


def score(loss: float, worst: float) -> float:
    """Return a site's agreement `1 - loss / worst`, in 0..1, where `worst` is its largest loss so far."""
    return 1.0 - loss / worst if worst > 0 else 0.0
