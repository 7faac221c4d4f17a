"""Predictions for the rows of a file: class names and probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.dataset import Array, read_npz
from fedaccord.data.declarations import Reading
from fedaccord.data.dialect import Dialect
from fedaccord.data.image_folders import FILE_COLUMN, label_table, read_images
from fedaccord.data.label_columns import read_labels
from fedaccord.data.registry import existing
from fedaccord.data.tables import Table, is_table, read_table, report_cells
from fedaccord.durable import write_file
from fedaccord.errors import DataError, RunFolderError, UserError, did_you_mean, listed
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, View
from fedaccord.messages.message import SiteId
from fedaccord.runs.prediction_file import kept_names, predictions_csv
from fedaccord.runs.trained_model import TrainedModel

ALL = "all"  # --keep all
NOT_CSV = (".parquet", ".npz", ".xlsx", ".json")
UNKNOWN = "its candidates are all unknown to the site"


@dataclass(frozen=True)
class Question:
    """The options of a prediction: the model, its answers, and how the file is read."""

    site: SiteId | None = None  # None: the global model
    answers: str = "classes"
    candidates: str | None = None  # column or array of candidate sets
    keep: Sequence[str] = ()  # columns or arrays to copy; `all` stands for all of them
    fill: bool = False  # columns that the file lacks have no values
    read: Reading | None = None  # how a table is written


@dataclass(frozen=True)
class Rows:
    """New rows: inputs of the network, and other content of their file."""

    x: Tensor
    sets: Tensor | None = None  # candidate sets, bool (n, answers)
    gaps: dict[str, int] = field(default_factory=dict)  # numbers of missing cells and unknown categories by column
    kept: dict[str, Sequence[str]] = field(default_factory=dict)  # cells of kept columns; names of images
    filled: list[str] = field(default_factory=list)  # columns that the file lacks
    reading: list[str] = field(default_factory=list)  # sentences on how a text table was read

    def notes(self, answers: Sequence[str]) -> list[str]:
        """Return sentences on how the file was read, on missing cells and columns, and on renamed columns."""
        notes = list(self.reading)
        gaps = {column: number for column, number in self.gaps.items() if column not in self.filled}
        if gaps:
            number = sum(gaps.values())
            cells = "1 cell is" if number == 1 else f"{number} cells are"
            counts = listed([f"{column} {count}" for column, count in gaps.items()], quotes=False)
            notes.append(f"{cells} missing or of no known category: {counts}")
        if self.filled:
            column = "column" if len(self.filled) == 1 else "columns"
            notes.append(f"the file has no {column} {listed(self.filled)}: treated as missing in every row")
        for column, name in kept_names(list(self.kept), answers).items():
            if name != column:
                notes.append(f"the kept column '{column}' is called '{name}', because predictions have that name")
        return notes


def predict_file(run: Path, file: Path, out: Path, question: Question) -> tuple[Path, int, list[str]]:
    """Write a CSV of predictions for the rows of a file, in order; return its path, the number of rows and notes."""
    if out.resolve() == file.resolve():
        raise UserError(f"the predictions would be written over '{file}'; give another file with --out")
    if out.suffix.lower() in NOT_CSV:
        raise UserError(f"predictions are written as CSV, so --out should end with .csv, not {out.suffix}")
    model = TrainedModel.load(run)
    question = replace(question, site=question.site or model.only_site)
    site, answers = question.site, question.answers
    view = model.view(site, answers)
    if question.candidates is not None and not view.one_label:
        raise UserError("candidates are for predictions of one label, but this model predicts tags")
    rows = read_rows(model, file, view, question)
    logits = model.logits(rows.x, site, answers)
    probabilities = view.answer(logits) if rows.sets is None else within_candidates(view, logits, rows.sets)
    written = write_file(out, predictions_csv(view, probabilities, rows.kept), RunFolderError)
    return written, len(rows.x), rows.notes(view.answers)


def read_rows(model: TrainedModel, file: Path, view: View, question: Question) -> Rows:
    """Read samples, their candidate sets and the kept columns."""
    plan, header = model.description.inputs.features, model.description.inputs.header
    if question.read is not None and not is_table(file):
        raise UserError(f"--read says how a table is written, and '{file}' is not a table")
    if file.is_dir():
        return _read_folder(model, file, view, question)
    existing(file)
    if is_table(file):
        table = read_table(file, read=question.read)
        if plan is not None and header and not any(column.name in table.columns for column in plan.columns):
            table = read_table(file, header, read=question.read)  # without a header line, like the files of the sites
        x, gaps = model.encode(table, question.fill)
        kept = _kept_columns(table, question.keep)
        sets = _read_sets(table, question.candidates, view, () if plan is None else plan.missing)
        lacking = [] if plan is None else plan.lacking(table)
        reading = [] if table.read_as in ("", Dialect().describe()) else [f"read as {table.read_as}"]
        return Rows(x, sets, gaps, kept, lacking, [*reading, *table.doubts])
    if file.suffix.lower() != ".npz":
        types = "a table ends with .csv, .xlsx or .parquet, arrays with .npz"
        raise DataError(f"'{file}' is not a file of samples; {types}")
    if plan is not None:
        raise DataError(f"the model was trained on tables; '{file}' should be a .csv or .parquet file with its columns")
    return _read_arrays(model, file, view, question)


def _kept_columns(table: Table, keep: Sequence[str]) -> dict[str, Sequence[str]]:
    if ALL in keep:
        keep = list(table.columns)
    return {name: table.column(name).tolist() for name in keep}


def _read_sets(table: Table, candidates: str | None, view: View, missing: Sequence[str] = ()) -> Tensor | None:
    if candidates is None:
        return None
    problems: list[str] = []
    empty = [word for word in missing if word not in view.answers]  # a class may be called "None"
    sets = read_labels(table, candidates, Candidates(LabelSpace(view.answers)), empty, problems)
    problems += [table.wrong(row, candidates, UNKNOWN) for row in _excluded(view, sets)]
    report_cells(problems)
    return sets


def _read_folder(model: TrainedModel, folder: Path, view: View, question: Question) -> Rows:
    """Read the images that the label file of a folder lists, or without one all images sorted by name."""
    shape = tuple(model.description.model.input_shape)
    if model.description.inputs.features is not None or len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"'{folder}' is a folder, but only models of images read folders")
    table = label_table(folder, "the samples", labelled=False)
    x, _, problems = read_images(table, shape)
    report_cells(problems)
    kept = _kept_columns(table, [FILE_COLUMN, *question.keep])
    return Rows(torch.from_numpy(x), _read_sets(table, question.candidates, view), kept=kept)


def _read_arrays(model: TrainedModel, file: Path, view: View, question: Question) -> Rows:
    arrays = read_npz(file, "the samples")

    def pick(name: str) -> Array:
        if name not in arrays:
            raise DataError(f"'{file.name}' has no array '{name}'; {did_you_mean(name, arrays)}")
        return arrays[name]

    if not pick("x").size:
        raise DataError(f"'{file}' has no rows")
    try:
        x = model.inputs(pick("x"), question.site)
    except DataError as error:
        raise DataError(f"'{file.name}': {error}") from None
    rows = Rows(x, kept={name: _texts(pick(name), name, len(x), file) for name in _kept_arrays(arrays, question.keep)})
    if question.candidates is None:
        return rows
    cells, where = pick(question.candidates), f"'{file.name}', array '{question.candidates}'"
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
    return replace(rows, sets=sets)


def _kept_arrays(arrays: Mapping[str, Array], keep: Sequence[str]) -> list[str]:
    """Return the names of the kept arrays; all: those with one value for each sample."""
    if ALL in keep:
        return [name for name, array in arrays.items() if array.shape == (len(arrays["x"]),)]
    return list(dict.fromkeys(keep))


def _texts(array: Array, name: str, rows: int, file: Path) -> list[str]:
    if array.shape != (rows,):
        raise DataError(f"'{file.name}': the array '{name}' has shape {array.shape}, so it has not one value per row")
    return [str(value) for value in array.tolist()]


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
