"""The Flower ClientApp of a site, which runs one task with the site's host.

Slow modules are imported when a task needs them, because the node's SuperNode needs none while it has a keeper.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import flwr.app
from flwr.clientapp import ClientApp

from fedaccord import __version__
from fedaccord.engines.flower.envelope import Fields, cloned, data, open_sealed, seal, text
from fedaccord.engines.flower.node import ask_keeper
from fedaccord.engines.flower.site_folder import SiteFolder
from fedaccord.errors import ConfigError, EngineError, MessageError, described

if TYPE_CHECKING:
    from fedaccord.engines.engine import Host

SITE = "site"  # key of the node configuration that holds the path of the site's folder


def client_app(folder_of: Callable[[flwr.app.Context], Path]) -> ClientApp:
    """Return the app of a node; `folder_of` returns the path of its site's folder."""
    app = ClientApp()

    @app.query("who")
    def who(message: flwr.app.Message, context: flwr.app.Context) -> flwr.app.Message:
        folder = SiteFolder.open(folder_of(context))
        fields: Fields = {"site": folder.site, "deployment": folder.deployment, "fedaccord": __version__}
        return flwr.app.Message(seal(fields), reply_to=message)

    @app.train("task")
    def task(message: flwr.app.Message, context: flwr.app.Context) -> flwr.app.Message:
        folder, question = SiteFolder.open(folder_of(context)), open_sealed(message.content)
        return flwr.app.Message(seal(_answer_by_keeper_or_here(folder, question)), reply_to=message)

    return app


def configured_folder(context: flwr.app.Context) -> Path:
    """Return the folder in the node's configuration: `--node-config 'site="FOLDER"'`."""
    place = context.node_config.get(SITE)
    if not isinstance(place, str):
        raise ConfigError("the node was started without --node-config 'site=\"FOLDER\"'")
    return Path(place)


def _answer_by_keeper_or_here(folder: SiteFolder, question: Fields) -> Fields:
    try:
        return ask_keeper(folder.path, question) or answer(folder, question)
    except EngineError as error:
        folder.log(f"{text(question, 'task')} failed: {error}")
        return {"site": folder.site, "reason": str(error)}


def answer(folder: SiteFolder, question: Fields) -> Fields:
    """Run the task of a question; return an error as one sentence, and write its trace to the site's log."""
    try:
        return {"site": folder.site} | _run(folder, question)
    except (Exception, SystemExit) as error:
        reason = described(error)
        folder.log(f"{text(question, 'task')} failed: {reason}\n{traceback.format_exc()}")
        return {"site": folder.site, "reason": reason}


def _run(folder: SiteFolder, question: Fields) -> Fields:
    import torch

    from fedaccord.engines.flower.memory import SiteMemories
    from fedaccord.messages.message import from_bytes, to_bytes

    task, site = text(question, "task"), text(question, "site")
    if site != folder.site:
        raise MessageError(f"the question is for site '{site}', this is '{folder.site}'")
    torch.set_num_threads(1)  # as in all engines
    brief = cloned(from_bytes(data(question, "brief")))
    host = _host(str(folder.path), folder.written())
    with torch.inference_mode(False), torch.enable_grad():
        if "memory" in question:
            reply, memory = host.handle(task, site, brief, cloned(from_bytes(data(question, "memory"))))
            return {"reply": to_bytes(reply), "memory": to_bytes(memory)}
        memories = SiteMemories(folder, text(question, "run"))
        version, needed = text(question, "version"), text(question, "keep")
        reply, memory = host.handle(task, site, brief, cloned(memories.load(version)))
    encoded = to_bytes(reply)  # before the memory is stored: a reply that cannot be encoded changes nothing
    new_version = memories.store(memory)
    if version:  # a server that resumes a run first sends questions without a version
        memories.remove_all_but([new_version, version, *needed.split(",")])
    return {"reply": encoded, "version": new_version}


@lru_cache(maxsize=64)
def _host(folder: str, written: tuple[int, ...]) -> Host:
    """Build a site's host once per process, because a process of a simulation answers many questions."""
    return SiteFolder.open(Path(folder)).build_host()


app = client_app(configured_folder)
"""The ClientApp of a deployment, named in its Flower app folder."""
