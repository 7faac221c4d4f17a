"""Weights of replies other than their number of samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedaccord.aggregation.replies import Replies

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


def equal_weights(server: Server, replies: Replies) -> Replies:
    """Return the replies with weight 1 each."""
    return replace(replies, weights=torch.ones_like(replies.weights))
