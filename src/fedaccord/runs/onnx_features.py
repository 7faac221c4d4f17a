"""The features of a table as an ONNX graph: one input for each column, standardisation and one-hot encoding inside.

    number     double (batch,)          missing: NaN
    category   string (batch,)          missing or unknown: any other word, such as ""
    text       float  (batch, width)    hashed as `FeaturePlan` does, because ONNX has no such operation
    groups     float  (batch, groups)   1 for each candidate group of a row, or its share

The graph computes what `FeaturePlan.encode` does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaccord.data.features import ColumnPlan, FeaturePlan
from fedaccord.data.scaling import FARTHEST
from fedaccord.data.tables import Table

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

FEATURES, NETWORK = "features/", "network/"  # beginnings of names inside the graph
ML_OPSET = 3  # of the domain ai.onnx.ml, with `LabelEncoder` for words
_WHOLE = re.compile(r"[+-]?\d+")


def input_names(plan: FeaturePlan, output: str) -> dict[str, str]:
    """Return the name of the graph's input for each column that has features: the column's own, unless it is taken."""
    names = {}
    for column in plan.columns:
        if column.features:
            taken = column.name == output or column.name.startswith((FEATURES, NETWORK))
            names[column.name] = f"input {column.name}" if taken else column.name
    return names


def with_columns(model: ModelProto, plan: FeaturePlan, x: str, output: str) -> ModelProto:
    """Return the model of an ONNX graph whose input `x` is replaced by the columns of a table."""
    import onnx
    from onnx import compose, helper

    inner = compose.add_prefix(model, NETWORK, rename_outputs=False)
    names = input_names(plan, output)
    nodes: list[NodeProto] = []
    inputs, parts = [], []
    for number, column in enumerate(column for column in plan.columns if column.features):
        name, place = names[column.name], f"{FEATURES}{number}/"
        kind, shape = _input(column)
        inputs.append(helper.make_tensor_value_info(name, kind, shape))
        built, part = _encoding(column, plan.missing, name, place)
        nodes += built
        parts.append(part)
    nodes.append(helper.make_node("Concat", parts, [NETWORK + x], axis=1))
    graph = inner.graph
    everything = helper.make_graph(
        [*nodes, *graph.node], "table", inputs, list(graph.output), initializer=list(graph.initializer)
    )
    opsets = [*inner.opset_import, helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    result = helper.make_model(everything, opset_imports=opsets, ir_version=inner.ir_version)
    onnx.checker.check_model(result)
    return result


def _input(column: ColumnPlan) -> tuple[int, list[Any]]:
    """Return the type and shape of a column's input."""
    from onnx import TensorProto

    if column.kind == "number":
        return TensorProto.DOUBLE, ["batch"]  # a large number with a small deviation loses its digits as a float
    if column.kind == "category":
        return TensorProto.STRING, ["batch"]
    return TensorProto.FLOAT, ["batch", len(column.features)]


def _encoding(column: ColumnPlan, missing: Sequence[str], name: str, place: str) -> tuple[list[NodeProto], str]:
    """Return the nodes that encode a column, and the name of their output, float (batch, features)."""
    if column.kind == "number":
        return _number(column, name, place)
    if column.kind == "category":
        return _words(column, missing, name, place)
    return [], name


def _number(column: ColumnPlan, name: str, place: str) -> tuple[list[NodeProto], str]:
    from onnx import TensorProto, helper

    def node(operation: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
        return helper.make_node(operation, inputs, [place + output], **attributes)

    nodes = [
        _constant(place + "mean", np.array(column.mean, dtype=np.float64)),
        _constant(place + "scale", np.array(column.scale, dtype=np.float64)),
        _constant(place + "zero", np.array(0, dtype=np.float32)),
        _constant(place + "axis", np.array([1], dtype=np.int64)),
        node("Sub", [name, place + "mean"], "centred"),
        node("Div", [place + "centred", place + "scale"], "divided"),
        node("Cast", [place + "divided"], "scaled", to=TensorProto.FLOAT),
    ]
    value = place + "scaled"
    if column.cut:
        nodes += [
            _constant(place + "low", np.array(-FARTHEST, dtype=np.float32)),
            _constant(place + "high", np.array(FARTHEST, dtype=np.float32)),
            node("Clip", [value, place + "low", place + "high"], "cut"),
        ]
        value = place + "cut"
    nodes += [
        node("IsNaN", [name], "absent"),
        node("Where", [place + "absent", place + "zero", value], "filled"),
        node("Unsqueeze", [place + "filled", place + "axis"], "column"),
    ]
    if not column.flag_missing:
        return nodes, place + "column"
    nodes += [
        node("Cast", [place + "absent"], "flag", to=TensorProto.FLOAT),
        node("Unsqueeze", [place + "flag", place + "axis"], "flags"),
        node("Concat", [place + "column", place + "flags"], "both", axis=1),
    ]
    return nodes, place + "both"


def _words(column: ColumnPlan, missing: Sequence[str], name: str, place: str) -> tuple[list[NodeProto], str]:
    from onnx import helper

    keys = _feature_of_word(column, missing)
    other = len(column.values)  # beyond the last feature, so that no feature is set
    encoder = helper.make_node(
        "LabelEncoder",
        [name],
        [place + "code"],
        domain="ai.onnx.ml",
        keys_strings=list(keys) or [""],
        values_int64s=list(keys.values()) or [other],
        default_int64=other,
    )
    nodes = [
        encoder,
        _constant(place + "depth", np.array(other, dtype=np.int64)),
        _constant(place + "values", np.array([0, 1], dtype=np.float32)),
        helper.make_node("OneHot", [place + "code", place + "depth", place + "values"], [place + "features"], axis=1),
    ]
    return nodes, place + "features"


def _feature_of_word(column: ColumnPlan, missing: Sequence[str]) -> dict[str, int]:
    """Return the words that set a feature and its number, as the plan itself encodes them."""
    whole = [f"{value}.0" for value in column.values if _WHOLE.fullmatch(value)]
    words = list(dict.fromkeys([*column.values, *whole, *column.synonyms]))
    cells = np.array(words, dtype=object)
    table = Table(Path(), {column.name: cells}, np.arange(1, len(words) + 1))
    features, _ = FeaturePlan(columns=(column,), missing=tuple(missing)).encode(table)
    return {word: int(row.argmax()) for word, row in zip(words, features, strict=True) if row.any()}


def _constant(name: str, value: np.ndarray[Any, Any]) -> NodeProto:
    from onnx import helper, numpy_helper

    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
