"""A second model in the same run: its rounds have a memory of their own at every site.

A brief that names a branch is answered with the part of the site's memory that belongs to the branch; the rest of the
memory does not change. A branch whose model stays at the site is trained there from round to round and never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from fedaccord.messages.message import Message

Value = TypeVar("Value")
BRANCH = "branch"
"""The word of a brief that names its branch; without it, the brief belongs to the run itself."""
ROUNDS = "rounds of the branch"
"""The number in a brief of a branch that the learning-rate schedule counts to."""
STAYS = "model stays"
"""The word of a brief without a model: the site trains its own model of the branch and stores it in its memory."""


def memory_in(brief: Message, memory: Message) -> Message:
    """Return the memory that a site answers a brief with."""
    return branch_memory(memory, brief.words[BRANCH]) if BRANCH in brief.words else memory


def memory_after(brief: Message, memory: Message, changed: Message) -> Message:
    """Return a site's whole memory after it answered a brief and `changed` the brief's part of the memory."""
    return with_branch(memory, brief.words[BRANCH], changed) if BRANCH in brief.words else changed


def branch_memory(memory: Message, branch: str) -> Message:
    """Return the part of a site's memory that belongs to a branch."""
    prefix = _prefix(branch)
    return Message(_inside(memory.tensors, prefix), _inside(memory.numbers, prefix), _inside(memory.words, prefix))


def with_branch(memory: Message, branch: str, changed: Message) -> Message:
    """Return a site's memory with another part for a branch; an empty message removes the branch."""
    prefix = _prefix(branch)
    return Message(
        _replaced(memory.tensors, changed.tensors, prefix),
        _replaced(memory.numbers, changed.numbers, prefix),
        _replaced(memory.words, changed.words, prefix),
    )


def _prefix(branch: str) -> str:
    return f"{BRANCH}/{branch}/"


def _inside(values: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}


def _replaced(values: Mapping[str, Value], changed: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    others = {name: value for name, value in values.items() if not name.startswith(prefix)}
    return others | {prefix + name: value for name, value in changed.items()}
