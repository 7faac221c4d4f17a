"""An approximation of local-adaptive augmentation with gradient alignment for candidate sets (docs/methods.md 5.13).

The text of "FedPLL_LAAR" (Yan and Guo, AAAI 2024) was not available, so this is **not** a reproduction. It follows the
abstract: pseudo-targets from the local and the received model, two augmented copies of each sample, and a penalty on
the angle between a site's gradient and the federation's last update.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.models.network import predict_logits
from fedaccord.training.candidate_losses import confidences, weighted_cross_entropy
from fedaccord.training.objectives import Objective
from fedaccord.training.work import Batch, LocalWork

RECEIVED = "received"  # in a site's memory: the parameters that it received last time


def pseudo_target(local: Tensor, received: Tensor, sets: Tensor) -> Tensor:
    """Return the mean prediction of two models from their logits, restricted to the sets and normalised."""
    both = torch.logaddexp(torch.log_softmax(local, -1), torch.log_softmax(received, -1))
    return confidences(both, sets)


def misalignment(gradient: list[Tensor], direction: list[Tensor]) -> Tensor:
    """Return `1 - cos` of the angle between two lists of tensors; zero if the direction is zero."""
    u = torch.cat([part.reshape(-1) for part in gradient])
    v = torch.cat([part.reshape(-1) for part in direction])
    length = torch.linalg.vector_norm(v)
    if not float(length) > 0:
        return u.sum() * 0.0
    return 1 - (u @ v) / (length * torch.linalg.vector_norm(u).clamp(min=1e-12))


def augmented(x: Tensor, strong: bool) -> Tensor:
    """Return augmented samples.

    Images are shifted and, if `strong`, get a blank patch; other samples get noise and, if `strong`, dropped values.
    """
    if x.ndim == 4:
        reach = 2 if strong else 1
        shift = torch.randint(-reach, reach + 1, (2,)).tolist()
        moved = torch.roll(x, shift, (2, 3))
        return torch.where(_patch(x), x.amin(), moved) if strong else moved
    noisy = x + (0.1 if strong else 0.05) * torch.randn_like(x)
    return noisy * (torch.rand_like(x) > 0.1) if strong else noisy


def _patch(x: Tensor) -> Tensor:
    """Return a mask of a square with a third of the image's sides, the same for the batch: bool (height, width)."""
    sides = [max(1, side // 3) for side in x.shape[2:]]
    top, left = (int(torch.randint(0, side - part + 1, ())) for side, part in zip(x.shape[2:], sides, strict=True))
    mask = torch.zeros(x.shape[2:], dtype=torch.bool, device=x.device)
    mask[top : top + sides[0], left : left + sides[1]] = True
    return mask


@dataclass(frozen=True)
class AlignedAugmentation(Objective):
    """Cross-entropy of two augmented copies against a pseudo-target, plus a penalty on misaligned gradients."""

    rho: float = 0.1

    def start(self, work: LocalWork) -> None:
        """Compute the received model's predictions and the federation's last gradient."""
        sets = work.scratch["sets"] = work.view.candidate_sets(work.site.train.target)
        last = work.memory.select(RECEIVED)
        # The federation's last update is a negative gradient; before the second round there is none.
        work.scratch["direction"] = (
            [last[str(i)].to(now.device) - now for i, now in enumerate(work.received)] if last else None
        )
        work.memory.put(RECEIVED, {str(i): tensor for i, tensor in enumerate(work.received)})
        if sets is not None:
            work.scratch["received"] = work.view.adjusted(predict_logits(work.model, work.site.train.x))

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        if work.scratch["sets"] is None:
            return work.view.mean_nll(work.model(batch.x), batch.target)
        sets = work.scratch["sets"].index_select(0, batch.rows)
        logits = [work.view.adjusted(work.model(augmented(batch.x, strong))) for strong in (False, True)]
        target = pseudo_target(logits[0].detach(), work.scratch["received"].index_select(0, batch.rows), sets)
        loss = torch.stack([weighted_cross_entropy(z, sets, target) for z in logits]).mean()
        if self.rho and work.scratch["direction"] is not None:
            gradient = torch.autograd.grad(loss, work.parameters, create_graph=True, materialize_grads=True)
            confidence = target.amax(-1).mean()
            loss = loss + self.rho * confidence * misalignment(list(gradient), work.scratch["direction"])
        return loss
