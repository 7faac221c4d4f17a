"""Scores of how strongly a site pushes a group towards a label: one per site and round, NaN if it is undefined.

Every score except the published one is larger for more suspicious sites. It is infinite if a site's values overflow,
which honest training never causes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.adversary.inversion import Dummies
from fedaccord.adversary.many_models import Layer, Models
from fedaccord.data.sensitive import Target

TINY = 1e-12


def dummy_fairness(models: Models, dummies: Dummies, target: Target) -> Tensor:
    """Return the published score: EOD of each site's model on its reconstructed data."""
    actual = dummies.logits.argmax(-1) == target.label
    member = dummies.x[..., _inputs(target)].argmax(-1) == target.group
    logits = models.logits(dummies.x)
    predicted = logits.argmax(-1) == target.label
    outside, inside = (_share(predicted, actual & cell) for cell in (~member, member))
    return (outside - inside).masked_fill(_overflowed(*dummies, logits), math.inf)


def label_gap(dummies: Dummies, target: Target) -> Tensor:
    """Return the gap of reconstructed labels, `P(label | group) - P(label | others)`, by soft membership."""
    share = torch.softmax(dummies.logits.double(), -1)[..., target.label]
    block = dummies.x[..., _inputs(target)].double()
    inside = block[..., target.group] / block.sum(-1).clamp(min=TINY)
    means = [(share * w).sum(-1) / w.sum(-1).clamp(min=TINY) for w in (inside, 1 - inside)]
    empty = (inside.sum(-1) < TINY) | ((1 - inside).sum(-1) < TINY)
    return (means[0] - means[1]).masked_fill(empty, math.nan).masked_fill(_overflowed(*dummies), math.inf)


def group_update(updates: Models, previous: Models, target: Target) -> Tensor:
    """Return the update of the group's input weights along the label's direction, relative to all groups' update.

    The direction is taken from the previous model: the label's head row minus the mean of the others, propagated
    through the layers between. Without a hidden layer it is the label itself.
    """
    assert updates.layers is not None
    assert previous.layers is not None
    towards = label_direction(previous.layers, target.label)
    moved = updates.layers[0].weight[..., _inputs(target)].double()  # (sites, hidden, groups)
    group, others = moved[..., target.group], _without(moved, target.group)
    along = (group - others.mean(-1)) @ towards
    length = moved.flatten(1).norm(dim=1)
    found = (along / length.clamp(min=TINY)).masked_fill(length < TINY, math.nan)
    return found.masked_fill(_overflowed(moved), math.inf)


@dataclass(frozen=True)
class Push:
    """Updates of the first layer, relative to the label's direction: one value per site (float64)."""

    group: Tensor  # update of the group's input weights along the direction
    biases: Tensor  # update of the biases, which all rows contribute to, along the direction
    shared: Tensor  # inner product of the two updates orthogonal to the direction
    size: Tensor  # squared norm of the biases' update orthogonal to the direction

    @property
    def overflowed(self) -> Tensor:
        """The sites whose updates overflow: bool (sites,)."""
        return _overflowed(torch.stack([self.group, self.biases, self.shared, self.size], 1))

    def cpu(self) -> Push:
        """Return the values on the CPU."""
        return Push(self.group.cpu(), self.biases.cpu(), self.shared.cpu(), self.size.cpu())


def group_push(updates: Models, previous: Models, target: Target) -> Push:
    """Return the inputs of `adjusted_group_update`: updates of the first layer by the group's rows and by all rows.

    Rows of a group update its input weights, all rows update the biases.
    """
    assert updates.layers is not None
    assert updates.layers[0].bias is not None
    assert previous.layers is not None
    towards = label_direction(previous.layers, target.label)
    towards = towards / towards.norm().clamp(min=TINY)
    moves = [updates.layers[0].weight[..., _inputs(target)][..., target.group], updates.layers[0].bias]
    along = [move.double() @ towards for move in moves]
    group, biases = (move.double() - part[:, None] * towards for move, part in zip(moves, along, strict=True))
    return Push(along[0], along[1], (group * biases).sum(1), biases.square().sum(1))


def adjusted_group_update(push: Push, shared: Tensor, size: Tensor) -> Tensor:
    """Return the group's push towards the label beyond its share of the push on all rows.

    A site with many samples of a label pushes all its rows towards it, and large groups the most. The group's share of
    all rows is estimated from the orthogonal directions, which attacks do not use: the median of `shared / size`, each
    averaged over the rounds. A site whose biases never changed (NaN) uses the median size.
    """
    share = (shared / size).nanmedian()
    size = torch.where(size.isnan(), size.nanmedian(), size)
    return (push.group - share * push.biases) / size.sqrt()


def label_direction(layers: list[Layer], label: int) -> Tensor:
    """Return the gradient, w.r.t. the first layer, of a label's logit minus the mean of the others: (hidden,).

    Activation functions are ignored.
    """
    outputs = layers[-1].weight.shape[-2]
    towards = torch.full((outputs,), -1 / max(1, outputs - 1), dtype=torch.float64, device=layers[-1].weight.device)
    towards[label] = 1.0
    for layer in reversed(layers[1:]):
        towards = layer.weight.double().mT @ towards
    return towards


def counterfactual_gap(models: Models, probe: Tensor, target: Target) -> Tensor:
    """Return the mean log-odds of the label if rows belong to the target group, minus those for other groups.

    `probe` (rows, inputs) holds synthetic features. Log-odds are used because an attack that removes a label from all
    rows hides the gap in probabilities.
    """
    odds = []
    for group in range(len(target.groups)):
        rows = probe.clone()
        rows[:, _inputs(target)] = 0.0
        rows[:, _inputs(target).start + group] = 1.0
        z = models.logits(rows).double()
        odds.append((z[..., target.label] - torch.logsumexp(_without(z, target.label), -1)).mean(-1))
    every = torch.stack(odds, -1)
    found = every[:, target.group] - _without(every, target.group).mean(-1)
    return found.masked_fill(_overflowed(every), math.inf)


def logits_overflow(models: Models, rows: Tensor) -> Tensor:
    """Return a mask of the models whose logits for rows (n, inputs) are not finite: bool (sites,)."""
    return _overflowed(models.logits(rows))


def _share(hit: Tensor, among: Tensor) -> Tensor:
    """Return the share of hits among the selected rows of each site, float64 (sites,); NaN without such rows."""
    return (hit & among).sum(-1).double() / among.sum(-1)


def _overflowed(*values: Tensor) -> Tensor:
    """Return a mask of the sites with a value that is not finite: bool (sites,)."""
    return torch.stack([~torch.isfinite(part).flatten(1).all(1) for part in values]).any(0)


def _without(values: Tensor, column: int) -> Tensor:
    return torch.cat([values[..., :column], values[..., column + 1 :]], -1)


def _inputs(target: Target) -> slice:
    assert target.inputs is not None
    return target.inputs
