"""The graph of features computes what FeaturePlan does, for any table of numbers and words."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from fedaccord.data.declarations import Features
from fedaccord.data.features import ColumnPlan, FeaturePlan, agree, describe_columns
from fedaccord.data.scaling import FARTHEST
from fedaccord.data.tables import Table
from fedaccord.errors import DataError
from fedaccord.runs.onnx_features import input_names, with_columns


def run(plan, inputs):
    """Return the features that the graph of a plan computes."""
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", len(plan.names)]) for n in ("x", "out")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["out"])], "identity", kinds[:1], kinds[1:])
    identity = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    document = with_columns(identity, plan, "x", "out").SerializeToString()
    (found,) = onnxruntime.InferenceSession(document, options).run(["out"], inputs)
    return found


def inputs_of(plan, columns):
    """Return the inputs of the graph for columns of text cells, as a user makes them."""
    made = {}
    for column in plan.columns:
        cells = columns[column.name]
        if column.kind == "number":
            made[column.name] = np.array([float(c) if c not in plan.missing else np.nan for c in cells])
        elif column.features:
            made[column.name] = np.array(cells, dtype=object)
    return made


def table_of(columns):
    cells = {name: np.array(column, dtype=object) for name, column in columns.items()}
    return Table(Path("t.csv"), cells, np.arange(1, len(next(iter(columns.values()))) + 1))


number = st.one_of(
    st.floats(-1e12, 1e12).map(str), st.integers(-(10**9), 10**9).map(str), st.sampled_from(["", "NA", "0", "1e-9"])
)
word = st.sampled_from(["a", "b", "2", "2.0", "male", "fé", "=x", "", "?", "None", "two words"])


@st.composite
def tables(draw):
    """Rows to agree on features with, and new rows of the same columns."""
    kinds = draw(st.lists(st.sampled_from([number, word]), min_size=1, max_size=4))

    def rows(n):
        return {f"column {i}": draw(st.lists(kind, min_size=n, max_size=n)) for i, kind in enumerate(kinds)}

    numbers = [f"column {i}" for i, kind in enumerate(kinds) if kind is number]
    words = [f"column {i}" for i, kind in enumerate(kinds) if kind is word]
    return rows(draw(st.integers(1, 6))), rows(draw(st.integers(1, 6))), numbers, words


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from(["federation", "none"]))
@example(({"column 0": ["1e9", "1000000001"]}, {"column 0": ["1000000000.5", ""]}, ["column 0"], []), "federation")
@example(({"column 0": ["", "2.0"]}, {"column 0": ["2", "2.0", "?"]}, [], ["column 0"]), "federation")
def test_any_table(made, scale):
    seen, new, numbers, words = made
    asked = Features(numbers=numbers, categories=words, standardise=scale)
    table = table_of(seen)
    try:
        plan = agree({"site": describe_columns(table, list(seen), np.arange(table.rows), asked)}, asked)
    except DataError:  # no features at all
        return
    expected, _ = plan.encode(table_of(new))
    found = run(plan, inputs_of(plan, new))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_a_worked_example():
    plan = FeaturePlan(
        columns=(
            ColumnPlan(name="age", kind="number", mean=50, scale=10, flag_missing=True),
            ColumnPlan(name="sex", kind="category", values=("f", "m", "NA")),
            ColumnPlan(name="note", kind="text", width=2),
        ),
        missing=("", "NA"),
    )
    notes = np.array([[0, 1], [0.6, 0.8], [0, 0]], dtype=np.float32)
    ages = np.array([45, np.nan, 1e6])
    found = run(plan, {"age": ages, "sex": np.array(["m", "NA", "x"], dtype=object), "note": notes})
    expected = [[-0.5, 0, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0.6, 0.8], [FARTHEST, 0, 0, 0, 0, 0, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_synonyms_set_the_feature_of_their_name():
    column = ColumnPlan(name="sex", kind="category", values=("female", "male"), synonyms={"M": "male", "1": "female"})
    plan = FeaturePlan(columns=(column,), missing=("",))
    words = ["M", "1", "male", "m", ""]
    found = run(plan, {"sex": np.array(words, dtype=object)})
    assert found.tolist() == plan.encode(table_of({"sex": words}))[0].tolist()
    assert found.tolist() == [[0, 1], [1, 0], [0, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("name", ["out", "features/0/mean", "network/x", "a b; c", "x"])
def test_any_name_of_a_column_is_the_name_of_an_input(name):
    plan = FeaturePlan(columns=(ColumnPlan(name=name, kind="number", mean=1),), missing=())
    (given_name,) = input_names(plan, "out").values()
    assert run(plan, {given_name: np.array([3.0])}).tolist() == [[2.0]]
    assert (given_name == name) == (name in ("a b; c", "x"))


def test_a_column_without_features_has_no_input():
    plan = FeaturePlan(
        columns=(ColumnPlan(name="empty", kind="category"), ColumnPlan(name="age", kind="number")), missing=()
    )
    assert run(plan, {"age": np.array([0.25])}).tolist() == [[0.25]]
