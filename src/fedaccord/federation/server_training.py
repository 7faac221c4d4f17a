"""Training at the server on its own labelled samples, in the same way as at a site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fedaccord.data.site_data import SiteData
from fedaccord.messages.message import Message
from fedaccord.training.usual_work import rate_if_auto
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


def work_at_server(
    server: Server,
    samples: SiteData,
    brief: Message | None = None,
    round_: int | None = None,
    rounds: int | None = None,
) -> LocalWork:
    """Return the work of one round on samples of the server, with the model that its network has loaded.

    `round_` is by default the next one; `rounds` replaces those of the learning-rate schedule.
    """
    settings = server.recipe.settings
    round_ = server.state.round + 1 if round_ is None else round_
    parameters: list[Tensor] = [p for p in server.network.parameters() if p.requires_grad]
    return LocalWork(
        site=samples,
        view=samples.view,
        model=server.network,
        brief=brief or Message(),
        memory=Message(),
        round=round_,
        lr=settings.lr_at(round_, rate_if_auto(settings, samples.train.x), rounds),
        parameters=parameters,
        received=[p.detach().clone() for p in parameters],
        seed=server.seed,
    )
