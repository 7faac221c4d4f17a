"""The one local loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from fedaccord.messages.message import Message
from fedaccord.messages.names import COMPUTED, SILENT
from fedaccord.seeds import derive
from fedaccord.training.batches import batches
from fedaccord.training.objectives import Objective
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD, LossAndGradients, SGDStepper, Solver
from fedaccord.training.work import Batch, LocalWork


def train_locally(work: LocalWork, objective: Objective, solver: Solver, settings: TrainingSettings) -> Message:
    """Train the model of `work` in place for one round.

    Returns the beginning of a reply: the mean loss over the steps, and what objective and solver send. An objective may
    choose the rows that train (`work.rows`) when it starts; if it chooses none, the site stays silent. Parameters that
    an objective adds (`work.extra_parameters`) take plain steps, whatever the solver does to the model's.
    """
    silent = start(work, objective)
    if silent is not None:
        return silent
    data = work.site.train
    stepper = solver.start(work)
    beside = SGDStepper(SGD(settings.momentum, settings.weight_decay, settings.clip), work.extra_parameters, work.lr)
    losses, computed = [], 0
    for rows in rows_of_steps(work, settings):
        batch = Batch(rows, data.x.index_select(0, rows), data.target.index_select(0, rows))
        loss, gradients = stepper.evaluate(partial(measure, work, objective, batch))
        stepper.step(list(gradients[: len(work.parameters)]))
        if work.extra_parameters:
            beside.step(list(gradients[len(work.parameters) :]))
        objective.after_step(work, batch)
        losses.append(loss.detach())
        computed += len(rows) * stepper.evaluations
    reply = Message(numbers={"loss": float(torch.stack(losses).mean()) if losses else 0.0, COMPUTED: computed})
    objective.finish(work, reply)
    stepper.finish(work, reply)
    return reply


def start(work: LocalWork, objective: Objective) -> Message | None:
    """Start a round's objective at a site; returns the reply of a site that has nothing to train on."""
    if not work.model.training:  # going through all layers is a tenth of a small model's round
        work.model.train()
    objective.start(work)
    if work.rows is not None and not len(work.rows):
        return Message(words={SILENT: "no sample to train on"})
    return None


def rows_of_steps(work: LocalWork, settings: TrainingSettings) -> Iterator[Tensor]:
    """Yield the rows of the training part that each step of a round sees."""
    generator = torch.Generator().manual_seed(derive(work.seed, "batches", work.site.name, work.round))
    chosen, device = work.rows, work.site.train.x.device
    samples = len(work.site.train) if chosen is None else len(chosen)
    # Going through all layers takes time, so only where a batch of one sample is to come.
    drop = (settings.batch == 1 or samples % settings.batch == 1) and has_batch_norm(work.model)
    for order in batches(samples, settings.batch, generator, settings.epochs, settings.steps, drop_single=drop):
        yield order.to(device) if chosen is None else chosen[order.to(device)]


def measure(work: LocalWork, objective: Objective, batch: Batch) -> LossAndGradients:
    """Return the loss of a batch and its gradients: of the model's parameters, then of the objective's own."""
    loss = objective.loss(work, batch)
    # A parameter that the loss does not reach gets a zero gradient instead of an error.
    return loss, torch.autograd.grad(loss, [*work.parameters, *work.extra_parameters], materialize_grads=True)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Give torch's own random numbers (dropout, augmentation) a stream of their own, then the old one back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def has_batch_norm(model: nn.Module) -> bool:
    """Say whether a model has batch normalisation, which has no variance in a batch of one sample."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
