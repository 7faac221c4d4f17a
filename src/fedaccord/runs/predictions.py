"""Predictions for the rows of a file: class names and probabilities."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.dataset import Array, read_npz
from fedaccord.data.own_files import FILE_COLUMN, label_table, read_images
from fedaccord.data.registry import existing
from fedaccord.data.site_tables import read_labels
from fedaccord.data.tables import Table, is_table, read_table, report_cells
from fedaccord.durable import write_file
from fedaccord.errors import DataError, RunFolderError, UserError, did_you_mean
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, View
from fedaccord.messages.message import SiteId
from fedaccord.runs.model_folder import TrainedModel

UNKNOWN = "its candidates are all unknown to the site"


@dataclass(frozen=True)
class Rows:
    """New rows: inputs of the network, and other content of their file."""

    x: Tensor
    sets: Tensor | None = None  # candidate sets, bool (n, answers)
    gaps: dict[str, int] = field(default_factory=dict)  # numbers of missing cells and unknown categories by column
    files: list[str] | None = None  # names of images


def predict_file(
    run: Path, file: Path, out: Path, site: SiteId | None, answers: str, candidates: str | None
) -> tuple[Path, Rows]:
    """Write a CSV of predictions for the rows of a file, in order; return its path and the rows."""
    if out.resolve() == file.resolve():
        raise UserError(f"the predictions would be written over '{file}'; give another file with --out")
    model = TrainedModel.load(run)
    view = model.view(site, answers)
    if candidates is not None and not view.one_label:
        raise UserError("candidates are for predictions of one label, but this model predicts tags")
    rows = read_rows(model, file, site, view, candidates)
    logits = model.logits(rows.x, site, answers)
    probabilities = view.answer(logits) if rows.sets is None else within_candidates(view, logits, rows.sets)
    return write_file(out, _as_csv(view, probabilities, rows.files), RunFolderError), rows


def read_rows(model: TrainedModel, file: Path, site: SiteId | None, view: View, candidates: str | None = None) -> Rows:
    """Read samples and, from a column or array, their candidate sets."""
    plan, header = model.description.inputs.features, model.description.inputs.header
    if file.is_dir():
        return _read_folder(model, file, view, candidates)
    existing(file)
    if is_table(file):
        table = read_table(file)
        if plan is not None and header and not any(column.name in table.columns for column in plan.columns):
            table = read_table(file, header)  # without a header line, like the files of the sites
        x, gaps = model.encode(table)
        return Rows(x, _read_sets(table, candidates, view, () if plan is None else plan.missing), gaps)
    if file.suffix.lower() != ".npz":
        raise DataError(f"'{file}' is not a file of samples; a table ends with .csv or .parquet, arrays with .npz")
    if plan is not None:
        raise DataError(f"the model was trained on tables; '{file}' should be a .csv or .parquet file with its columns")
    return _read_arrays(model, file, site, view, candidates)


def _read_sets(table: Table, candidates: str | None, view: View, missing: Sequence[str] = ()) -> Tensor | None:
    if candidates is None:
        return None
    problems: list[str] = []
    sets = read_labels(table, candidates, Candidates(LabelSpace(view.answers)), missing, problems)
    problems += [table.wrong(row, candidates, UNKNOWN) for row in _excluded(view, sets)]
    report_cells(problems)
    return sets


def _read_folder(model: TrainedModel, folder: Path, view: View, candidates: str | None) -> Rows:
    """Read the images that the label file of a folder lists, or without one all images sorted by name."""
    shape = tuple(model.description.model.input_shape)
    if model.description.inputs.features is not None or len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"'{folder}' is a folder, but only models of images read folders")
    table = label_table(folder, "the samples", labelled=False)
    x, _, problems = read_images(table, shape)
    report_cells(problems)
    return Rows(torch.from_numpy(x), _read_sets(table, candidates, view), files=list(table.column(FILE_COLUMN)))


def _read_arrays(model: TrainedModel, file: Path, site: SiteId | None, view: View, candidates: str | None) -> Rows:
    arrays = read_npz(file, "the samples")

    def pick(name: str) -> Array:
        if name not in arrays:
            raise DataError(f"'{file.name}' has no array '{name}'; {did_you_mean(name, arrays)}")
        return arrays[name]

    if not pick("x").size:
        raise DataError(f"'{file}' has no rows")
    try:
        x = model.inputs(pick("x"), site)
    except DataError as error:
        raise DataError(f"'{file.name}': {error}") from None
    if candidates is None:
        return Rows(x)
    cells, where = pick(candidates), f"'{file.name}', array '{candidates}'"
    if len(cells) != len(x):
        raise DataError(f"{where} has {len(cells)} rows, the samples {len(x)}")
    if cells.dtype.kind in "US" and cells.ndim == 1:
        sets = Candidates(LabelSpace(view.answers)).encode([str(cell) for cell in cells], where)
    elif cells.shape == (len(x), len(view.answers)) and np.isin(cells, (0, 1)).all():
        sets = torch.from_numpy(cells.astype(bool))
        sets |= ~sets.any(1, keepdim=True)  # a row without candidates is not restricted
    else:
        wanted = f"one column for each of {len(view.answers)} answers, or hold texts such as 'a|b'"
        raise DataError(f"{where} should hold 0 and 1 only, with {wanted}")
    report_cells([f"{where}, row {row + 1}: {UNKNOWN}" for row in _excluded(view, sets)])
    return Rows(x, sets)


def _excluded(view: View, candidates: Tensor) -> list[int]:
    """Return the rows whose candidates are all unknown to the view."""
    possible = view.adjusted(torch.zeros(len(candidates), len(view.space))) + _chance(view, candidates).log()
    return torch.isneginf(possible).all(-1).nonzero().flatten().tolist()


def _chance(view: View, candidates: Tensor) -> Tensor:
    """Return P(set | class): (n, classes)."""
    return candidates.to(view.matrix) @ view.matrix


def within_candidates(view: View, logits: Tensor, candidates: Tensor) -> Tensor:
    """Return P(answer | it is among the row's candidates): (n, answers), zero outside the set.

    Computed in log space, so that very unlikely candidates can still be ranked.
    """
    chance = _chance(view, candidates)
    classes = torch.softmax(view.adjusted(logits) + chance.log(), -1) / torch.where(chance > 0, chance, 1.0)
    return (classes @ view.matrix.T).masked_fill(~candidates, 0.0)


def _as_csv(view: View, probabilities: Tensor, files: Sequence[str] | None) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*([] if files is None else [FILE_COLUMN]), "prediction", "probability", *view.answers])
    chosen = view.choose(probabilities)
    for at, ((name, probability), row) in enumerate(zip(chosen, probabilities.numpy(), strict=True)):
        # The shortest digits that give the same float32 when read.
        digits = map(str, np.asarray([probability, *row], dtype=np.float32))
        writer.writerow([*([] if files is None else [files[at]]), name, *digits])
    return text.getvalue()
