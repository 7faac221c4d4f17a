"""A round's admitted replies as one matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaccord.messages.message import Message, SiteId
from fedaccord.models.layout import Layout


@dataclass(frozen=True)
class Replies:
    """What the sites sent, in the order of their names: parameters, weights and which labels each one informs."""

    sites: tuple[SiteId, ...]
    messages: tuple[Message, ...]
    matrix: Tensor  # sites x parameters; what a site did not send stands at the server's previous value
    weights: Tensor  # float64, (sites,): sample counts
    informs: Tensor  # bool, sites x labels
    previous: Tensor  # the model that was sent out, (parameters,)
    layout: Layout
    row_weights: Tensor | None = None  # float64, sites x labels: how much a site counts for each label's head row
    started: Tensor | None = None  # sites x parameters: what each site was sent, where not all were sent `previous`
    judged: tuple[Tensor, ...] = ()  # matrices that rules that choose sites look at together; none: `matrix` alone
    left_out: int = 0  # sites of the round that a defence took for hostile, or that sent what no server would admit

    def __len__(self) -> int:
        return len(self.sites)

    @property
    def starts(self) -> Tensor:
        """Where the sites' updates begin: one flat vector for all, or (sites, parameters)."""
        return self.previous if self.started is None else self.started

    def looked_at(self, columns: Tensor) -> Tensor:
        """Return what a rule that chooses sites looks at in these columns of the model."""
        if not self.judged:
            return self.matrix[:, columns]
        return torch.cat([matrix[:, columns] for matrix in self.judged], dim=1)

    def keep(self, mask: Tensor) -> Replies:
        """Return only the replies where the mask is true, as a defence asks for."""
        rows = mask.nonzero().flatten()
        picked = rows.tolist()
        return replace(
            self,
            sites=tuple(self.sites[i] for i in picked),
            messages=tuple(self.messages[i] for i in picked),
            matrix=self.matrix[rows],
            weights=self.weights[rows],
            informs=self.informs[rows],
            row_weights=None if self.row_weights is None else self.row_weights[rows],
            started=None if self.started is None else self.started[rows],
            judged=tuple(matrix[rows] for matrix in self.judged),
        )


Aggregator = Callable[[Replies], Tensor]
"""The `aggregator` slot: replies in, the next model's flat vector out."""


def normalised(weights: Tensor) -> Tensor:
    """Return weights that sum to one."""
    return weights / torch.clamp(weights.sum(), min=torch.finfo(weights.dtype).tiny)
