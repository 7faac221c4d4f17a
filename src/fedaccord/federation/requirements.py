"""Requirements of methods on the sites' views, for the `ready` slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedaccord.adversary.attacks import TO_SETS
from fedaccord.errors import ConfigError
from fedaccord.labels.views import Candidates, view_class

if TYPE_CHECKING:
    from fedaccord.federation.server import Server


@dataclass(frozen=True)
class RequireViews:
    """Requires a property of the views of all sites that train."""

    needs: str  # an attribute of `View`, e.g. "one_label"
    needed: str  # the same in words

    def __call__(self, server: Server) -> None:
        """Raise ConfigError if a site lacks the property, or would lose it by an attack that makes candidate sets."""
        attack = server.attack
        for site in server.trainers():
            if not getattr(view_class(server.cards[site].view), self.needs):
                raise ConfigError(f"the method needs {self.needed}, but site '{site}' has {server.cards[site].view}")
        if attack is not None and attack.kind in TO_SETS and server.hostile and not getattr(Candidates, self.needs):
            raise ConfigError(
                f"the method needs {self.needed}, but method.attack '{attack.kind}' turns the labels of "
                f"site '{server.hostile[0]}' into candidate sets"
            )


def require_tags(server: Server) -> None:
    """Raise ConfigError unless all sites that train have tags."""
    for site in server.trainers():
        if view_class(server.cards[site].view).one_label:
            raise ConfigError(
                f"the method needs sites with tags, but site '{site}' has a view of kind '{server.cards[site].view}'"
            )
