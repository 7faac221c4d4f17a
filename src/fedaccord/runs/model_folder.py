"""The model folder, which is sufficient to rebuild a trained model on any machine.

    model/
      model.safetensors   the global model: parameters, buffers and counters by name, readable by any safetensors reader
      model.json          how to rebuild it: network, labels, scaling of inputs, the file of each site
      sites/0000...       the private part of one site: differing tensors, view, prior, moments, estimated
                          correspondence, a head for its own label names
      README.txt          the same in words

Priors and personal layers are private and never sent. They are stored together here because the embedded engine runs
all sites for one user; to share the global model only, leave out `sites/`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from fedaccord import __version__
from fedaccord.data.dataset import BRIGHTEST
from fedaccord.data.features import FeaturePlan
from fedaccord.data.scaling import Moments
from fedaccord.data.site_data import SiteData
from fedaccord.data.sites import FederationData
from fedaccord.federation.experts import stored_experts
from fedaccord.federation.host import PERSONAL
from fedaccord.federation.recipe import Recipe
from fedaccord.federation.server import Server
from fedaccord.federation.sharing import MODEL
from fedaccord.federation.site_views import answering_offset, evaluation_view, site_view
from fedaccord.hosting import build_network
from fedaccord.labels.correspondence import CORRESPONDENCE
from fedaccord.labels.views.likelihoods import PRIOR
from fedaccord.messages.message import Message, SiteId, to_bytes
from fedaccord.models.layout import Layout, load_tensors, named_tensors
from fedaccord.models.network import OWN_ENCODER, OWN_HEAD, Network, use_channels_last
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.page import asset

FORMAT = 1
OFFSET, MOMENTS = "offset", "moments"  # in a site's file


class ModelSpec(BaseModel):
    """The network: its name, settings and the shape of one sample."""

    name: str
    settings: dict[str, Any]
    input_shape: list[int]


class Inputs(BaseModel):
    """How raw samples are converted to inputs of the network."""

    features: FeaturePlan | None = None  # only for tables
    header: list[str] | None = None  # columns of tables whose files have no header line
    brightest: int = BRIGHTEST  # value of a white pixel in images of bytes
    moments: dict[str, Any] | None = None  # pooled over sites, unless the features of tables have them

    def scaling(self) -> Moments | None:
        """Return the moments for computations."""
        return None if self.moments is None else Moments(**{k: np.asarray(part) for k, part in self.moments.items()})


class Description(BaseModel):
    """`model.json`."""

    format: int
    fedaccord: str
    model: ModelSpec
    method: str
    common: bool  # False: every site trained alone, so there is no global model
    tags: bool  # a sample may have several labels
    labels: list[str]
    inputs: Inputs
    sites: dict[SiteId, str]  # numbered files, because names may contain any character
    layout: list[dict[str, Any]]


@dataclass(frozen=True)
class SiteState:
    """A site at the end of a run: its samples, the brief of the final model, its memory and its moments."""

    site: SiteData
    brief: Message
    memory: Message
    known: Tensor  # bool (labels,): the labels that it informs
    moments: Moments | None = None


def write_model_folder(
    folder: RunFolder,
    server: Server,
    data: FederationData,
    model: Mapping[str, Any],
    method: str,
    header: Sequence[str] | None,
    local: Collection[SiteId],
) -> None:
    """Write the trained model of a run, the private parts of `local` sites that took part and, last, `model.json`."""
    network = build_network(model, data.space.names, server.recipe, server.seed)
    use_channels_last(network)  # as at the sites, so that priors estimated here are bit-identical to theirs
    initial = {name: tensor.detach().clone() for name, tensor in named_tensors(network).items()}
    memories, scaling = server.engine.memories(), data.scaling()
    joined = [name for name in sorted(data.sites) if name in server.cards]
    private = [name for name in joined if name in local]
    files = {name: f"sites/{number:04d}.safetensors" for number, name in enumerate(private)}
    for name, file in files.items():
        brief, known = server.brief(name, server.tensors), server.cards[name].informs
        memory = memories.get(name, Message())
        state = SiteState(data.sites[name], brief, memory, known, scaling.get(name))
        part = site_part(state, server.recipe, server.layout, network, initial, server.tensors)
        folder.write(f"model/{file}", to_bytes(part))
    teaching = [data.sites[name].view for name in joined if bool(server.cards[name].informs.any())]
    description = Description(
        format=FORMAT,
        fedaccord=__version__,
        model=ModelSpec(**model),
        method=method,
        common=server.recipe.aggregator is not None,
        tags=bool(teaching) and not any(view.one_label for view in teaching),
        labels=list(data.space.names),
        inputs=inputs_of(data, header, data.pooled_moments()),
        sites=files,
        layout=server.layout.describe(),
    )
    folder.write("model/model.safetensors", to_bytes(Message(dict(server.tensors))))
    folder.write("model/README.txt", asset("model_readme.txt"))
    folder.write_json("model/model.json", description.model_dump(mode="json"))


def inputs_of(data: FederationData, header: Sequence[str] | None, moments: Moments | None) -> Inputs:
    """Describe how rows become inputs; `moments` are those that arrays are scaled with."""
    return Inputs(
        features=data.features,
        header=None if header is None else list(header),
        brightest=data.brightest,
        moments=None if moments is None else {name: part.tolist() for name, part in vars(moments).items()},
    )


def site_part(
    state: SiteState,
    recipe: Recipe,
    layout: Layout,
    network: Network,
    initial: Mapping[str, Tensor],
    common: Mapping[str, Tensor],
) -> Message:
    """Return the private part of a site: tensors that differ from `common`, its view, prior, moments and own head."""
    site, memory, brief = state.site, state.memory, state.brief
    shared = recipe.sharing.incoming(layout, brief.tensors, common, state.known)
    values = {**initial, **memory.select(PERSONAL), **shared}
    load_tensors(network, values)
    view = site_view(site, recipe, memory, brief)
    # A site without a stored prior finds its offset for every model that it receives.
    stored = memory.tensors.get(PRIOR)
    prior = answering_offset(site, view, network, recipe.settings) if stored is None else stored
    offset = evaluation_view(site, view if prior is None else view.with_offset(prior)).offset
    part = Message(words={"site": site.name, "view": json.dumps(site.view.describe(), ensure_ascii=False)})
    part.put(MODEL, {key: value for key, value in values.items() if not torch.equal(value.cpu(), common[key].cpu())})
    if offset is not None:
        part.tensors[OFFSET] = offset
    if view.estimated:
        part.tensors[CORRESPONDENCE] = view.matrix if view.is_known else torch.zeros(0)  # empty: not estimated
    part.put(OWN_HEAD, brief.select(OWN_HEAD) or memory.select(OWN_HEAD))
    part.put(OWN_ENCODER, brief.select(OWN_ENCODER))
    if (experts := stored_experts(memory)) is not None:
        experts.store(part)
    if state.moments is not None:
        part.put(MOMENTS, {key: torch.from_numpy(np.asarray(v)) for key, v in vars(state.moments).items()})
    return part
