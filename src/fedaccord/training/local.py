"""The one local loop."""

from __future__ import annotations

import torch
from torch import nn

from fedaccord.seeds import derive
from fedaccord.training.batches import batches
from fedaccord.training.objectives import Objective
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import Solver
from fedaccord.training.work import Batch, LocalWork


def train_locally(work: LocalWork, objective: Objective, solver: Solver, settings: TrainingSettings) -> float:
    """Train the model of `work` in place for one round; returns the mean loss over the steps."""
    data = work.site.train
    generator = torch.Generator().manual_seed(derive(work.seed, "batches", work.site.name, work.round))
    order = batches(
        len(data.x), settings.batch, generator, settings.epochs, settings.steps, drop_single=_has_batch_norm(work.model)
    )
    work.model.train()
    objective.start(work)
    stepper = solver.start(work.parameters, work.lr)
    losses = []
    for rows in order:
        batch = Batch(rows, data.x[rows], data.target[rows])
        loss = objective.loss(work, batch)
        # A parameter that the loss does not reach gets a zero gradient instead of an error.
        stepper.step(list(torch.autograd.grad(loss, work.parameters, materialize_grads=True)))
        objective.stepped(work, batch)
        losses.append(loss.detach())
    return float(torch.stack(losses).mean()) if losses else 0.0


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
