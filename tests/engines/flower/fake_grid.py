"""A grid without a network: nodes answer when a test lets them, in Flower's own messages."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import flwr.app
from flwr.supercore.task_identity import TaskIdentity
from toy_host import site_data

from fedaccord.engines.engine import HostSpec
from fedaccord.engines.flower.client import client_app
from fedaccord.engines.flower.site_folder import write_site_folder

SITES = ["site-0", "site-1", "site-2"]


@dataclass
class Info:
    """What Flower tells of a node."""

    node_id: int
    public_key: bytes


class FakeGrid:
    """Holds questions, and has a node answer them as soon as they are pulled, unless it is told otherwise."""

    def __init__(self, folder: Path, sites=SITES, deployment="d", specs=None) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.nodes: dict[int, str] = {}  # by id, the site behind each
        self.folders = {}
        self.keys = {}
        self.open: dict[str, flwr.app.Message] = {}
        self.asked: list[tuple[str, str]] = []  # site and message type, in the order they were pushed
        self.held: set[str] = set()  # sites that do not answer for now
        self.late: list[flwr.app.Message] = []  # answers to be handed out whatever is pulled
        self.twice = False
        self._ids = itertools.count(100)
        for number, site in enumerate(sites):
            data = {name: tensor for name, tensor in site_data().items() if name.startswith(f"{site}/")}
            self.folders[site] = folder / site
            spec = HostSpec("toy_host:build", {}, data) if specs is None else specs[site]
            write_site_folder(folder / site, site, spec, deployment, "", ["."])
            (folder / site / "site.toml").write_text('trust = ["toy_host"]\n')
            self.join(site, number + 1)

    def join(self, site: str, node: int, key: bytes | None = None) -> None:
        self.nodes[node] = site
        self.keys[node] = f"key of {site}".encode() if key is None else key

    def leave(self, site: str) -> None:
        self.nodes = {node: name for node, name in self.nodes.items() if name != site}

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        return [Info(node, self.keys[node]) for node in self.nodes]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(str(next(self._ids)))
            self.open[ids[-1]] = message
            site = self.nodes.get(message.metadata.dst_node_id, "")
            self.asked.append((site, message.metadata.message_type))
        return ids

    def pull_messages(self, ids):
        answers = []
        for question in ids:
            message = self.open.get(question)
            if message is None:
                continue
            site = self.nodes.get(message.metadata.dst_node_id)
            if site is None:
                answers.append(self._error(question, message, 5))
            elif site not in self.held:
                answers.append(self.answer(question))
        answers += self.late
        self.late = []
        return answers * 2 if self.twice else answers

    def answer(self, question: str) -> flwr.app.Message:
        """Have the node do what it was asked, and return its answer."""
        message = self.open.pop(question)
        site = self.nodes[message.metadata.dst_node_id]
        message.metadata.__dict__["_message_id"] = question
        context = flwr.app.Context(1, message.metadata.dst_node_id, {}, flwr.app.RecordDict(), {})
        try:
            return client_app(lambda _: self.folders[site])(message=message, context=context)
        except Exception as error:
            return flwr.app.Message(flwr.app.Error(code=2, reason=str(error)), reply_to=message)

    def _error(self, question, message, code):
        del self.open[question]
        message.metadata.__dict__["_message_id"] = question
        return flwr.app.Message(flwr.app.Error(code=code, reason="gone"), reply_to=message)
