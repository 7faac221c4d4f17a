"""The one local loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from fedaccord.messages.message import Message
from fedaccord.messages.names import COMPUTED, SILENT
from fedaccord.seeds import derive
from fedaccord.training.batches import batches
from fedaccord.training.objectives import Objective
from fedaccord.training.settings import TrainingSettings
from fedaccord.training.solvers import SGD, Measured, SGDStepper, Solver
from fedaccord.training.work import Batch, LocalWork


def train_locally(work: LocalWork, objective: Objective, solver: Solver, settings: TrainingSettings) -> Message:
    """Train the model of `work` in place for one round.

    Returns the beginning of a reply: the mean loss over the steps, and what objective and solver send. An objective may
    choose the rows that train (`work.rows`) when it starts; if it chooses none, the site stays silent. Parameters that
    an objective adds (`work.own`) take plain steps, whatever the solver does to the model's.
    """
    data = work.site.train
    work.model.train()
    objective.start(work)
    if work.rows is not None and not len(work.rows):
        return Message(words={SILENT: "no sample to train on"})
    stepper = solver.start(work)
    beside = SGDStepper(SGD(settings.momentum, settings.weight_decay, settings.clip), work.own, work.lr)
    generator = torch.Generator().manual_seed(derive(work.seed, "batches", work.site.name, work.round))
    chosen, device = work.rows, data.x.device
    samples = len(data) if chosen is None else len(chosen)
    drop = has_batch_norm(work.model)
    losses, computed = [], 0
    for order in batches(samples, settings.batch, generator, settings.epochs, settings.steps, drop_single=drop):
        rows = order.to(device) if chosen is None else chosen[order]
        batch = Batch(rows, data.x.index_select(0, rows), data.target.index_select(0, rows))
        loss, gradients = stepper.look(partial(measure, work, objective, batch))
        stepper.step(list(gradients[: len(work.parameters)]))
        if work.own:
            beside.step(list(gradients[len(work.parameters) :]))
        objective.stepped(work, batch)
        losses.append(loss.detach())
        computed += len(rows) * stepper.looks
    reply = Message(numbers={"loss": float(torch.stack(losses).mean()) if losses else 0.0, COMPUTED: computed})
    objective.finish(work, reply)
    stepper.finish(work, reply)
    return reply


def measure(work: LocalWork, objective: Objective, batch: Batch) -> Measured:
    """Return the loss of a batch and its gradients: of the model's parameters, then of the objective's own."""
    loss = objective.loss(work, batch)
    # A parameter that the loss does not reach gets a zero gradient instead of an error.
    return loss, torch.autograd.grad(loss, [*work.parameters, *work.own], materialize_grads=True)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Give torch's own random numbers (dropout, augmentation) a stream of their own, then the old one back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def has_batch_norm(model: nn.Module) -> bool:
    """Say whether a model has batch normalisation, which has no variance in a batch of one sample."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
