"""What a recipe cannot work with, told before the first round: parts of the `ready` slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedaccord.adversary.data_attacks import TO_SETS
from fedaccord.errors import ConfigError
from fedaccord.labels.views import Candidates, view_class

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


@dataclass(frozen=True)
class RequireViews:
    """Refuses sites that train with a view without some property, an attribute of `View` such as "one_label"."""

    needs: str
    needed: str  # the same in words

    def __call__(self, server: Server) -> None:
        """Look at everyone who may train in the first round, and at all whose labels an attack will make sets of."""
        attack = server.attack
        for site in server.trainers():
            if not getattr(view_class(server.cards[site].view), self.needs):
                raise ConfigError(f"the method needs {self.needed}, but site '{site}' has {server.cards[site].view}")
        if attack is not None and attack.kind in TO_SETS and server.hostile and not getattr(Candidates, self.needs):
            raise ConfigError(
                f"the method needs {self.needed}, but method.attack '{attack.kind}' makes candidate sets of the "
                f"labels of site '{server.hostile[0]}'"
            )


def require_tags(server: Server) -> None:
    """Refuse, before the first round, a federation whose sites do not all have tags: the `ready` slot."""
    for site in server.trainers():
        if view_class(server.cards[site].view).one_label:
            raise ConfigError(
                f"the method is for sites with tags, and site '{site}' has a view of kind '{server.cards[site].view}'"
            )
