"""The site's side of FedCurv: a pull towards the other sites' models, weighted by their Fisher information.

    lambda * sum_{j != k} (w - w_j)^T diag(F_j) (w - w_j)  =  lambda * (w^2 . A - 2 w . B + c)

with `A = sum F_j`, `B = sum F_j w_j` and `c = sum F_j w_j^2`. A site receives these sums, not the terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaccord.labels.views import View
from fedaccord.messages.message import Message
from fedaccord.training.objectives import Objective
from fedaccord.training.work import Batch, LocalWork

FISHER = "fisher"  # in a reply: F_k, flat in the order of the parameters
CURVATURE, PULLED, CONSTANT = "others' fisher", "others' fisher times model", "others' constant"  # A, B and c
CHUNK = 64  # samples whose gradients are in memory at a time


def curvature_penalty(flat: Tensor, curvature: Tensor, pulled: Tensor, constant: float) -> Tensor:
    """Return `w^2 . A - 2 w . B + c`."""
    return (flat.square() * curvature).sum() - 2 * (flat * pulled).sum() + constant


@dataclass(frozen=True)
class Curvature(Objective):
    """The penalty of FedCurv; computes the site's diagonal Fisher information after training."""

    strength: float
    samples: int  # maximum number of samples for the Fisher information

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the penalty, which does not depend on the batch; zero in the first round."""
        sent = work.brief.tensors
        if CURVATURE not in sent:
            return work.parameters[0].sum() * 0.0
        flat = torch.cat([p.reshape(-1) for p in work.parameters])
        curvature, pulled = (sent[name].to(flat.device) for name in (CURVATURE, PULLED))
        return self.strength * curvature_penalty(flat, curvature, pulled, float(work.brief.numbers[CONSTANT]))

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Add the Fisher information of the trained model to the reply."""
        data = work.site.train
        rows = torch.arange(len(data), device=data.x.device) if work.rows is None else work.rows
        rows = rows[torch.randperm(len(rows))[: self.samples].sort().values.to(rows.device)]
        reply.tensors[FISHER] = diagonal_fisher(work.model, work.view, data.x[rows], data.target[rows]).cpu()


def diagonal_fisher(model: nn.Module, view: View, x: Tensor, target: Tensor) -> Tensor:
    """Return the mean over samples of the squared gradient, (trainable parameters,)."""
    trainable = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    rest = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    rest |= dict(model.named_buffers())

    def loss(values: dict[str, Tensor], one: Tensor, annotation: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, {**values, **rest}, (one[None],))
        return view.nll(logits, annotation[None]).sum()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
    was_training = model.training
    model.eval()
    try:
        sums = [torch.zeros_like(p) for p in trainable.values()]
        for part, annotations in zip(x.split(CHUNK), target.split(CHUNK), strict=True):
            for total, gradient in zip(sums, gradients(trainable, part, annotations).values(), strict=True):
                total += gradient.square().sum(0)
    finally:
        model.train(was_training)
    return torch.cat([total.reshape(-1) for total in sums]) / max(1, len(x))
