"""Losses for candidate sets (docs/methods.md 5.1), their label weights, and the objective of a site with such sets.

Losses are pure functions of `z`, `sets` and, if needed, `weights`, of shape (..., labels) each. `z` are the logits with
the site's prior, minus infinity for unknown labels; `sets` is bool; `weights` are constants for the gradient. They
have one value per sample, (...,), and are computed in log space.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaccord.labels.views import View
from fedaccord.labels.views.likelihoods import below_top
from fedaccord.messages.message import Message
from fedaccord.training.objectives import RowObjective, UpdateFrom
from fedaccord.training.work import Batch, LocalWork

SMALLEST = 1e-7  # lower bound of 1 - p
TERMS = ("s", "pc", "nc")
CONFIDENCES = "confidences"
"""Name of the label weights of the training samples in a site's memory, (n, C); they are never sent."""


def set_likelihood(z: Tensor, sets: Tensor) -> Tensor:
    """Return `-log sum_{j in set} p_j`: CC, and the term L_s of pFedPLL."""
    return _set_likelihood(_log_p(z), sets)


def weighted_cross_entropy(z: Tensor, sets: Tensor, weights: Tensor) -> Tensor:
    """Return `-sum_{j in set} w_j log p_j`: RC, CAVL, uniform candidates, and the term L_pc of pFedPLL."""
    return _weighted_cross_entropy(_log_p(z), sets, weights)


def triplet(
    z: Tensor,
    sets: Tensor,
    confidences: Tensor,
    terms: Collection[str] = TERMS,
    lambdas: Mapping[str, float] | None = None,
) -> Tensor:
    """Return the loss of pFedPLL, `lambda_s L_s + lambda_pc L_pc + lambda_nc L_nc`, or a subset of its terms."""
    log_p, weight = _log_p(z), lambdas or {}
    losses = {
        "s": lambda: _set_likelihood(log_p, sets),
        "pc": lambda: _weighted_cross_entropy(log_p, sets, confidences),
        "nc": lambda: _outside_penalty(log_p, sets),
    }
    return functools.reduce(operator.add, (weight.get(t, 1.0) * losses[t]() for t in TERMS if t in terms))


def leveraged_sigmoid(z: Tensor, sets: Tensor, weights: Tensor, beta: float = 1.0) -> Tensor:
    """Return LW with the sigmoid s: `sum_{j in set} w_j s(-z_j) + beta sum_{j outside} w_j s(z_j)`."""
    return (weights * torch.where(sets, torch.sigmoid(-z), beta * torch.sigmoid(z))).sum(-1)


def leveraged_cross_entropy(z: Tensor, sets: Tensor, weights: Tensor, beta: float = 1.0) -> Tensor:
    """Return LW with cross-entropy: `-log p_j` in the set, `-log(1 - p_j)` outside."""
    log_p = _log_p(z)
    outside = _log_complement(log_p).masked_fill(sets, 0.0)
    return _weighted_cross_entropy(log_p, sets, weights) - beta * (weights * outside).sum(-1)


def bounded_cross_entropy(z: Tensor, sets: Tensor, q: float = 0.7) -> Tensor:
    """Return ABS_GCE, the mean over the candidates of `(1 - p_j^q) / q`, which is bounded by `1 / q`."""
    each = ((1 - (q * _log_p(z)).exp()) / q).masked_fill(~sets, 0.0)
    return each.sum(-1) / sets.sum(-1)


def convex_candidates(z: Tensor, sets: Tensor, psi: str = "logistic", on: str = "logits") -> Tensor:
    """Return CLPL (Cour et al. 2011): `psi(mean score of the candidates) + sum over the others of psi(-score)`.

    `sets` may contain shares between 0 and 1, which weight the mean; `1 - share` then weights the sum.
    """
    scores = torch.softmax(below_top(z), -1) if on == "softmax" else z
    shares = sets.to(z.dtype)
    # `where`, because the score of an unknown label is minus infinity, and 0 * inf is NaN.
    inside = torch.where(shares > 0, shares * scores, torch.zeros_like(scores)).sum(-1) / shares.sum(-1)
    return PSI[psi](inside) + ((1 - shares) * PSI[psi](-scores)).sum(-1)


def uniform_weights(sets: Tensor) -> Tensor:
    """Return `1 / size of the set` on the candidates, zero elsewhere."""
    return sets / sets.sum(-1, keepdim=True).clamp(min=1)


def confidences(z: Tensor, sets: Tensor) -> Tensor:
    """Return `p_j / sum_{m in set} p_m` on the candidates, zero elsewhere: alpha of pFedPLL and RC."""
    return torch.softmax(_within(below_top(z), sets), -1)


def activation_target(z: Tensor, sets: Tensor) -> Tensor:
    """Return CAVL's target: one at the candidate with the largest `z_j |z_j - 1|`, zero elsewhere."""
    # Minus infinity outside the set. The public code has zero, which wins if all candidates have negative values.
    values = _within(z * (z - 1).abs(), sets)
    return F.one_hot(values.argmax(-1), z.shape[-1]).to(z.dtype)


def leverage_start(sets: Tensor, known: Tensor) -> Tensor:
    """Return LW's initial weights: uniform on the set, and uniform on the known labels outside it."""
    return uniform_weights(sets) + uniform_weights(~sets & known)


def leverage_weights(z: Tensor, sets: Tensor) -> Tensor:
    """Return LW's weights: the model's probabilities, normalised on the set and outside it."""
    outside = ~sets & torch.isfinite(z)
    # The softmax of a row of minus infinities is NaN; such a row keeps all labels here and is masked below.
    rest = torch.softmax(_within(below_top(z), outside | ~outside.any(-1, keepdim=True)), -1)
    return confidences(z, sets) + rest.masked_fill(~outside, 0.0)


PSI: Mapping[str, Callable[[Tensor], Tensor]] = {
    "logistic": lambda u: F.softplus(-u),
    "squared-hinge": lambda u: (1 - u).clamp(min=0).square(),
    "exponential": lambda u: torch.exp(-u),
}
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class PartialLoss:
    """A loss of `(z, sets, weights)` with its weights.

    `initial_weights(sets, known)` returns the weights before training, `update_weights(z, sets)` those after a step.
    Without `update_weights` they are constant.
    """

    loss: Loss
    initial_weights: Callable[[Tensor, Tensor], Tensor] = lambda sets, known: uniform_weights(sets)
    update_weights: Callable[[Tensor, Tensor], Tensor] | None = None
    takes_shares: bool = False  # `sets` may contain shares between 0 and 1


def partial_loss(
    name: str,
    *,
    beta: float = 1.0,
    form: str = "sigmoid",
    q: float = 0.7,
    terms: Collection[str] = TERMS,
    lambdas: Mapping[str, float] | None = None,
    psi: str = "logistic",
    on: str = "logits",
) -> PartialLoss:
    """Return a loss by its name in the experiment file."""
    leveraged = leveraged_sigmoid if form == "sigmoid" else leveraged_cross_entropy
    calibrated = confidences if "pc" in terms else None  # the other terms do not use confidences
    return {
        "cc": PartialLoss(lambda z, sets, _: set_likelihood(z, sets)),
        "rc": PartialLoss(weighted_cross_entropy, update_weights=confidences),
        "lw": PartialLoss(lambda z, sets, w: leveraged(z, sets, w, beta), leverage_start, leverage_weights),
        "cavl": PartialLoss(weighted_cross_entropy, update_weights=activation_target),
        "abs-gce": PartialLoss(lambda z, sets, _: bounded_cross_entropy(z, sets, q)),
        "uniform": PartialLoss(weighted_cross_entropy),
        "clpl": PartialLoss(lambda z, sets, _: convex_candidates(z, sets, psi, on), takes_shares=True),
        "calibrated": PartialLoss(lambda z, sets, w: triplet(z, sets, w, terms, lambdas), update_weights=calibrated),
    }[name]


def _log_p(z: Tensor) -> Tensor:
    return torch.log_softmax(below_top(z), -1)


def _set_likelihood(log_p: Tensor, sets: Tensor) -> Tensor:
    # Rounding may make the sum of all probabilities slightly larger than one.
    return -torch.logsumexp(_within(log_p, sets), -1).clamp(max=0.0)


def _weighted_cross_entropy(log_p: Tensor, sets: Tensor, weights: Tensor) -> Tensor:
    # Masked before the product: an unknown label has log p = -inf, and 0 * inf is NaN.
    return -(weights * log_p.masked_fill(~sets, 0.0)).sum(-1)


def _outside_penalty(log_p: Tensor, sets: Tensor) -> Tensor:
    """Return `-log(1 - max_{j outside} p_j)`, zero if no label is outside."""
    return -_log_complement(log_p.masked_fill(sets, float("-inf")).amax(-1))


def _log_complement(log_p: Tensor) -> Tensor:
    """Return log(1 - p) with 1 - p clamped; accurate for p near 0 and near 1."""
    return torch.log(torch.clamp(-torch.expm1(log_p), min=SMALLEST))


def _within(values: Tensor, sets: Tensor) -> Tensor:
    return values.masked_fill(~sets, float("-inf"))


@dataclass(frozen=True)
class PartialLabels(RowObjective):
    """The batch mean of a loss on candidate sets, whose label weights are updated after each step.

    A site without sets (tags, coarse labels with probabilities) minimises the likelihood of its view.
    """

    partial: PartialLoss
    update_from: UpdateFrom = "step"

    def start(self, work: LocalWork) -> None:
        """Read the annotations as sets and load the label weights of the last round."""
        target = work.site.train.target
        view = work.view
        sets = view.candidate_shares(target) if self.partial.takes_shares else view.candidate_sets(target)
        work.scratch["sets"] = sets
        if sets is None:
            return
        stored = work.memory.tensors.get(CONFIDENCES)
        if stored is None:
            stored = self.partial.initial_weights(sets > 0, view.possible_labels().to(sets.device))
        # A copy, because a round that fails must leave the old memory unchanged.
        work.scratch["weights"] = weights = stored.to(sets.device, copy=True)
        if self.partial.update_weights is not None:
            work.memory.tensors[CONFIDENCES] = weights

    def confidences(self, memory: Message) -> Tensor | None:
        """Return the label weights of the training samples in the site's memory, (n, C)."""
        return memory.tensors.get(CONFIDENCES)

    def row_losses(self, view: View, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each row; without sets, the negative log-likelihood under the view."""
        if "sets" not in batch.row_state:
            return view.nll(logits, batch.target)
        return self.partial.loss(view.adjusted(logits), batch.row_state["sets"], batch.row_state["weights"])

    def row_state(self, work: LocalWork) -> dict[str, Tensor]:
        """Return the sets and label weights, (n, C) each; nothing for a site without sets."""
        names = () if work.scratch["sets"] is None else ("sets", "weights")
        return {name: work.scratch[name] for name in names}

    def updates_from(self) -> UpdateFrom:
        """Return the logits that the label weights are updated from."""
        return "nothing" if self.partial.update_weights is None else self.update_from

    def updated_rows(self, view: View, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the new label weights of the batch, (..., B, C)."""
        if self.partial.update_weights is None or "sets" not in batch.row_state:
            return {}
        return {"weights": self.partial.update_weights(view.adjusted(logits), batch.row_state["sets"]).float()}
