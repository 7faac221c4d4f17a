"""A second model in the same run: its rounds have a memory of their own at every site.

A brief that names a branch is answered with the part of the site's memory that belongs to the branch; the rest of the
memory does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from fedaccord.messages.message import Message

Value = TypeVar("Value")
BRANCH = "branch"
"""The word of a brief that names its branch; without it, the brief belongs to the run itself."""


def memory_in(brief: Message, memory: Message) -> Message:
    """Return the memory that a site answers a brief with."""
    if BRANCH not in brief.words:
        return memory
    prefix = _prefix(brief)
    return Message(_inside(memory.tensors, prefix), _inside(memory.numbers, prefix), _inside(memory.words, prefix))


def memory_after(brief: Message, memory: Message, changed: Message) -> Message:
    """Return a site's whole memory after it answered a brief and `changed` the brief's part of the memory."""
    if BRANCH not in brief.words:
        return changed
    prefix = _prefix(brief)
    return Message(
        _replaced(memory.tensors, changed.tensors, prefix),
        _replaced(memory.numbers, changed.numbers, prefix),
        _replaced(memory.words, changed.words, prefix),
    )


def without_branch(memory: Message, branch: str) -> Message:
    """Return a site's memory without a branch."""
    return memory_after(Message(words={BRANCH: branch}), memory, Message())


def _prefix(brief: Message) -> str:
    return f"{BRANCH}/{brief.words[BRANCH]}/"


def _inside(values: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    return {name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)}


def _replaced(values: Mapping[str, Value], changed: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    others = {name: value for name, value in values.items() if not name.startswith(prefix)}
    return others | {prefix + name: value for name, value in changed.items()}
