"""A weighted mixture of networks that answer for one site."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mix_logits(logits: Tensor, weights: Tensor, offset: Tensor | None, exclusive: bool) -> Tensor:
    """Return the logits of the mixture `p = sum_m w_m p_m`: (experts, B, C), (experts,) -> (B, C).

    An expert's probabilities are those of its logits plus `offset`, (C,): a softmax if the labels are `exclusive`,
    otherwise a sigmoid for each tag. The result has the same probabilities when `offset` is added to it.
    """
    shift = logits.new_zeros(()) if offset is None else offset.to(logits.device)
    log_w = weights.to(logits.device, logits.dtype).log()[:, None, None]
    if exclusive:
        mixed = torch.logsumexp(log_w + torch.log_softmax(logits + shift, -1), 0)
    else:
        present, absent = F.logsigmoid(logits + shift), F.logsigmoid(-logits - shift)
        mixed = torch.logsumexp(log_w + present, 0) - torch.logsumexp(log_w + absent, 0)
    # The offset of a label that the site does not know is minus infinity. Its logit has no effect but must be finite.
    return (mixed - shift).masked_fill(torch.isinf(shift), 0.0)


class Mixture(nn.Module):
    """Networks whose probabilities are averaged with fixed weights; an expert of weight zero is left out."""

    weights: Tensor
    offset: Tensor | None

    def __init__(self, experts: Sequence[nn.Module], weights: Tensor, offset: Tensor | None, exclusive: bool) -> None:
        super().__init__()
        used = [index for index, weight in enumerate(weights.tolist()) if weight > 0]
        self.experts = nn.ModuleList([experts[index] for index in used])
        self.register_buffer("weights", weights[used] / weights[used].sum())
        self.register_buffer("offset", offset)
        self.exclusive = exclusive

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the mixture, of shape (batch, classes)."""
        return mix_logits(
            torch.stack([expert(x) for expert in self.experts]), self.weights, self.offset, self.exclusive
        )
