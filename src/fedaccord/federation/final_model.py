"""The final model at the sites of a deployment: the server sends it at the end of a run, and each site keeps it.

A site's memory then has everything that its own predictions need: the parts of the model that are shared, as the site
would receive them in the next round, beside its personal parts and its prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from fedaccord.federation.server import Server
from fedaccord.messages.message import Failure, Message

Value = TypeVar("Value")
KEEP = "keep"  # the name of the task
_PREFIX = "kept/"  # of names in a site's memory
PATIENCE = 60.0  # seconds that the server waits for the sites, if the run has no deadline


def send_final_model(server: Server) -> list[str]:
    """Send every site that has joined its part of the final model; return a sentence on each site without it."""
    round_ = server.state.round
    briefs = {site: server.address(server.brief(site, server.tensors), round_) for site in sorted(server.cards)}
    answers = server.engine.ask(KEEP, briefs, PATIENCE if server.deadline is None else server.deadline)
    failed = [answer for answer in answers.values() if isinstance(answer, Failure)]
    return [f"site '{f.site}' has not received the final model, so it cannot predict: {f.reason}" for f in failed]


def with_final_model(memory: Message, brief: Message) -> Message:
    """Return a site's memory with a brief of the final model."""
    return Message(
        memory.tensors | {_PREFIX + name: tensor for name, tensor in brief.tensors.items()},
        memory.numbers | {_PREFIX + name: number for name, number in brief.numbers.items()},
        memory.words | {_PREFIX + name: word for name, word in brief.words.items()},
    )


def final_brief(memory: Message) -> Message | None:
    """Return the brief of the final model in a site's memory; None if it has none."""
    brief = Message(_kept(memory.tensors), _kept(memory.numbers), _kept(memory.words))
    return None if brief.is_empty() else brief


def _kept(part: Mapping[str, Value]) -> dict[str, Value]:
    return {name.removeprefix(_PREFIX): value for name, value in part.items() if name.startswith(_PREFIX)}
