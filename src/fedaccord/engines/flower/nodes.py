"""Which Flower node belongs to which site.

A new node is asked once for its site. If the public keys of the sites are known, a node must also hold that site's key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import flwr.app

from fedaccord import __version__
from fedaccord.engines.flower.envelope import WHO, open_sealed, seal, text
from fedaccord.errors import MessageError
from fedaccord.messages.message import SiteId

if TYPE_CHECKING:
    from flwr.serverapp import Grid

UNREACHABLE = (3, 4, 5)  # Flower error codes of a node that is unreachable, or did not answer in time
_POLL = 0.1  # seconds between checks for nodes while waiting
_LOOK = 2.0  # seconds between queries of the connected nodes


@dataclass(frozen=True)
class Roster:
    """Who may take part: names of sites, their public keys if known, and the id of the deployment."""

    sites: tuple[SiteId, ...]
    keys: Mapping[SiteId, bytes] = field(default_factory=dict)
    deployment: str = ""


class Nodes:
    """The nodes of a grid and their sites."""

    def __init__(self, grid: Grid, roster: Roster, note: Callable[[str], None]) -> None:
        self._grid, self._roster, self._note = grid, roster, note
        self._site: dict[int, SiteId] = {}  # by node
        self._asked: dict[str, int] = {}  # nodes by the id of an unanswered query for their site
        self._refused: set[int] = set()
        self._faults: dict[int, str] = {}  # by node, why it has no site
        self._keys: dict[int, bytes] = {}
        self._looked = float("-inf")

    @property
    def unsure(self) -> bool:
        """Whether some node may still name its site; nodes that failed to are asked again, but not waited for."""
        return any(node not in self._faults for node in self._asked.values())

    def why_absent(self, site: SiteId) -> str:
        """Return why a site has no node: the fault of the node that holds its key, or that it is not connected."""
        faults = (fault for node, fault in self._faults.items() if self._owner(node) == site)
        return next(faults, "its node is not connected")

    def gather(self, sites: Iterable[SiteId], patience: float, alive: Callable[[], None]) -> None:
        """Wait at most `patience` seconds until all sites are connected."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            alive()
            self.look()
            if all(self.of_site(site) is not None for site in sites):
                return
            time.sleep(_POLL)
        missing = [site for site in sites if self.of_site(site) is None]
        self._note(f"not connected after {patience:g} s: {', '.join(sorted(missing))}")

    def of_site(self, site: SiteId) -> int | None:
        """Return the node of a site, or None."""
        return next((node for node, name in self._site.items() if name == site), None)

    def lose(self, site: SiteId) -> None:
        """Forget the node of a site."""
        node = self.of_site(site)
        if node is not None:
            self.forget(node)

    def forget(self, node: int) -> None:
        """Forget which site a node belongs to."""
        self._site.pop(node, None)
        self._looked = time.monotonic()  # Flower may still list it for a moment

    def look(self) -> None:
        """Update the connected nodes, and ask new ones for their sites."""
        if self._asked:
            for answer in self._grid.pull_messages(list(self._asked)):
                node = self._asked.pop(answer.metadata.reply_to_message_id, None)
                if node is not None and answer.has_error():
                    self._handle_error(node, answer.error.code, str(answer.error.reason or ""))
                elif node is not None:
                    self._identify(node, answer.content)
        if time.monotonic() - self._looked < _LOOK:
            return
        self._looked = time.monotonic()
        online = self._online()
        self._site = {node: site for node, site in self._site.items() if node in online}
        self._refused &= online
        self._faults = {node: fault for node, fault in self._faults.items() if node in online}
        self._asked = {question: node for question, node in self._asked.items() if node in online}
        for node in sorted(online - self._site.keys() - self._refused - set(self._asked.values())):
            for question in self._grid.push_messages([flwr.app.Message(seal({"task": "who"}), node, WHO)]):
                self._asked[question] = node

    def _online(self) -> set[int]:
        if not self._roster.keys:
            return set(self._grid.get_node_ids())
        self._keys = {node.node_id: bytes(node.public_key) for node in self._grid.get_nodes()}
        return set(self._keys)

    def _identify(self, node: int, content: object) -> None:
        try:
            fields = open_sealed(content)
        except MessageError as error:
            self._refuse(node, str(error))
            return
        site = text(fields, "site")
        if site not in self._roster.sites:
            self._refuse(node, f"a node claims to be '{site}', which is not a site of this run")
        elif self._roster.keys and self._keys.get(node) != self._roster.keys.get(site):
            self._refuse(node, f"a node claims to be '{site}', but does not hold that site's key")
        elif text(fields, "deployment") != self._roster.deployment:
            self._refuse(node, f"the folder of site '{site}' was written by another `fedaccord deploy`")
        elif (version := text(fields, "fedaccord")) != __version__:
            versions = f"fedaccord {version:.20}, the server has {__version__}"
            self._refuse(node, f"site '{site}' has {versions}; install the same version")
        elif (other := self.of_site(site)) is not None and other != node:
            self._refuse(node, f"two nodes claim to be '{site}'; the first one is used")
        else:
            self._site[node] = site
            self._faults.pop(node, None)

    def _handle_error(self, node: int, code: int, reason: str) -> None:
        fault = f"node cannot name its site (Flower error code {code}): {reason}"
        if code not in UNREACHABLE and self._faults.get(node) != f"its {fault}":
            self._faults[node] = f"its {fault}"
            owner = self._owner(node)
            self._note(f"site '{owner}': its {fault}" if owner else f"a {fault}")

    def _owner(self, node: int) -> SiteId | None:
        """Return the site whose key a node holds, or None if it is unknown."""
        key = self._keys.get(node)
        return next((site for site, public in self._roster.keys.items() if public == key), None)

    def _refuse(self, node: int, reason: str) -> None:
        self._refused.add(node)
        self._faults[node] = reason
        self._note(reason)
