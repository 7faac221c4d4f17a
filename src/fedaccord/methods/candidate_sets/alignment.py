"""An approximation of local-adaptive augmentation with gradient alignment for candidate sets (docs/methods.md 5.13).

The text of "FedPLL_LAAR" (Yan and Guo, AAAI 2024) could not be obtained, so this is **not** a reproduction of it; it is
what its abstract suggests: pseudo-targets from the local and the received model, two augmented views of each sample,
and a penalty that turns a site's gradient towards the federation's last step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaccord.training.candidate_losses import confidences, weighted_cross_entropy
from fedaccord.training.objectives import Objective
from fedaccord.training.work import Batch, LocalWork

RECEIVED = "received"  # in a site's memory: the parameters it was sent last time
CHUNK = 1024


def pseudo_target(local: Tensor, received: Tensor, sets: Tensor) -> Tensor:
    """Return the mean of two models' predictions, restricted to the sets and normalised, from their logits."""
    both = torch.logaddexp(torch.log_softmax(local, -1), torch.log_softmax(received, -1))
    return confidences(both, sets)


def misalignment(gradient: list[Tensor], direction: list[Tensor]) -> Tensor:
    """Return `1 - cos` of the angle between two lists of tensors; zero where the direction has no length."""
    ours = torch.cat([part.reshape(-1) for part in gradient])
    theirs = torch.cat([part.reshape(-1) for part in direction])
    length = torch.linalg.vector_norm(theirs)
    if not float(length) > 0:
        return ours.sum() * 0.0
    return 1 - (ours @ theirs) / (length * torch.linalg.vector_norm(ours).clamp(min=1e-12))


def augmented(x: Tensor, strong: bool) -> Tensor:
    """Return changed samples: images shifted and, if strong, partly blanked; others with noise and, if strong, gaps."""
    if x.ndim == 4:
        reach = 2 if strong else 1
        shift = torch.randint(-reach, reach + 1, (2,)).tolist()
        moved = torch.roll(x, shift, (2, 3))
        return torch.where(_patch(x), x.amin(), moved) if strong else moved
    noisy = x + (0.1 if strong else 0.05) * torch.randn_like(x)
    return noisy * (torch.rand_like(x) > 0.1) if strong else noisy


def _patch(x: Tensor) -> Tensor:
    """Mark a square of a third of an image's sides, the same for the whole batch: bool (height, width)."""
    sides = [max(1, side // 3) for side in x.shape[2:]]
    top, left = (int(torch.randint(0, side - part + 1, ())) for side, part in zip(x.shape[2:], sides, strict=True))
    blank = torch.zeros(x.shape[2:], dtype=torch.bool, device=x.device)
    blank[top : top + sides[0], left : left + sides[1]] = True
    return blank


@dataclass(frozen=True)
class AlignedAugmentation(Objective):
    """Cross-entropy of two augmented views against a pseudo-target, plus a penalty on misaligned gradients."""

    rho: float = 0.1

    def start(self, work: LocalWork) -> None:
        """Note what the received model thinks of every sample, and in which direction the federation last went."""
        sets = work.scratch["sets"] = work.view.candidate_sets(work.site.train.target)
        last = work.memory.select(RECEIVED)
        # The step the federation made is minus a gradient. Before the first there is none to align with.
        work.scratch["direction"] = (
            [last[str(i)].to(now.device) - now for i, now in enumerate(work.received)] if last else None
        )
        work.memory.put(RECEIVED, {str(i): tensor for i, tensor in enumerate(work.received)})
        if sets is not None:
            work.scratch["received"] = work.view.adjusted(_predict(work.model, work.site.train.x))

    def loss(self, work: LocalWork, batch: Batch) -> Tensor:
        """Return the batch mean."""
        if work.scratch["sets"] is None:
            return work.view.mean_nll(work.model(batch.x), batch.target)
        sets = work.scratch["sets"].index_select(0, batch.rows)
        views = [work.view.adjusted(work.model(augmented(batch.x, strong))) for strong in (False, True)]
        target = pseudo_target(views[0].detach(), work.scratch["received"].index_select(0, batch.rows), sets)
        loss = torch.stack([weighted_cross_entropy(z, sets, target) for z in views]).mean()
        if self.rho and work.scratch["direction"] is not None:
            gradient = torch.autograd.grad(loss, work.parameters, create_graph=True, materialize_grads=True)
            sure = target.amax(-1).mean()
            loss = loss + self.rho * sure * misalignment(list(gradient), work.scratch["direction"])
        return loss


@torch.no_grad()
def _predict(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    logits = torch.cat([model(part) for part in x.split(CHUNK)])
    model.train()
    return logits
