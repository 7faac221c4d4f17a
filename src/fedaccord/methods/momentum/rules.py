"""Equations of server momentum and of pFedMo's personalised models (docs/methods.md 8.2, 8.3 and 8.9)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Rule = Literal["pull", "printed", "reversed"]


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
