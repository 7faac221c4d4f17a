"""The file of predictions: kept columns of the input, the predicted name, and a probability for each answer."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedaccord.labels.views import View

PREDICTION, PROBABILITY = "prediction", "probability"
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # a spreadsheet takes a cell that begins with these for a formula


def predictions_csv(view: View, probabilities: Tensor, kept: Mapping[str, Sequence[str]]) -> str:
    """Return the predictions as CSV text, in the order of the rows.

    Text that a spreadsheet would run as a formula gets a leading apostrophe; numbers are written as they are.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = kept_names(list(kept), view.answers)
    writer.writerow(map(harmless, [*names.values(), PREDICTION, PROBABILITY, *view.answers]))
    cells = zip(*kept.values(), strict=True) if kept else [()] * len(probabilities)
    rows = zip(cells, view.choose(probabilities), probabilities.numpy(), strict=True)
    for before, (name, probability), each in rows:
        # The shortest digits that give the same float32 when read.
        digits = map(str, np.asarray([probability, *each], dtype=np.float32))
        writer.writerow([*map(harmless, before), harmless(name), *digits])
    return text.getvalue()


def kept_names(kept: Sequence[str], answers: Sequence[str]) -> dict[str, str]:
    """Return the name of each kept column in the file: its own, unless a column of predictions has that name."""
    taken = {PREDICTION, PROBABILITY, *answers, *kept}
    names = {}
    for column in kept:
        name = column
        if column in {PREDICTION, PROBABILITY, *answers}:
            name = f"{column} (input)"
            while name in taken:
                name += "'"
            taken.add(name)
        names[column] = name
    return names


def harmless(cell: str) -> str:
    """Return a cell that no spreadsheet runs as a formula; see OWASP, "CSV injection"."""
    text = f"'{cell}" if cell.startswith(FORMULA) and not _is_number(cell) else cell
    return text.replace("\r\n", "\n").replace("\r", "\n")  # Python's writer does not quote a carriage return


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
