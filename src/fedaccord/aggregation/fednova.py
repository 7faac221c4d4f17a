"""FedNova (Wang et al. 2020): sites' steps made comparable before they are combined.

tau = sum_k p_k ||a_k||_1
w  <- w - tau sum_k p_k (w - w_k) / ||a_k||_1
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Aggregator, Replies, normalised
from fedaccord.training.fednova import EFFECTIVE_STEPS


def with_normalised_steps(aggregator: Aggregator, robust: bool = False) -> Aggregator:
    """Let each site's way be as long as if all had taken the mean number of steps; buffers are no steps.

    If `robust`, tau is the median: the mean is as large as one hostile site says, and all ways grow with it.
    """

    def combine(replies: Replies) -> Tensor:
        steps = torch.tensor([m.numbers[EFFECTIVE_STEPS] for m in replies.messages], dtype=torch.float64)
        tau = steps.median() if robust else (normalised(replies.weights) * steps).sum()
        scale = tau / steps
        moving = replies.layout.trainable_mask()
        start = replies.previous[moving]
        matrix = replies.matrix.clone()
        matrix[:, moving] = start + scale.to(matrix.dtype)[:, None] * (replies.matrix[:, moving] - start)
        return aggregator(replace(replies, matrix=matrix))

    return combine
