"""The sites' side of Flower: a ClientApp that has a site's host do one task.

Flower starts a new process for every question, so what is slow to import is imported when a task needs it.
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
from fedaccord.engines.flower.envelope import Fields, data, open_sealed, own, seal, text
from fedaccord.engines.flower.keeper import ask_keeper
from fedaccord.engines.flower.site_folder import SiteFolder
from fedaccord.errors import ConfigError, EngineError, MessageError

if TYPE_CHECKING:
    from fedaccord.engines.engine import Host

SITE = "site"  # the key of a node's configuration that names its folder


def client_app(folder_of: Callable[[flwr.app.Context], Path]) -> ClientApp:
    """Return the app of a node whose site has the folder that `folder_of` says."""
    app = ClientApp()

    @app.query("who")
    def who(message: flwr.app.Message, context: flwr.app.Context) -> flwr.app.Message:
        folder = SiteFolder.open(folder_of(context))
        fields: Fields = {"site": folder.site, "deployment": folder.deployment, "fedaccord": __version__}
        return flwr.app.Message(seal(fields), reply_to=message)

    @app.train("task")
    def task(message: flwr.app.Message, context: flwr.app.Context) -> flwr.app.Message:
        folder, question = SiteFolder.open(folder_of(context)), open_sealed(message.content)
        return flwr.app.Message(seal(_answer_by_whoever_is_ready(folder, question)), reply_to=message)

    return app


def configured_folder(context: flwr.app.Context) -> Path:
    """Return the folder that the node was started with: `--node-config 'site="FOLDER"'`."""
    place = context.node_config.get(SITE)
    if not isinstance(place, str):
        raise ConfigError("the node was started without --node-config 'site=\"FOLDER\"'")
    return Path(place)


def _answer_by_whoever_is_ready(folder: SiteFolder, question: Fields) -> Fields:
    try:
        return ask_keeper(folder.path, question) or answer(folder, question)
    except EngineError as error:
        folder.log(f"{text(question, 'task')} failed: {error}")
        return {"site": folder.site, "reason": str(error)}


def answer(folder: SiteFolder, question: Fields) -> Fields:
    """Have the site do what it is asked; what goes wrong is told in a sentence, and its trace stays in the log here."""
    try:
        return {"site": folder.site} | _do(folder, question)
    except (Exception, SystemExit) as error:
        task = text(question, "task")
        folder.log(f"{task} failed: {type(error).__name__}: {error}\n{traceback.format_exc()}")
        return {"site": folder.site, "reason": f"{type(error).__name__}: {error}"}


def _do(folder: SiteFolder, question: Fields) -> Fields:
    import torch

    from fedaccord.engines.flower.memory import SiteMemories
    from fedaccord.messages.message import from_bytes, to_bytes

    task, site = text(question, "task"), text(question, "site")
    if site != folder.site:
        raise MessageError(f"the question is for site '{site}', this is '{folder.site}'")
    torch.set_num_threads(1)  # as every process that serves sites
    brief = own(from_bytes(data(question, "brief")))
    host = _host(str(folder.path), folder.path.joinpath("site.json").stat().st_mtime_ns)
    with torch.inference_mode(False), torch.enable_grad():
        if "memory" in question:
            reply, kept = host.handle(task, site, brief, own(from_bytes(data(question, "memory"))))
            return {"reply": to_bytes(reply), "memory": to_bytes(kept)}
        memories = SiteMemories(folder, text(question, "run"))
        version, wanted = text(question, "version"), text(question, "keep")
        reply, kept = host.handle(task, site, brief, own(memories.load(version)))
    encoded = to_bytes(reply)  # before anything is written: a reply that cannot be sent changes nothing
    made = memories.store(kept)
    if version:  # a server that goes on with a run asks who is there before it says from which memory
        memories.keep([made, version, *wanted.split(",")])
    return {"reply": encoded, "version": made}


@lru_cache(maxsize=64)
def _host(folder: str, written: int) -> Host:
    """Build a site's host once per process; one that serves many questions, as in a simulation, has it ready."""
    return SiteFolder.open(Path(folder)).build_host()


app = client_app(configured_folder)
"""What Flower's app folder names for the nodes of a deployment."""
