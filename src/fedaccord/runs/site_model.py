"""The model of one site of a deployment, from the site's own folder.

The folder has the final model that the server sent, the site's personal parts and prior, its samples, and how rows
become inputs. Nothing of it has left the site.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedaccord import __version__
from fedaccord.engines.flower.memory import SiteMemories, stored_memories
from fedaccord.engines.flower.site_folder import SiteFolder
from fedaccord.errors import EngineError, MessageError, RunFolderError
from fedaccord.federation.final_model import final_brief
from fedaccord.federation.host import SiteHost
from fedaccord.labels.space import LabelSpace
from fedaccord.messages.message import Message
from fedaccord.models.layout import named_tensors
from fedaccord.runs.model_folder import FORMAT, Description, Inputs, ModelSpec, SiteState, site_part

SITE_FILE = "site.json"
INPUTS = "inputs"  # the key of `site.json` that `fedaccord deploy` adds to the description of the host


def read_site_folder(path: Path) -> tuple[Description, Message, Message, list[str]]:
    """Return the description of a site's model, the tensors it starts from, the site's part, and the trusted packages.

    Raise RunFolderError if no run has left its final model in the folder.
    """
    folder = SiteFolder.open(path)
    if INPUTS not in folder.spec:
        raise RunFolderError(f"'{path}' was written by an earlier version of `fedaccord deploy`, without its features")
    brief, memory = _final_model(folder)
    spec: dict[str, Any] = folder.spec | {"device": "cpu"}
    host = replace(folder, spec=spec).build_host()
    assert isinstance(host, SiteHost)
    site, inputs = host.sites[folder.site], Inputs.model_validate(spec[INPUTS])
    initial = {name: tensor.detach().clone() for name, tensor in named_tensors(host.network).items()}
    state = SiteState(site, brief, memory, host.informs[folder.site], inputs.scaling())
    part = site_part(state, host.recipe, host.layout, host.network, initial, initial)
    description = Description(
        format=FORMAT,
        fedaccord=__version__,
        model=ModelSpec(**spec["model"]),
        method=spec["method"],
        common=False,  # the site may have rows of its own labels only
        tags=not site.view.one_label,
        labels=list(LabelSpace(spec["labels"]).names),
        inputs=inputs,
        sites={folder.site: ""},
        layout=host.layout.describe(),
    )
    return description, Message(initial), part, folder.trust


def _final_model(folder: SiteFolder) -> tuple[Message, Message]:
    """Return the brief of the newest final model in a site's folder, and the site's memory at that time."""
    for run, version in stored_memories(folder):
        with contextlib.suppress(EngineError, MessageError):  # a damaged file is in the site's log
            memory = SiteMemories(folder, run).load(version)
            brief = final_brief(memory)
            if brief is not None:
                return brief, memory
    raise RunFolderError(
        f"site '{folder.site}' has no final model in '{folder.path}'; it receives one when a run ends and its node is "
        "connected"
    )
