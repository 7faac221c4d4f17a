"""Training at the server on its own labelled samples, in the same way as at a site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fedaccord.data.site_data import SiteData
from fedaccord.messages.message import Message
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


def work_at_server(server: Server, samples: SiteData, brief: Message | None = None) -> LocalWork:
    """Return the work of one round on samples of the server, with the model that its network has loaded."""
    round_ = server.state.round + 1
    parameters: list[Tensor] = [p for p in server.network.parameters() if p.requires_grad]
    return LocalWork(
        site=samples,
        view=samples.view,
        model=server.network,
        brief=brief or Message(),
        memory=Message(),
        round=round_,
        lr=server.recipe.settings.lr_at(round_),
        parameters=parameters,
        received=[p.detach().clone() for p in parameters],
        seed=server.seed,
    )
