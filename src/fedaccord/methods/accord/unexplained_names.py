"""Sites with coarse names of unknown meaning: their correspondence by EM over all of them (docs/methods.md 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedaccord.errors import ConfigError
from fedaccord.federation.branch import BRANCH
from fedaccord.federation.pooled_correspondence import expected_names
from fedaccord.labels.correspondence import CORRESPONDENCE
from fedaccord.labels.views import NOT_ANNOTATED
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.accord.labelled_server import labelled_site
from fedaccord.methods.accord.objective import WEIGHING, rows_to_weigh
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


WARM_UP = 0.25  # of the rounds, in which only labels of known meaning are learned


def unexplained_sites(server: Server) -> list[SiteId]:
    """Return the sites of the next round with names of unknown meaning; none in the warm-up.

    A matrix that was estimated with a poor model is confirmed by the sites that train with it.
    """
    if server.state.round < max(1, round(WARM_UP * server.recipe.settings.rounds)):
        return []
    return [site for site in server.sample_sites() if server.cards[site].unexplained]


def count_names(work: LocalWork) -> Message:
    """Return a site's expected counts of names and classes, with its prior if that remains: the task of the E-step."""
    target = work.site.train.target
    if work.brief.words.get(BRANCH) == WEIGHING:  # the rows kept apart must not inform the branch
        counted = torch.full_like(target, NOT_ANNOTATED)
        rows = rows_to_weigh(work)[0]
        counted[rows] = target[rows]
        target = counted
    return expected_names(work, work.brief.tensors[CORRESPONDENCE], target, adjusted=True)


def require_meaning(server: Server) -> None:
    """Raise ConfigError if no site declares the meaning of its labels, and the server has no labelled samples."""
    if server.memberships or labelled_site(server) is not None:
        return
    trainers = server.trainers()
    if trainers and all(server.cards[site].unexplained for site in trainers):
        raise ConfigError(
            "nothing says what the names of the sites stand for: declare a correspondence at some sites, or give the "
            "server labelled samples of at least two classes by labelled in [server]"
        )
