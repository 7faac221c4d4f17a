"""The model folder: alone enough to rebuild a trained model, on this machine or another.

    model/
      model.safetensors   the common model: parameters, buffers and counters by name; any safetensors reader opens it
      model.json          how to rebuild it: network, labels, how inputs are scaled, which site has which file
      sites/0000...       what one site has of its own: where its model differs, its view, its prior, its moments,
                          what its coarse names were found to stand for, a head for its own names
      README.txt          the same in words

A site's prior and personal layers are its own and are never sent. Here they lie beside each other because the embedded
engine runs all sites for one person, whose folder this is; whoever passes the common model on leaves out `sites/`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from fedaccord import __version__
from fedaccord.data.dataset import BRIGHTEST, Array, to_samples
from fedaccord.data.features import FeaturePlan
from fedaccord.data.scaling import Moments, apply_moments, pool_moments
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import Table
from fedaccord.errors import (
    ConfigError,
    DataError,
    MessageError,
    RunFolderError,
    UntrustedError,
    UserError,
    did_you_mean,
)
from fedaccord.extensions import trusting
from fedaccord.federation.host import PERSONAL, PRIOR, estimate_prior, evaluation_view, site_view
from fedaccord.federation.server import Server
from fedaccord.federation.sharing import MODEL
from fedaccord.hosting import build_network
from fedaccord.labels.estimation import CORRESPONDENCE
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact, Tags, View, make_view
from fedaccord.messages.message import Message, SiteId, from_bytes
from fedaccord.models.catalogue import build
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network, insert_personal_layer, use_channels_last
from fedaccord.models.own_head import OWN_ENCODER, OWN_HEAD, with_own_head
from fedaccord.models.predicting import predict_logits
from fedaccord.models.registry import is_factory
from fedaccord.runs.folder import RunFolder

FORMAT = 1
ANSWERS = ("classes", "own")
_OFFSET, _MOMENTS = "offset", "moments"  # in a site's file


class ModelSpec(BaseModel):
    """Which network it is."""

    name: str
    settings: dict[str, Any]
    input_shape: list[int]


class Inputs(BaseModel):
    """How raw samples become what the network takes."""

    features: FeaturePlan | None = None  # of tables
    header: list[str] | None = None  # of the sites' tables, where the files have none
    brightest: int = BRIGHTEST  # the value of a white pixel in images of bytes
    moments: dict[str, Any] | None = None  # of all sites' rows together, where each site scaled its own by its own


class Description(BaseModel):
    """`model.json`."""

    format: int
    fedaccord: str
    model: ModelSpec
    method: str
    common: bool  # False: every site trained alone, and there is no common model
    tags: bool  # a sample may have several labels at once
    labels: list[str]
    inputs: Inputs
    sites: dict[SiteId, str]  # numbered files, for a name may hold any character
    layout: list[dict[str, Any]]


@dataclass(frozen=True)
class SiteModel:
    """What one site has of its own.

    Tensors in which its model differs, its view with its prior, its moments, and a head for its own names where the
    method trains one, with the encoder below it where that is no longer the common one.
    """

    tensors: dict[str, Tensor]
    view: View
    moments: Moments | None
    head: dict[str, Tensor] = field(default_factory=dict)
    encoder: dict[str, Tensor] = field(default_factory=dict)


def write_model_folder(
    folder: RunFolder,
    server: Server,
    data: FederationData,
    model: Mapping[str, Any],
    method: str,
    header: Sequence[str] | None = None,
    own: Collection[SiteId] | None = None,
) -> None:
    """Write the trained model of a run, with what sites that took part have of their own: all, or those in `own`."""
    network = build_network(model, data.space.names, server.recipe, server.seed)
    use_channels_last(network)  # as at the sites, so that priors estimated here are bit-identical to theirs
    initial = {name: tensor.detach().clone() for name, tensor in _tensors(network).items()}
    memories = server.engine.memories()
    joined = [name for name in sorted(data.sites) if name in server.cards]
    names = [name for name in joined if own is None or name in own]
    sites = {name: _own(name, server, data, network, initial, memories.get(name, Message())) for name in names}
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
        sites={name: f"sites/{number:04d}.safetensors" for number, name in enumerate(names)},
        layout=server.layout.describe(),
    )
    files = {description.sites[name]: message for name, message in sites.items()}
    folder.write_model(server.tensors, description.model_dump(mode="json"), files)


def _own(
    name: SiteId,
    server: Server,
    data: FederationData,
    network: Network,
    initial: Mapping[str, Tensor],
    memory: Message,
) -> Message:
    common, site, settings = server.tensors, data.sites[name], server.recipe.settings
    brief, known = server.brief(name, common), server.cards[name].informs
    shared = server.recipe.sharing.incoming(server.layout, brief.tensors, common, known)
    values = {**initial, **memory.select(PERSONAL), **shared}
    _put(network, values)
    view = site_view(site, server.recipe, memory, brief)
    # A site that never trained keeps no prior, and estimates it with every model it is sent.
    prior = memory.tensors[PRIOR] if PRIOR in memory.tensors else estimate_prior(site, view, network, settings)
    offset = evaluation_view(site, view if prior is None else view.with_offset(prior)).offset
    own = Message(words={"site": name, "view": json.dumps(site.view.describe(), ensure_ascii=False)})
    own.put(MODEL, {key: value for key, value in values.items() if not torch.equal(value.cpu(), common[key].cpu())})
    if offset is not None:
        own.tensors[_OFFSET] = offset
    if view.estimated:
        own.tensors[CORRESPONDENCE] = view.matrix if view.is_known else torch.zeros(0)  # empty: never found out
    own.put(OWN_HEAD, brief.select(OWN_HEAD) or memory.select(OWN_HEAD))
    own.put(OWN_ENCODER, brief.select(OWN_ENCODER))
    if name in data.moments:
        own.put(_MOMENTS, {key: torch.from_numpy(np.asarray(v)) for key, v in vars(data.moments[name]).items()})
    return own


class TrainedModel:
    """A trained model, rebuilt from its folder: the common one, and each site's own."""

    def __init__(
        self, folder: Path, description: Description, tensors: dict[str, Tensor], trust: Iterable[str] = ()
    ) -> None:
        self.folder, self.description, self.tensors = folder, description, tensors
        self._trust = tuple(trust)
        self.space = LabelSpace(description.labels)
        self._own: dict[SiteId, SiteModel] = {}
        self._ready: tuple[tuple[SiteId | None, bool], Network] | None = None  # the network last predicted with

    @classmethod
    def load(cls, folder: Path, trust: Iterable[str] = ()) -> TrainedModel:
        """Read a model folder, or that of a run folder; RunFolderError where it is none or damaged.

        Code of the packages in `trust` may run, e.g. that of a site's view. The network of "package.module:factory" is
        built by that code, so load such folders only from whom you trust.
        """
        place = folder if (folder / "model.json").exists() else folder / "model"
        if not (place / "model.json").exists():
            if (folder / "config.toml").exists():
                hint = f"if it was cut off, go on with: fedaccord resume {folder}"
                raise RunFolderError(f"the run in '{folder}' has no model yet; {hint}")
            raise RunFolderError(f"'{folder}' is neither a run folder nor a model folder: it has no model.json")
        return cls(place, _read_description(place / "model.json"), _read(place / "model.safetensors").tensors, trust)

    @property
    def labels(self) -> tuple[str, ...]:
        """The federation's class names, in the order of the columns."""
        return self.space.names

    @property
    def sites(self) -> tuple[SiteId, ...]:
        """The sites that have a model of their own here."""
        return tuple(self.description.sites)

    def site(self, name: SiteId) -> SiteModel:
        """Return what a site has of its own; an unknown one is an error that says the closest."""
        if name not in self.description.sites:
            raise UserError(f"the model has no site '{name}'; {did_you_mean(name, self.sites)}")
        if name not in self._own:
            # Only the file's name is taken from model.json: a foreign one must not lead out of the folder.
            path = self.folder / "sites" / Path(self.description.sites[name]).name
            with trusting(self._trust):
                self._own[name] = _site_model(_read(path), self.space, path)
        return self._own[name]

    def network(self, site: SiteId | None = None, answers: str = "classes") -> Network:
        """Build the common model, or a site's own with its personal layers; in evaluation mode, new with every call.

        For a site's own answers it has the head that the site trained for them, if it did.
        """
        if site is None and not self.description.common:
            hint = f"name one of its sites: {', '.join(self.sites[:12])}"
            raise UserError(f"the method '{self.description.method}' trains no common model; {hint}")
        network = self._build()
        own = {} if site is None else self.site(site).tensors
        head = self._head(site, answers)
        try:
            _put(network, {**self.tensors, **own})
            network = with_own_head(network, head, self.site(site).encoder) if site is not None and head else network
        except (KeyError, RuntimeError) as error:
            raise RunFolderError(f"the tensors in '{self.folder}' are not those of its model: {error}") from None
        use_channels_last(network)  # as at the server and the sites, so that a prediction is theirs to the last bit
        return network.eval()

    def view(self, site: SiteId | None = None, answers: str = "classes") -> View:
        """Return through which view logits become answers: in the federation's classes, or in the site's own."""
        if answers not in ANSWERS:
            raise UserError(f"answers are 'classes' or 'own', not '{answers}'")
        if site is None:
            if answers == "own":
                raise UserError("own answers are those of a site; name it")
            return Tags(self.space) if self.description.tags else Exact(self.space)
        view = self.site(site).view
        if self._head(site, answers):
            return Exact(LabelSpace(view.answers))
        if answers == "own" and not view.is_known:
            hint = "ask for answers in the federation's classes"
            raise UserError(f"nobody has found out what the names of site '{site}' stand for; {hint}")
        return view.in_classes() if answers == "classes" else view

    def inputs(self, x: Array, site: SiteId | None = None) -> Tensor:
        """Scale raw samples (n, ...) as for training: a site's by its own moments, others by those of all together."""
        spec = self.description
        samples = to_samples(x, "x", spec.inputs.brightest)
        if list(samples.shape[1:]) != spec.model.input_shape:
            shapes = f"have shape {samples.shape[1:]}, those the model was trained on {tuple(spec.model.input_shape)}"
            raise DataError(f"the samples {shapes}")
        given = spec.inputs.moments
        moments = None if given is None else Moments(**{name: np.asarray(part) for name, part in given.items()})
        if site is not None:
            moments = self.site(site).moments
        return torch.from_numpy(apply_moments(samples, moments))

    def encode(self, table: Table) -> tuple[Tensor, dict[str, int]]:
        """Encode a table's rows with the features the sites agreed on; also count cells without a known value."""
        if self.description.inputs.features is None:
            raise DataError("the model was trained on arrays and knows no columns; give samples as the array x of .npz")
        x, gaps = self.description.inputs.features.encode(table)
        return torch.from_numpy(x), gaps

    def predict(self, x: Tensor, site: SiteId | None = None, answers: str = "classes") -> Tensor:
        """Return the probabilities of all answers, (n, answers), for samples as the network takes them."""
        return self.view(site, answers).answer(self.logits(x, site, answers))

    def logits(self, x: Tensor, site: SiteId | None = None, answers: str = "classes") -> Tensor:
        """Return the network's logits, without a site's prior."""
        asked = (site, bool(self._head(site, answers)))
        if self._ready is None or self._ready[0] != asked:
            self._ready = (asked, self.network(site, answers))
        return predict_logits(self._ready[1], x)

    def _head(self, site: SiteId | None, answers: str) -> dict[str, Tensor]:
        """Return the head that gives a site's own answers; nothing where they come from the common one."""
        return self.site(site).head if site is not None and answers == "own" else {}

    def _build(self) -> Network:
        spec = self.description.model
        try:
            network = build(spec.name, spec.settings, spec.input_shape, len(self.space), 0)
        except ConfigError as error:
            hint = "; the code it was trained with must be importable here" if is_factory(spec.name) else ""
            raise UserError(f"the model in '{self.folder}' cannot be rebuilt: {error}{hint}") from None
        if any(slot["part"] == "personal" for slot in self.description.layout):
            insert_personal_layer(network)
        if Layout.of(network).describe() != self.description.layout:
            raise UserError(
                f"the model in '{self.folder}' cannot be rebuilt: '{spec.name}' has other parameters here than it had "
                "when it was trained"
            )
        return network


def _site_model(own: Message, space: LabelSpace, path: Path) -> SiteModel:
    try:
        view = make_view(json.loads(own.words["view"]), space)
        if CORRESPONDENCE in own.tensors:
            found = own.tensors[CORRESPONDENCE]
            view = view.with_matrix(found if found.numel() else None)
        view = view.with_offset(own.tensors.get(_OFFSET))
        moments = {name: tensor.numpy() for name, tensor in own.select(_MOMENTS).items()}
        heads = own.select(OWN_HEAD), own.select(OWN_ENCODER)
        return SiteModel(own.select(MODEL), view, Moments(**moments) if moments else None, *heads)
    except UntrustedError:
        raise
    except (KeyError, ValueError, TypeError) as error:
        raise RunFolderError(f"'{path}' is not what a run writes: {error}") from None


def _read_description(path: Path) -> Description:
    try:
        read = json.loads(path.read_bytes())
        if isinstance(read, dict) and read.get("format") != FORMAT:
            raise RunFolderError(f"'{path}' has format {read.get('format')}, this version of FedAccord reads {FORMAT}")
        return Description.model_validate(read)
    except ValidationError as problems:
        first = problems.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise RunFolderError(f"'{path}' is not what a run writes: '{at}': {first['msg'].lower()}") from None
    except ValueError:
        raise RunFolderError(f"'{path}' is not JSON") from None
    except OSError as error:
        if isinstance(error, RunFolderError):
            raise
        raise RunFolderError(f"'{path}' cannot be read: {error.strerror}") from None


def _read(path: Path) -> Message:
    try:
        return from_bytes(path.read_bytes())
    except OSError as error:
        raise RunFolderError(f"'{path}' cannot be read: {error.strerror}") from None
    except MessageError as error:
        raise RunFolderError(f"'{path}' is damaged: {error}") from None


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


@torch.no_grad()
def _put(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, tensor in _tensors(network).items():
        tensor.copy_(values[name].reshape(tensor.shape))  # without it, one value would fill a whole tensor
