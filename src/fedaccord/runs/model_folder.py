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

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from fedaccord import __version__
from fedaccord.data.dataset import BRIGHTEST, Array, to_samples
from fedaccord.data.features import FeaturePlan
from fedaccord.data.scaling import Moments, apply_moments, pool_moments
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import Table
from fedaccord.durable import read_bytes
from fedaccord.errors import (
    ConfigError,
    DataError,
    MessageError,
    RunFolderError,
    UntrustedError,
    UserError,
    did_you_mean,
)
from fedaccord.extensions import is_outside, trusting
from fedaccord.federation.host import PERSONAL
from fedaccord.federation.server import Server
from fedaccord.federation.sharing import MODEL
from fedaccord.federation.site_views import estimate_prior, evaluation_view, site_view
from fedaccord.hosting import build_network
from fedaccord.labels.correspondence import CORRESPONDENCE
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact, Tags, View, make_view
from fedaccord.labels.views.likelihoods import PRIOR
from fedaccord.messages.message import Message, SiteId, from_bytes, to_bytes
from fedaccord.models.catalogue import build
from fedaccord.models.layout import Layout, named_tensors
from fedaccord.models.network import (
    OWN_ENCODER,
    OWN_HEAD,
    Network,
    insert_personal_layer,
    predict_logits,
    use_channels_last,
    with_own_head,
)
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.page import asset
from fedaccord.runs.reading import parse

FORMAT = 1
_OFFSET, _MOMENTS = "offset", "moments"  # in a site's file


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
    moments: dict[str, Any] | None = None  # pooled over sites, if each site scales its samples itself


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
class SiteModel:
    """The private part of one site."""

    tensors: dict[str, Tensor]  # those that differ from the global model's
    view: View  # with the site's prior
    moments: Moments | None
    head: dict[str, Tensor]  # for the site's own label names, if the method trains one
    encoder: dict[str, Tensor]  # of that head, if it differs from the global model's


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
    memories = server.engine.memories()
    joined = [name for name in sorted(data.sites) if name in server.cards]
    private = [name for name in joined if name in local]
    files = {name: f"sites/{number:04d}.safetensors" for number, name in enumerate(private)}
    for name, file in files.items():
        part = _site_part(name, server, data, network, initial, memories.get(name, Message()))
        folder.write(f"model/{file}", to_bytes(part))
    teaching = [data.sites[name].view for name in joined if bool(server.cards[name].informs.any())]
    pooled = pool_moments(list(data.moments.values())) if data.moments else None
    description = Description(
        format=FORMAT,
        fedaccord=__version__,
        model=ModelSpec(**model),
        method=method,
        common=server.recipe.aggregator is not None,
        tags=bool(teaching) and not any(view.one_label for view in teaching),
        labels=list(data.space.names),
        inputs=Inputs(
            features=data.features,
            header=None if header is None else list(header),
            brightest=data.brightest,
            moments=None if pooled is None else {name: part.tolist() for name, part in vars(pooled).items()},
        ),
        sites=files,
        layout=server.layout.describe(),
    )
    folder.write("model/model.safetensors", to_bytes(Message(dict(server.tensors))))
    folder.write("model/README.txt", asset("model_readme.txt"))
    folder.write_json("model/model.json", description.model_dump(mode="json"))


def _site_part(
    name: SiteId, server: Server, data: FederationData, network: Network, initial: dict[str, Tensor], memory: Message
) -> Message:
    common, site, settings = server.tensors, data.sites[name], server.recipe.settings
    brief, known = server.brief(name, common), server.cards[name].informs
    shared = server.recipe.sharing.incoming(server.layout, brief.tensors, common, known)
    values = {**initial, **memory.select(PERSONAL), **shared}
    _load(network, values)
    view = site_view(site, server.recipe, memory, brief)
    # A site that never trained has no stored prior; it estimates one with every model that it receives.
    prior = memory.tensors[PRIOR] if PRIOR in memory.tensors else estimate_prior(site, view, network, settings)
    offset = evaluation_view(site, view if prior is None else view.with_offset(prior)).offset
    part = Message(words={"site": name, "view": json.dumps(site.view.describe(), ensure_ascii=False)})
    part.put(MODEL, {key: value for key, value in values.items() if not torch.equal(value.cpu(), common[key].cpu())})
    if offset is not None:
        part.tensors[_OFFSET] = offset
    if view.estimated:
        part.tensors[CORRESPONDENCE] = view.matrix if view.is_known else torch.zeros(0)  # empty: not estimated
    part.put(OWN_HEAD, brief.select(OWN_HEAD) or memory.select(OWN_HEAD))
    part.put(OWN_ENCODER, brief.select(OWN_ENCODER))
    if name in data.moments:
        part.put(_MOMENTS, {key: torch.from_numpy(np.asarray(v)) for key, v in vars(data.moments[name]).items()})
    return part


class TrainedModel:
    """A trained model, rebuilt from its folder: the global one, and that of each site."""

    def __init__(self, folder: Path, description: Description, model: Message, trust: Iterable[str]) -> None:
        self.folder, self.description, self.tensors, self._trust = folder, description, model.tensors, tuple(trust)
        self.space = LabelSpace(description.labels)
        self._sites: dict[SiteId, SiteModel] = {}
        self._ready: tuple[tuple[SiteId | None, bool], Network] | None = None  # the last network used

    @classmethod
    def load(cls, folder: Path, trust: Iterable[str] = ()) -> TrainedModel:
        """Read a model folder, or that of a run folder; raise RunFolderError if it is neither or is damaged.

        A folder may name code outside FedAccord, for its network or a site's view. It runs only if its package is in
        `trust`; otherwise what needs it raises UntrustedError.
        """
        place = folder if (folder / "model.json").exists() else folder / "model"
        if not (place / "model.json").exists():
            if not (folder / "config.toml").exists():
                raise RunFolderError(f"'{folder}' is neither a run folder nor a model folder: it has no model.json")
            hint = f"if it was interrupted, go on with: fedaccord resume {folder}"
            raise RunFolderError(f"the run in '{folder}' has no model yet; {hint}")
        return cls(place, _read_description(place / "model.json"), _read(place / "model.safetensors"), trust)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes of the federation, in the order of the columns."""
        return self.space.names

    @property
    def sites(self) -> tuple[SiteId, ...]:
        """The sites whose models are in the folder."""
        return tuple(self.description.sites)

    def site(self, name: SiteId) -> SiteModel:
        """Return the private part of a site; raise UserError with the closest name for an unknown site."""
        if name not in self.description.sites:
            raise UserError(f"the model has no site '{name}'; {did_you_mean(name, self.sites)}")
        if name not in self._sites:
            # Only the file name, so that a manipulated model.json cannot refer to files outside the folder.
            path = self.folder / "sites" / Path(self.description.sites[name]).name
            with trusting(self._trust):
                self._sites[name] = _site_model(_read(path), self.space, path)
        return self._sites[name]

    def network(self, site: SiteId | None = None, answers: str = "classes") -> Network:
        """Build the global model, or a site's model, in evaluation mode; every call returns a new network.

        For answers in a site's own names it has the site's head for them, if the method trains one.
        """
        if site is None and not self.description.common:
            hint = f"name one of its sites: {', '.join(self.sites[:12])}"
            raise UserError(f"the method '{self.description.method}' trains no global model; {hint}")
        network = self._build()
        head = self._head(site, answers)
        try:
            _load(network, self.tensors | ({} if site is None else self.site(site).tensors))
            network = with_own_head(network, head, self.site(site).encoder) if site is not None and head else network
        except (KeyError, RuntimeError) as error:
            raise RunFolderError(f"the tensors in '{self.folder}' are not those of its model: {error}") from None
        use_channels_last(network)  # as in training, so that predictions are bit-identical
        return network.eval()

    def view(self, site: SiteId | None = None, answers: str = "classes") -> View:
        """Return the view that turns logits into answers: in the federation's classes, or in a site's own names."""
        if answers not in ("classes", "own"):
            raise UserError(f"answers are 'classes' or 'own', not '{answers}'")
        if site is None:
            if answers == "own":
                raise UserError("own answers need the name of a site")
            return Tags(self.space) if self.description.tags else Exact(self.space)
        view = self.site(site).view
        if self._head(site, answers):
            return Exact(LabelSpace(view.answers))
        if answers == "own" and not view.is_known:
            raise UserError(f"the correspondence of site '{site}' was not estimated; ask for answers in classes")
        return view.in_classes() if answers == "classes" else view

    def inputs(self, x: Array, site: SiteId | None = None) -> Tensor:
        """Scale raw samples (n, ...) as for training: by the moments of a site, or pooled over all sites."""
        spec = self.description
        samples = to_samples(x, "x", spec.inputs.brightest)
        if list(samples.shape[1:]) != spec.model.input_shape:
            trained = f"those the model was trained on {tuple(spec.model.input_shape)}"
            raise DataError(f"the samples have shape {samples.shape[1:]}, {trained}")
        pooled = {name: np.asarray(part) for name, part in (spec.inputs.moments or {}).items()}
        moments = (Moments(**pooled) if pooled else None) if site is None else self.site(site).moments
        return torch.from_numpy(apply_moments(samples, moments))

    def encode(self, table: Table) -> tuple[Tensor, dict[str, int]]:
        """Encode the rows of a table as features, and count the cells without a known value by column."""
        if self.description.inputs.features is None:
            raise DataError("the model was trained on arrays, not columns; give samples as the array x of an .npz file")
        x, gaps = self.description.inputs.features.encode(table)
        return torch.from_numpy(x), gaps

    def predict(self, x: Tensor, site: SiteId | None = None, answers: str = "classes") -> Tensor:
        """Return the probabilities of all answers, (n, answers), for inputs of the network."""
        return self.view(site, answers).answer(self.logits(x, site, answers))

    def logits(self, x: Tensor, site: SiteId | None = None, answers: str = "classes") -> Tensor:
        """Return the logits of the network, without a site's prior."""
        key = (site, bool(self._head(site, answers)))
        if self._ready is None or self._ready[0] != key:
            self._ready = (key, self.network(site, answers))
        return predict_logits(self._ready[1], x)

    def _head(self, site: SiteId | None, answers: str) -> dict[str, Tensor]:
        """Return a site's head for its own names; empty if answers come from the global head."""
        return self.site(site).head if site is not None and answers == "own" else {}

    def _build(self) -> Network:
        spec = self.description.model
        try:
            with trusting(self._trust):
                network = build(spec.name, spec.settings, spec.input_shape, len(self.space), 0)
        except UntrustedError:
            raise
        except ConfigError as error:
            hint = "; the code it was trained with must be importable here" if is_outside(spec.name, "models") else ""
            raise UserError(f"the model in '{self.folder}' cannot be rebuilt: {error}{hint}") from None
        if any(slot["part"] == "personal" for slot in self.description.layout):
            insert_personal_layer(network)
        if Layout.of(network).describe() != self.description.layout:
            problem = f"'{spec.name}' has other parameters here than it had when it was trained"
            raise UserError(f"the model in '{self.folder}' cannot be rebuilt: {problem}")
        return network


def _site_model(part: Message, space: LabelSpace, path: Path) -> SiteModel:
    try:
        view = make_view(json.loads(part.words["view"]), space)
        if CORRESPONDENCE in part.tensors:
            matrix = part.tensors[CORRESPONDENCE]
            view = view.with_matrix(matrix if matrix.numel() else None)
        view = view.with_offset(part.tensors.get(_OFFSET))
        moments = {name: tensor.numpy() for name, tensor in part.select(_MOMENTS).items()}
        heads = part.select(OWN_HEAD), part.select(OWN_ENCODER)
        return SiteModel(part.select(MODEL), view, Moments(**moments) if moments else None, *heads)
    except UntrustedError:
        raise
    except (KeyError, ValueError, TypeError) as error:
        raise RunFolderError(f"'{path}' was not written by a run: {error}") from None


def _read_description(path: Path) -> Description:
    raw = read_bytes(path, RunFolderError)
    with contextlib.suppress(ValueError, AttributeError):
        if (found := json.loads(raw).get("format")) != FORMAT:
            raise RunFolderError(f"'{path}' has format {found}, this version of FedAccord reads {FORMAT}")
    return parse(raw, Description, f"'{path}'")


def _read(path: Path) -> Message:
    try:
        return from_bytes(read_bytes(path, RunFolderError))
    except MessageError as error:
        raise RunFolderError(f"'{path}' is damaged: {error}") from None


@torch.no_grad()
def _load(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, tensor in named_tensors(network).items():
        tensor.copy_(values[name].reshape(tensor.shape))  # without reshape, a single value would fill the tensor
