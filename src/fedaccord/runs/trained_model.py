"""A trained model, rebuilt from its folder: predicts with the global model, or with that of a site."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedaccord.data.dataset import Array, to_samples
from fedaccord.data.scaling import Moments, apply_moments
from fedaccord.data.tables import Table, frame_table
from fedaccord.durable import read_bytes
from fedaccord.errors import (
    ConfigError,
    DataError,
    MessageError,
    RunFolderError,
    UntrustedError,
    UserError,
    did_you_mean,
    listed,
)
from fedaccord.extensions import is_outside, trusting
from fedaccord.federation.experts import Experts, stored_experts
from fedaccord.federation.sharing import MODEL
from fedaccord.labels.correspondence import CORRESPONDENCE
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact, Tags, View, make_view
from fedaccord.messages.message import Message, SiteId, from_bytes
from fedaccord.models.catalogue import build
from fedaccord.models.layout import Layout, load_tensors
from fedaccord.models.network import (
    OWN_ENCODER,
    OWN_HEAD,
    Network,
    insert_personal_layer,
    predict_logits,
    use_channels_last,
    with_own_head,
)
from fedaccord.runs.model_folder import FORMAT, MOMENTS, OFFSET, Description
from fedaccord.runs.reading import parse
from fedaccord.runs.site_model import SITE_FILE, read_site_folder

if TYPE_CHECKING:
    import pandas as pd

FRAME = "frame"  # the name of a frame in messages


@dataclass(frozen=True)
class SiteModel:
    """The private part of one site."""

    tensors: dict[str, Tensor]  # those that differ from the global model's
    view: View  # with the site's prior
    moments: Moments | None
    head: dict[str, Tensor]  # for the site's own label names, if the method trains one
    encoder: dict[str, Tensor]  # of that head, if it differs from the global model's
    experts: Experts | None = None  # that answer together with the shared model


class TrainedModel:
    """A trained model, rebuilt from its folder: the global one, and that of each site."""

    def __init__(self, folder: Path, description: Description, model: Message, trust: Iterable[str]) -> None:
        self.folder, self.description, self.tensors, self._trust = folder, description, model.tensors, tuple(trust)
        self.space = LabelSpace(description.labels)
        self.only_site: SiteId | None = None  # of a deployed site's own folder, which has no other model
        self._sites: dict[SiteId, SiteModel] = {}
        self._ready: tuple[tuple[SiteId | None, bool], nn.Module] | None = None  # the last network used

    @classmethod
    def load(cls, folder: Path, trust: Iterable[str] = ()) -> TrainedModel:
        """Read a model folder, that of a run folder, or the folder of a deployed site.

        Raise RunFolderError if it is none of these, is damaged, or has no final model yet.

        A folder may name code outside FedAccord, for its network or a site's view. It runs only if its package is in
        `trust`; otherwise what needs it raises UntrustedError. A site's folder says itself which packages it trusts.
        """
        if (folder / SITE_FILE).exists():
            return cls._of_site(folder)
        place = folder if (folder / "model.json").exists() else folder / "model"
        if not (place / "model.json").exists():
            if not (folder / "config.toml").exists():
                raise RunFolderError(f"'{folder}' is neither a run folder nor a model folder: it has no model.json")
            hint = f"if it was interrupted, go on with: fedaccord resume {folder}"
            raise RunFolderError(f"the run in '{folder}' has no model yet; {hint}")
        return cls(place, _read_description(place / "model.json"), _read(place / "model.safetensors"), trust)

    @classmethod
    def _of_site(cls, folder: Path) -> TrainedModel:
        description, initial, part, trust = read_site_folder(folder)
        model = cls(folder, description, initial, trust)
        (model.only_site,) = description.sites
        with trusting(trust):
            model._sites[model.only_site] = _site_model(part, model.space, folder)
        return model

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

    def network(self, site: SiteId | None = None, answers: str = "classes") -> nn.Module:
        """Build the global model, or what answers for a site, in evaluation mode; every call returns a new network.

        For answers in a site's own names it has the site's head for them, if the method trains one.
        """
        if site is None and self.only_site is not None:
            raise UserError(f"the folder has only the model of site '{self.only_site}'; name that site")
        if site is None and not self.description.common:
            hint = f"name one of its sites: {', '.join(self.sites[:12])}"
            raise UserError(f"the method '{self.description.method}' trains no global model; {hint}")
        network = self._build()
        head = self._head(site, answers)
        try:
            load_tensors(network, self.tensors | ({} if site is None else self.site(site).tensors))
            network = with_own_head(network, head, self.site(site).encoder) if site is not None and head else network
            use_channels_last(network)  # as in training, so that predictions are bit-identical
            experts = None if site is None or head else self.site(site).experts
            answering = network if experts is None else experts.answering(network, self.view(site, answers))
        except (KeyError, RuntimeError) as error:
            raise RunFolderError(f"the tensors in '{self.folder}' are not those of its model: {error}") from None
        return answering.eval()

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
            raise DataError(_other_shape(samples.shape[1:], spec))
        moments = spec.inputs.scaling() if site is None else self.site(site).moments
        return torch.from_numpy(apply_moments(samples, moments))

    def encode(self, table: Table, fill: bool = False) -> tuple[Tensor, dict[str, int]]:
        """Encode the rows of a table as features, and count the cells without a known value by column.

        With `fill`, a column that the table lacks is one without values; otherwise it is an error.
        """
        if self.description.inputs.features is None:
            raise DataError("the model was trained on arrays, not columns; give samples as the array x of an .npz file")
        x, gaps = self.description.inputs.features.encode(table, fill)
        return torch.from_numpy(x), gaps

    def predict(
        self,
        x: Tensor | Array | pd.DataFrame,
        site: SiteId | None = None,
        answers: str = "classes",
        fill: bool = False,
    ) -> Tensor:
        """Return the probabilities of all answers, (n, answers): one row for each sample.

        A frame holds the columns of the sites' tables, in any order; `fill` is for columns that it lacks. A NumPy array
        holds samples as in the sites' .npz files or arrays; they are scaled as in training. A tensor holds inputs of
        the network, as `encode` and `inputs` return them, and is used as it is.
        """
        return self.view(site, answers).answer(self.logits(self._inputs(x, site, fill), site, answers))

    def _inputs(self, x: Tensor | Array | pd.DataFrame, site: SiteId | None, fill: bool) -> Tensor:
        """Return inputs of the network from samples in any form that `predict` takes."""
        spec = self.description
        if isinstance(x, Tensor):
            if list(x.shape[1:]) != spec.model.input_shape:
                raise DataError(_other_shape(tuple(x.shape[1:]), spec))
            return x.detach().to("cpu", torch.float32)
        if spec.inputs.features is not None and hasattr(x, "columns"):
            return self.encode(frame_table(x, FRAME), fill)[0]
        return self.inputs(np.asarray(x), site)

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


def _other_shape(found: tuple[int, ...], spec: Description) -> str:
    columns = [] if spec.inputs.features is None else [column.name for column in spec.inputs.features.columns]
    hint = f"; give a DataFrame with the columns {listed(columns)}" if columns else ""
    trained = f"those the model was trained on {tuple(spec.model.input_shape)}"
    return f"the samples have shape {found}, {trained}{hint}"


def _site_model(part: Message, space: LabelSpace, path: Path) -> SiteModel:
    try:
        view = make_view(json.loads(part.words["view"]), space)
        if CORRESPONDENCE in part.tensors:
            matrix = part.tensors[CORRESPONDENCE]
            view = view.with_matrix(matrix if matrix.numel() else None)
        view = view.with_offset(part.tensors.get(OFFSET))
        moments = {name: tensor.numpy() for name, tensor in part.select(MOMENTS).items()}
        heads = part.select(OWN_HEAD), part.select(OWN_ENCODER)
        own_moments = Moments(**moments) if moments else None
        return SiteModel(part.select(MODEL), view, own_moments, *heads, stored_experts(part))
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
