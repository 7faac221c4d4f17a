"""Export of a trained model to ONNX, for programs without PyTorch."""

from __future__ import annotations

import io
import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedaccord.durable import write_file
from fedaccord.errors import RunFolderError, UserError, listed
from fedaccord.labels.views import View
from fedaccord.messages.message import SiteId
from fedaccord.runs.onnx_features import input_names, with_columns
from fedaccord.runs.trained_model import TrainedModel

INPUT, OUTPUT = "x", "probabilities"


class _Predictor(nn.Module):
    """Maps inputs of the network to probabilities of the answers."""

    def __init__(self, network: nn.Module, view: View) -> None:
        super().__init__()
        self.network, self.view = network, view

    def forward(self, x: Tensor) -> Tensor:
        """Return the probabilities, of shape (batch, answers)."""
        return self.view.answer(self.network(x))


def export_onnx(
    run: Path, target: Path, site: SiteId | None = None, answers: str = "classes"
) -> tuple[Path, list[str]]:
    """Write the global model of a run, or a site's model with its prior; return the file and notes for the user.

    A model of tables takes the columns of the table, see `onnx_features`; any other takes inputs of the network as `x`.
    The metadata of the file are the names of the answers and, for tables, the columns and their inputs.
    """
    if find_spec("onnx") is None:
        raise UserError("an export needs the package 'onnx'; install it with: pip install 'fedaccord[onnx]'")
    import onnx

    model = TrainedModel.load(run)
    site = site or model.only_site
    plan, view = model.description.inputs.features, model.view(site, answers)
    document = onnx.load_from_string(_network_graph(model, model.network(site, answers), view))
    metadata: dict[str, Any] = {"labels": list(view.answers)}
    notes = []
    if plan is not None:
        document = with_columns(document, plan, INPUT, OUTPUT)
        columns = [column.model_dump(mode="json") for column in plan.columns]
        metadata |= {"features": plan.names, "columns": columns, "inputs": input_names(plan, OUTPUT)}
        encoded = [column.name for column in plan.columns if column.kind not in ("number", "category")]
        if encoded:
            why = "because ONNX cannot hash text or split groups"
            notes.append(f"the input of {listed(encoded)} takes encoded features, {why}")
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in metadata.items()}
    onnx.helper.set_model_props(document, texts)
    return write_file(target, document.SerializeToString(), RunFolderError), notes


def _network_graph(model: TrainedModel, network: nn.Module, view: View) -> bytes:
    """Return the graph from inputs of the network to probabilities, as an ONNX document."""
    spec, buffer = model.description.model, io.BytesIO()
    axes = {INPUT: {0: "batch"}, OUTPUT: {0: "batch"}}
    options: dict[str, Any] = {"f": buffer, "input_names": [INPUT], "output_names": [OUTPUT], "dynamic_axes": axes}
    with warnings.catch_warnings():
        # The newer exporter needs another package and a second file; the legacy one is sufficient.
        warnings.filterwarnings("ignore", "You are using the legacy TorchScript-based ONNX", DeprecationWarning)
        warnings.filterwarnings("ignore", "The feature will be removed", DeprecationWarning)
        # Group norm checks for empty batches, which the exported model need not.
        module = r"torch\.nn\.functional"
        warnings.filterwarnings("ignore", "Converting a tensor to a Python boolean", module=module)
        try:
            samples = torch.zeros(2, *spec.input_shape)
            torch.onnx.export(_Predictor(network, view).eval(), (samples,), dynamo=False, **options)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"the model '{spec.name}' cannot be written as ONNX: {reason}") from None
    return buffer.getvalue()
