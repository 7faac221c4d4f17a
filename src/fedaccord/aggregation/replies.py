"""The admitted replies of a round as one matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaccord.messages.message import Message, SiteId
from fedaccord.models.layout import Layout


@dataclass(frozen=True)
class Replies:
    """Replies in the order of site names: parameters, weights and the labels that each site informs."""

    sites: tuple[SiteId, ...]
    messages: tuple[Message, ...]
    matrix: Tensor  # sites x parameters; parameters that a site did not send have the server's previous values
    weights: Tensor  # float64, (sites,): sample counts
    informs: Tensor  # bool, sites x labels
    previous: Tensor  # the broadcast model, (parameters,)
    layout: Layout
    row_weights: Tensor | None = None  # float64, sites x labels: weight of a site in the mean of each head row
    started: Tensor | None = None  # sites x parameters: the model each site received, if it was not `previous`
    scored: tuple[Tensor, ...] = ()  # matrices that Krum scores together; if empty, `matrix` alone
    left_out: int = 0  # sites excluded from the round by a defence, or because their replies were invalid

    def __len__(self) -> int:
        return len(self.sites)

    @property
    def starts(self) -> Tensor:
        """The models that the sites started from: one flat vector for all, or (sites, parameters)."""
        return self.previous if self.started is None else self.started

    def scored_columns(self, columns: Tensor) -> Tensor:
        """Return the values that Krum scores in these columns: sites x values."""
        if not self.scored:
            return self.matrix[:, columns]
        return torch.cat([matrix[:, columns] for matrix in self.scored], dim=1)

    def keep(self, mask: Tensor) -> Replies:
        """Return the replies where the mask, bool (sites,), is true."""
        rows = mask.nonzero().flatten()
        indices = rows.tolist()
        return replace(
            self,
            sites=tuple(self.sites[i] for i in indices),
            messages=tuple(self.messages[i] for i in indices),
            matrix=self.matrix[rows],
            weights=self.weights[rows],
            informs=self.informs[rows],
            row_weights=None if self.row_weights is None else self.row_weights[rows],
            started=None if self.started is None else self.started[rows],
            scored=tuple(matrix[rows] for matrix in self.scored),
        )


Aggregator = Callable[[Replies], Tensor]
"""The type of the `aggregator` slot: from replies to the flat vector of the next model."""


def normalised(weights: Tensor) -> Tensor:
    """Return weights that sum to one."""
    return weights / torch.clamp(weights.sum(), min=torch.finfo(weights.dtype).tiny)
