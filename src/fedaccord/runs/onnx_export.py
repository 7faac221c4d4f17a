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
from fedaccord.errors import RunFolderError, UserError
from fedaccord.labels.views import View
from fedaccord.messages.message import SiteId
from fedaccord.models.network import Network
from fedaccord.runs.trained_model import TrainedModel

INPUT, OUTPUT = "x", "probabilities"


class _Predictor(nn.Module):
    """Maps samples to probabilities of the federation's classes."""

    def __init__(self, network: Network, view: View) -> None:
        super().__init__()
        self.network, self.one_label = network, view.one_label
        self.register_buffer("offset", torch.zeros(len(view.space)) if view.offset is None else view.offset)

    def forward(self, x: Tensor) -> Tensor:
        """Return the probabilities, of shape (batch, classes)."""
        logits = self.network(x) + self.offset
        return torch.softmax(logits, -1) if self.one_label else torch.sigmoid(logits)


def export_onnx(run: Path, target: Path, site: SiteId | None = None) -> Path:
    """Write the global model of a run, or a site's model with its prior.

    The metadata of the file are the classes and, for tables, the features and their columns.
    """
    if find_spec("onnx") is None:
        raise UserError("an export needs the package 'onnx'; install it with: pip install 'fedaccord[onnx]'")
    import onnx

    model, buffer = TrainedModel.load(run), io.BytesIO()
    spec, plan = model.description.model, model.description.inputs.features
    predictor = _Predictor(model.network(site), model.view(site)).eval()
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
            torch.onnx.export(predictor, (torch.zeros(2, *spec.input_shape),), dynamo=False, **options)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"the model '{spec.name}' cannot be written as ONNX: {reason}") from None
    metadata: dict[str, Any] = {"labels": list(model.labels)}
    if plan is not None:
        metadata |= {"features": plan.names, "columns": [column.model_dump(mode="json") for column in plan.columns]}
    document = onnx.load_from_string(buffer.getvalue())
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in metadata.items()}
    onnx.helper.set_model_props(document, texts)
    return write_file(target, document.SerializeToString(), RunFolderError)
