"""The experts of a site and their weights, found at the site after the last round (docs/methods.md 3.1).

The weights come from experts that never saw the rows kept apart: the shared model of the branch `weighing`, an own
head on it, and a model trained alone on the other rows. They are then given to the final shared model, an own head on
it, and a model trained alone on all rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from fedaccord.federation.branch import branch_memory, with_branch
from fedaccord.federation.experts import KEEPS_SHARED, Experts, usual_weights
from fedaccord.federation.host import PERSONAL
from fedaccord.federation.site_views import annotated_rows, answering_offset
from fedaccord.labels.views import View
from fedaccord.labels.views.likelihoods import PRIOR
from fedaccord.messages.checks import all_finite
from fedaccord.messages.message import Message
from fedaccord.methods.accord.objective import ALONE, PLAIN_WAY, REGULARISED, WEIGHING, rows_to_weigh
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.models.layout import load_tensors, named_tensors
from fedaccord.models.mixture import mix_logits
from fedaccord.models.network import Network, predict_features, predict_logits, with_own_head
from fedaccord.training.regularisation import PLAIN, is_regularised
from fedaccord.training.work import LocalWork

WEIGH, FIT = "weigh experts", "fit experts"  # the names of the tasks
PULLS = (0.003, 0.03, 0.3, 3.0)  # weights of half the squared distance between an own head and the shared one
USUAL_PULL = 0.03  # if no rows are kept apart to choose it by
PRIOR_ROWS = 20  # the usual weights count as much as these rows kept apart
HEAD_STEPS = 30  # of L-BFGS; more changed nothing
STEPS_OF_GRID = 5  # the weights that are compared are multiples of 1 / 5
WAYS = {REGULARISED: "regularised", PLAIN_WAY: "plain"}  # branch -> how its model is trained
WEIGHTS, ROWS, PULL = "weights", "rows", "pull"  # in the memory of the branch `ALONE`
Tensors = Mapping[str, Tensor]
Key = TypeVar("Key")


def weigh_experts(work: LocalWork, settings: AccordSettings) -> Message:
    """Choose the experts' weights and the way to train alone by the rows apart: a task, after the first branches.

    The brief has the model of the branch `weighing`. Both choices are stored for the branch `ALONE`; the reply says
    nothing about them.
    """
    rows, apart = rows_to_weigh(work)
    branch = branch_memory(work.memory, WEIGHING)
    shared = _copies(work.model) | branch.select(PERSONAL) | work.brief.select(WEIGHING)
    _use_prior(work, shared, branch, settings, rows)
    models = {way: _model_alone(work, way) for way in WAYS}
    trained = {way: tensors for way, tensors in models.items() if tensors}
    chosen = Message()
    if len(apart) and trained:
        data = work.site.train
        x, target = data.x[apart], data.target[apart]
        alone = {way: _logits(work, tensors, x) for way, tensors in trained.items()}
        heads = _own_heads(work, shared, rows, PULLS)
        own = {pull: predict_logits(with_own_head(work.model, head, {}), x) for pull, head in heads.items()}
        way, pull = _best(work.view, alone, target), _best(work.view, own, target)
        logits = torch.stack([predict_logits(work.model, x), own[pull], alone[way]])
        chosen.tensors[WEIGHTS] = expert_weights(work.view, logits, target)
        chosen.numbers |= {ROWS: len(apart), PULL: pull}
        chosen.words |= {PLAIN: "on"} if way == PLAIN_WAY else {}
    for name in (WEIGHING, *WAYS):
        work.memory = with_branch(work.memory, name, Message())
    work.memory = with_branch(work.memory, ALONE, chosen)
    return Message()


def fit_experts(work: LocalWork, settings: AccordSettings) -> Message:
    """Store the experts and their weights in the memory: a task, after the branch `ALONE`.

    The brief has the final shared model. The reply says nothing about the experts.
    """
    shared, chosen = _copies(work.model), branch_memory(work.memory, ALONE)
    prior = _use_prior(work, shared, work.memory, settings, annotated_rows(work.site))
    alone = _model_alone(work, ALONE)
    work.memory = with_branch(work.memory, ALONE, Message())
    if not alone:
        return Message()
    pull = chosen.numbers.get(PULL, USUAL_PULL)
    head = _own_heads(work, shared, annotated_rows(work.site), [pull])[pull]
    weights, rows = chosen.tensors.get(WEIGHTS, usual_weights()), int(chosen.numbers.get(ROWS, 0))
    is_plain = PLAIN in chosen.words or not settings.regularise or not is_regularised(work)
    way = PLAIN_WAY if is_plain else REGULARISED
    if all(map(all_finite, (*head.values(), *alone.values()))):
        kept = shared if KEEPS_SHARED in work.brief.words else {}
        Experts(weights, head, alone, kept, WAYS[way], rows).store(work.memory)
        work.memory.tensors |= {} if prior is None else {PRIOR: prior}  # evaluation uses the same
    return Message()


def expert_weights(view: View, logits: Tensor, target: Tensor) -> Tensor:
    """Return the experts' weights from their logits on rows apart, (experts, B, C) -> (experts,).

    The weights are the posterior mean of a uniform prior on a grid of the simplex, under the likelihood of the
    annotations, averaged with the usual weights that count as `PRIOR_ROWS` rows.
    """
    grid = simplex_grid(len(logits), STEPS_OF_GRID)
    losses = [view.nll(mix_logits(logits, weights, view.offset, view.one_label), target).sum() for weights in grid]
    posterior = torch.softmax(-torch.stack(losses).double().nan_to_num(nan=float("inf")), 0).float().cpu() @ grid
    rows = len(target)
    if not all_finite(posterior):
        return usual_weights()
    return (rows * posterior + PRIOR_ROWS * usual_weights()) / (rows + PRIOR_ROWS)


def simplex_grid(experts: int, steps: int) -> Tensor:
    """Return all weights that are multiples of `1 / steps` and sum to one: (points, experts)."""
    points = [p for p in itertools.product(range(steps + 1), repeat=experts) if sum(p) == steps]
    return torch.tensor(points, dtype=torch.float32) / steps


def fit_head(view: View, features: Tensor, target: Tensor, head: nn.Linear, pull: float) -> dict[str, Tensor]:
    """Return the tensors of a head that minimises the mean loss of a view plus a pull to the given head.

    The second term is `pull / 2 * ||W - W_shared||^2`, bias included. L-BFGS needs no learning rate.
    """
    start = [parameter.detach() for parameter in head.parameters()]
    values = [tensor.clone().requires_grad_() for tensor in start]
    steps = torch.optim.LBFGS(values, max_iter=HEAD_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        steps.zero_grad()
        distance = torch.stack([(v - s).square().sum() for v, s in zip(values, start, strict=True)]).sum()
        total = view.nll(nn.functional.linear(features, *values), target).mean() + 0.5 * pull * distance
        total.backward()
        return total

    steps.step(loss)
    names = [name for name, _ in head.named_parameters()]
    found = {name: value.detach() for name, value in zip(names, values, strict=True)}
    return found if all(map(all_finite, found.values())) else dict(zip(names, start, strict=True))


def _model_alone(work: LocalWork, branch: str) -> dict[str, Tensor]:
    """Return the model that a branch trained at the site; empty if it trained none.

    It was trained without the site's prior, which the mixture adds to all experts; so its bias is lowered by the prior.
    A head without bias cannot be freed from the prior, so that such a site has no model alone.
    """
    tensors = branch_memory(work.memory, branch).select(PERSONAL)
    prior, bias = work.view.offset, tensors.get("head.bias")
    shift = None if prior is None else prior.cpu().nan_to_num(neginf=0.0)
    if bias is None and shift is not None and bool(shift.any()):
        return {}
    if bias is not None and shift is not None:
        tensors["head.bias"] = bias - shift.to(bias.device)
    return {**work.initial, **tensors} if tensors else {}


def _use_prior(
    work: LocalWork, shared: Tensors, memory: Message, settings: AccordSettings, rows: Tensor | None
) -> Tensor | None:
    """Set the view's offset to the prior in a memory, or find it for a shared model; return it if there is one."""
    prior = memory.tensors.get(PRIOR)
    if prior is None:
        load_tensors(work.model, shared)
        prior = answering_offset(work.site, work.view, work.model, settings, rows)
    if prior is not None:
        work.view = work.view.with_offset(prior)
    return prior


def _own_heads(
    work: LocalWork, shared: Tensors, rows: Tensor | None, pulls: Sequence[float]
) -> dict[float, dict[str, Tensor]]:
    """Load a shared model, and return a head of the site for each pull."""
    load_tensors(work.model, shared)
    network, data = cast(Network, work.model), work.site.train
    x, target = (data.x, data.target) if rows is None else (data.x[rows], data.target[rows])
    features = predict_features(network, x)
    return {pull: fit_head(work.view, features, target, network.head, pull) for pull in pulls}


def _best(view: View, logits: Mapping[Key, Tensor], target: Tensor) -> Key:
    """Return the key of the logits with the highest likelihood."""
    return min(logits, key=lambda key: float(view.nll(logits[key], target).mean().nan_to_num(nan=float("inf"))))


def _logits(work: LocalWork, tensors: Tensors, x: Tensor) -> Tensor:
    load_tensors(work.model, tensors)
    return predict_logits(work.model, x)


def _copies(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named_tensors(network).items()}
