"""The local training loop and its shuffled batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from fedaccord.messages.message import Message
from fedaccord.messages.names import COMPUTED, SILENT
from fedaccord.seeds import derive
from fedaccord.training.objectives import Objective
from fedaccord.training.settings import Auto, TrainingSettings
from fedaccord.training.solvers import SGD, LossAndGradients, SGDStepper, Solver
from fedaccord.training.usual_work import usual_steps
from fedaccord.training.work import Batch, LocalWork


def train_locally(work: LocalWork, objective: Objective, solver: Solver, settings: TrainingSettings) -> Message:
    """Train the model of `work` in place for one round and return a reply without the model.

    The reply contains the mean loss over the steps and the additions of objective and solver. `objective.start` may
    select the rows to train on (`work.rows`); with no row, the reply contains the word `SILENT` only.
    `work.extra_parameters` are trained by SGD, independent of the solver.
    """
    silent = start(work, objective)
    if silent is not None:
        return silent
    data = work.site.train
    stepper = solver.start(work)
    extra_sgd = SGD(settings.momentum, settings.weight_decay, settings.clip)
    extra_stepper = SGDStepper(extra_sgd, work.extra_parameters, work.lr)
    losses, computed = [], 0
    for rows in rows_of_steps(work, settings):
        batch = Batch(rows, data.x.index_select(0, rows), data.target.index_select(0, rows))
        loss, gradients = stepper.evaluate(partial(loss_and_gradients, work, objective, batch))
        stepper.step(list(gradients[: len(work.parameters)]))
        if work.extra_parameters:
            extra_stepper.step(list(gradients[len(work.parameters) :]))
        objective.after_step(work, batch)
        losses.append(loss.detach())
        computed += len(rows) * stepper.evaluations
    reply = Message(numbers={"loss": float(torch.stack(losses).mean()) if losses else 0.0, COMPUTED: computed})
    objective.finish(work, reply)
    stepper.finish(work, reply)
    return reply


def start(work: LocalWork, objective: Objective) -> Message | None:
    """Start the objective of a round; return the reply of a site that has no row to train on, else None."""
    if not work.model.training:  # visiting all modules takes a tenth of a small model's round
        work.model.train()
    objective.start(work)
    if work.rows is not None and not len(work.rows):
        return Message(words={SILENT: "no sample to train on"})
    return None


def rows_of_steps(work: LocalWork, settings: TrainingSettings) -> Iterator[Tensor]:
    """Yield the row indices of each step of a round, int64 (B,)."""
    generator = torch.Generator().manual_seed(derive(work.seed, "batches", work.site.name, work.round))
    selected, device = work.rows, work.site.train.x.device
    samples = len(work.site.train) if selected is None else len(selected)
    # `has_batch_norm` visits all modules, so it is called only if some batch has one sample.
    drop = (settings.batch == 1 or samples % settings.batch == 1) and has_batch_norm(work.model)
    for order in batches(samples, settings.batch, generator, settings.epochs, settings.steps, drop_single=drop):
        yield order.to(device) if selected is None else selected[order.to(device)]


def loss_and_gradients(work: LocalWork, objective: Objective, batch: Batch) -> LossAndGradients:
    """Return the loss of a batch and the gradients of `work.parameters`, then of `work.extra_parameters`."""
    loss = objective.loss(work, batch)
    # A parameter that the loss does not depend on gets a zero gradient instead of an error.
    return loss, torch.autograd.grad(loss, [*work.parameters, *work.extra_parameters], materialize_grads=True)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator (dropout, augmentation) within the block, then restore its state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a model has batch norm, which cannot train on a batch of one sample."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def batches(
    samples: int,
    size: int,
    generator: torch.Generator,
    epochs: int | None = None,
    steps: int | Auto | None = None,
    drop_single: bool = False,
) -> Iterator[Tensor]:
    """Yield index tensors of `epochs` shuffled epochs, or of exactly `steps` batches, by `usual_steps` if "auto".

    `drop_single` drops batches of one sample, for which batch norm has no variance.
    """
    remaining = step_count(samples, size, epochs, steps, drop_single)
    while remaining:
        for batch in torch.randperm(samples, generator=generator).split(size):
            if remaining and not (drop_single and len(batch) == 1):
                remaining -= 1
                yield batch


def step_count(
    samples: int, size: int, epochs: int | None = None, steps: int | Auto | None = None, drop_single: bool = False
) -> int:
    """Return the number of index tensors that `batches` yields."""
    if samples == 0 or (drop_single and (samples == 1 or size == 1)):
        return 0
    if steps is not None:
        return usual_steps(samples, size) if steps == "auto" else steps
    batches_per_epoch = -(-samples // size) - (drop_single and samples % size == 1)
    return (epochs or 1) * batches_per_epoch
