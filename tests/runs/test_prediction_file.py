"""The file of predictions: no cell of it is a formula, and no column hides another."""

from __future__ import annotations

import csv
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact
from fedaccord.runs.prediction_file import FORMULA, harmless, kept_names, predictions_csv


@pytest.mark.parametrize("cell", ["=1+1", "+cmd", "-x", "@SUM(A1)", "\tx", "\r=1", "-", "+1 2"])
def test_formulas_become_text(cell):
    assert harmless(cell) == "'" + cell.replace("\r", "\n")


@pytest.mark.parametrize("cell", ["", "a=b", "-1", "+2.5", "-1e-7", "1-2", "'=1"])
def test_other_cells_stay_as_they_are(cell):
    assert harmless(cell) == cell


@given(st.lists(st.text(), min_size=1, max_size=3))
def test_no_cell_of_a_file_begins_like_a_formula(cells):
    view = Exact(LabelSpace(["=a", "b"]))
    text = predictions_csv(view, torch.tensor([[0.75, 0.25]]).expand(len(cells), 2), {"-id": cells})
    header, *lines = csv.reader(io.StringIO(text))
    assert header == ["'-id", "prediction", "probability", "'=a", "b"]
    assert [line[1:] for line in lines] == [["'=a", "0.75", "0.75", "0.25"]] * len(cells)
    for line in lines:
        if line[0].startswith(FORMULA):
            float(line[0])  # a number is no formula


def test_a_kept_column_never_has_the_name_of_another_column():
    names = kept_names(["id", "b", "b (input)", "prediction"], ["a", "b"])
    assert names == {"id": "id", "b": "b (input)'", "b (input)": "b (input)", "prediction": "prediction (input)"}
