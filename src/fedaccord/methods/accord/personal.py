"""The experts of a site and their weights, fitted at the site after the last round (docs/methods.md 3.1).

The weights come from experts that never saw the rows kept apart: the shared model of the branch `weighing`, an own
head on it, and a model trained alone on the other rows. They are then given to the final shared model, an own head on
it, and the same model trained alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from fedaccord.federation.branch import BRANCH, without_branch
from fedaccord.federation.experts import NAMES, Experts, equal_weights
from fedaccord.federation.recipe import plain_solver
from fedaccord.federation.site_views import annotated_rows
from fedaccord.labels.views import View
from fedaccord.messages.checks import all_finite
from fedaccord.messages.message import Message
from fedaccord.methods.accord.objective import WEIGHING, AccordLoss, rows_to_weigh
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.models.layout import load_tensors, named_tensors
from fedaccord.models.mixture import mix_logits
from fedaccord.models.network import Network, predict_features, predict_logits, with_own_head
from fedaccord.seeds import derive
from fedaccord.training.local import train_locally
from fedaccord.training.regularisation import Regularised
from fedaccord.training.work import LocalWork

PERSONALISE = "personalise"  # the name of the task
PULL = 0.03  # weight of half the squared distance between an own head and the shared one
PRIOR_ROWS = 20  # equal weights count as much as these rows kept apart
STEPS_OF_GRID = 5  # the weights that are compared are multiples of 1 / 5
CHEAP_SHARE = 0.5  # of the run's steps, for the model trained alone if `personal = "cheap"`
REGULARISED, PLAIN = "regularised", "plain"  # the ways to train alone; the first where they cannot be compared
WAYS = (REGULARISED, PLAIN)
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class FitExperts:
    """The site's task after the last round: fit the experts, choose their weights, and store both in the memory.

    The brief has the final shared model, the number of its `rounds` and, if weights are to be chosen, the model of the
    branch.
    """

    settings: AccordSettings

    def __call__(self, work: LocalWork) -> Message:
        """Store the experts; the reply says nothing about them."""
        annotated = annotated_rows(work.site)
        if not (len(work.site.train) if annotated is None else len(annotated)):
            return Message()
        shared, branch = _copies(work.model), work.brief.select(WEIGHING)
        head = _own_head(work, shared, annotated)
        rows, apart = rows_to_weigh(work)
        if branch and len(apart):
            experts = self._weighed(work, {**shared, **branch}, head, rows, apart)
        else:
            alone = self._alone(work, REGULARISED, annotated, 1.0 if branch else CHEAP_SHARE)
            experts = Experts(equal_weights(), head, alone, REGULARISED)
        load_tensors(work.model, shared)
        if all(map(all_finite, (*head.values(), *experts.alone.values()))):
            experts.store(work.memory)
        work.memory = without_branch(work.memory, WEIGHING)
        return Message()

    def _weighed(self, work: LocalWork, branch: Tensors, head: Tensors, rows: Tensor, apart: Tensor) -> Experts:
        """Return the experts with weights, and with the better way to train alone, chosen by the rows apart.

        The model trained alone is not trained again on all rows, because that would cost as much as the run itself.
        """
        data = work.site.train
        x, target = data.x[apart], data.target[apart]
        ways = {way: self._alone(work, way, rows) for way in WAYS}
        alone = {way: _logits(work, tensors, x) for way, tensors in ways.items()}
        way = min(WAYS, key=lambda way: float(work.view.nll(alone[way], target).mean()))
        own = _own_head(work, branch, rows)  # leaves the branch's model loaded
        logits = [predict_logits(work.model, x), predict_logits(with_own_head(work.model, own, {}), x), alone[way]]
        weights = expert_weights(work.view, torch.stack(logits), target)
        return Experts(weights, head, ways[way], way, len(apart))

    def _alone(self, work: LocalWork, way: str, rows: Tensor | None, share: float = 1.0) -> Tensors:
        """Return a network trained on some rows from the initial one, with a share of the steps of the run."""
        load_tensors(work.model, work.initial)
        settings = self.settings
        unit = "steps" if settings.epochs is None else "epochs"
        number = max(1, round(share * work.brief.numbers["rounds"] * (getattr(settings, unit) or 1)))
        seed = derive(work.seed, "alone", way)
        inner = replace(
            work,
            memory=Message(),
            brief=Message(words={word: text for word, text in work.brief.words.items() if word != BRANCH}),
            rows=rows,
            received=[p.detach().clone() for p in work.parameters],
            seed=seed,
            lr=settings.lr,
            random=torch.Generator().manual_seed(derive(seed, work.site.name)),
            scratch={},
        )
        loss = AccordLoss()
        objective = Regularised(loss) if way == REGULARISED else loss
        train_locally(inner, objective, plain_solver(settings), settings.model_copy(update={unit: number}))
        return _copies(work.model)


def expert_weights(view: View, logits: Tensor, target: Tensor) -> Tensor:
    """Return the experts' weights from their logits on rows apart, (experts, B, C) -> (experts,).

    The weights are the posterior mean of a uniform prior on a grid of the simplex, under the likelihood of the
    annotations, averaged with equal weights that count as `PRIOR_ROWS` rows.
    """
    grid = simplex_grid(len(logits), STEPS_OF_GRID)
    losses = [view.nll(mix_logits(logits, weights, view.offset, view.one_label), target).sum() for weights in grid]
    posterior = torch.softmax(-torch.stack(losses).double().nan_to_num(nan=float("inf")), 0).float().cpu() @ grid
    rows = len(target)
    if not all_finite(posterior):
        return equal_weights()
    return (rows * posterior + PRIOR_ROWS / len(NAMES)) / (rows + PRIOR_ROWS)


def simplex_grid(experts: int, steps: int) -> Tensor:
    """Return all weights that are multiples of `1 / steps` and sum to one: (points, experts)."""
    points = [p for p in itertools.product(range(steps + 1), repeat=experts) if sum(p) == steps]
    return torch.tensor(points, dtype=torch.float32) / steps


def fit_head(view: View, features: Tensor, target: Tensor, head: nn.Linear) -> dict[str, Tensor]:
    """Return the tensors of a head that minimises the mean loss of a view plus a pull to the given head.

    The pull is `PULL / 2 * ||W - W_shared||^2`, bias included. L-BFGS needs no learning rate.
    """
    start = [parameter.detach() for parameter in head.parameters()]
    values = [tensor.clone().requires_grad_() for tensor in start]
    steps = torch.optim.LBFGS(values, max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        steps.zero_grad()
        distance = torch.stack([(v - s).square().sum() for v, s in zip(values, start, strict=True)]).sum()
        total = view.nll(nn.functional.linear(features, *values), target).mean() + 0.5 * PULL * distance
        total.backward()
        return total

    steps.step(loss)
    names = [name for name, _ in head.named_parameters()]
    found = {name: value.detach() for name, value in zip(names, values, strict=True)}
    return found if all(map(all_finite, found.values())) else dict(zip(names, start, strict=True))


def _own_head(work: LocalWork, shared: Tensors, rows: Tensor | None) -> dict[str, Tensor]:
    load_tensors(work.model, shared)
    network, data = cast(Network, work.model), work.site.train
    x, target = (data.x, data.target) if rows is None else (data.x[rows], data.target[rows])
    return fit_head(work.view, predict_features(network, x), target, network.head)


def _logits(work: LocalWork, tensors: Tensors, x: Tensor) -> Tensor:
    load_tensors(work.model, tensors)
    return predict_logits(work.model, x)


def _copies(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named_tensors(network).items()}
