"""How much each reply counts, where that is not by its number of samples: the `weigh` slot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedaccord.aggregation.replies import Replies

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


def equal_weights(server: Server, replies: Replies) -> Replies:
    """Let every site that replied count the same."""
    return replace(replies, weights=torch.ones_like(replies.weights))
