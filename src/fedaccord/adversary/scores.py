"""How strongly a site pushes a group towards a label: one number for each site of a round, NaN where it has none.

Every score but the published one is larger the more hostile a site looks. It is infinite where a site's values are too
large to compute with: no training makes such a model.
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
    """Return the published score: EOD of each site's model on what was reconstructed of its data."""
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
    """Return how far the group's input weights moved along the direction of the label, over how far all groups' did.

    The direction is that of the previous model: the label's head row less the mean of the others, through the layers
    between. Without a hidden layer it is the label itself.
    """
    assert updates.layers is not None
    assert previous.layers is not None
    towards = label_direction(previous.layers, target.label)
    moved = updates.layers[0].weight[..., _inputs(target)].double()  # (sites, hidden, groups)
    own, rest = moved[..., target.group], _without(moved, target.group)
    along = (own - rest.mean(-1)) @ towards
    length = moved.flatten(1).norm(dim=1)
    found = (along / length.clamp(min=TINY)).masked_fill(length < TINY, math.nan)
    return found.masked_fill(_overflowed(moved), math.inf)


@dataclass(frozen=True)
class Push:
    """How sites' updates moved the first layer, one value for each site (float64)."""

    group: Tensor  # the group's input weights, along the direction of the label
    biases: Tensor  # the biases, which every row moves, along it
    shared: Tensor  # inner product of the two moves off that direction
    size: Tensor  # squared length of the biases' move off it

    @property
    def overflowed(self) -> Tensor:
        """Whose moves are too large to compute with: bool (sites,)."""
        return _overflowed(torch.stack([self.group, self.biases, self.shared, self.size], 1))

    def cpu(self) -> Push:
        """Return the same values in the computer's own memory."""
        return Push(self.group.cpu(), self.biases.cpu(), self.shared.cpu(), self.size.cpu())


def group_push(updates: Models, previous: Models, target: Target) -> Push:
    """Return what `freed_group_update` looks at: how rows of the group, and how all rows, moved the first layer.

    Input weights of a group move by the rows that list it, biases by all rows.
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


def freed_group_update(push: Push, shared: Tensor, size: Tensor) -> Tensor:
    """Return how far the group was pushed towards the label beyond its share of what moved everybody there.

    A site with many samples of a label pushes all its rows towards it, and a large group the most. The group's share
    of all rows is read off the other directions, where no attack pushes: `shared / size` of the middle site, each
    averaged over the rounds. A site whose biases never moved (NaN) is measured by the middle site's size.
    """
    share = (shared / size).nanmedian()
    size = torch.where(size.isnan(), size.nanmedian(), size)
    return (push.group - share * push.biases) / size.sqrt()


def label_direction(layers: list[Layer], label: int) -> Tensor:
    """Return what a step of the first layer's outputs does for a label against the mean of the others: (hidden,)."""
    outputs = layers[-1].weight.shape[-2]
    towards = torch.full((outputs,), -1 / max(1, outputs - 1), dtype=torch.float64, device=layers[-1].weight.device)
    towards[label] = 1.0
    for layer in reversed(layers[1:]):
        towards = layer.weight.double().mT @ towards
    return towards


def counterfactual_gap(models: Models, probe: Tensor, target: Target) -> Tensor:
    """Return the mean change of the label's log-odds when a row's group becomes the target, against other groups.

    `probe` is (rows, inputs) of made-up features; log-odds, because an attack that takes a label from everybody hides
    the gap in probabilities.
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


def answers_overflow(models: Models, rows: Tensor) -> Tensor:
    """Say which models are too large to answer rows (n, inputs) with numbers: bool (sites,)."""
    return _overflowed(models.logits(rows))


def _share(hit: Tensor, among: Tensor) -> Tensor:
    """Return each site's share of hits among some of its rows, float64 (sites,); NaN where there is none."""
    return (hit & among).sum(-1).double() / among.sum(-1)


def _overflowed(*values: Tensor) -> Tensor:
    """Say for which sites some value is no finite number: bool (sites,)."""
    return torch.stack([~torch.isfinite(part).flatten(1).all(1) for part in values]).any(0)


def _without(values: Tensor, column: int) -> Tensor:
    return torch.cat([values[..., :column], values[..., column + 1 :]], -1)


def _inputs(target: Target) -> slice:
    assert target.inputs is not None
    return target.inputs
