"""The result of training from Python: summary, metrics, report and model."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedaccord.durable import write_file
from fedaccord.errors import RunFolderError
from fedaccord.runs.checkpoint import read_lines
from fedaccord.runs.trained_model import TrainedModel

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """The result of a training run: its folder, summary, model and metrics."""

    def __init__(self, folder: Path, summary: dict[str, Any], temporary: bool, trust: Iterable[str]) -> None:
        self.folder, self.summary = folder, summary
        self._trust = tuple(trust)  # packages whose code the model may run
        self._lines: list[dict[str, Any]] | None = None  # read before a temporary folder is removed
        # A temporary folder is removed together with the result.
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True) if temporary else None

    @property
    def problems(self) -> list[str]:
        """Sentences on problems of the run, such as divergence or dropped sites."""
        return [problem["text"] for problem in self.summary["problems"]]

    @property
    def model(self) -> nn.Module:
        """The trained global model."""
        return self.trained.network()

    @property
    def trained(self) -> TrainedModel:
        """The trained model with its sites: for personal models and predictions by class name."""
        return TrainedModel.load(self.folder / "model", self._trust)

    @property
    def metrics(self) -> pd.DataFrame:
        """All metrics of all rounds: columns round, scope, site, metric, value."""
        import pandas as pd

        rows = []
        for line in self._lines if self._lines is not None else read_lines(self.folder / "metrics.jsonl"):
            figures = line.get("metrics") if line["scope"] in ("global", "site") else line.get("mean")
            for metric, value in (figures or {}).items():
                rows.append((line["round"], line["scope"], line.get("site"), metric, value))
        return pd.DataFrame(rows, columns=["round", "scope", "site", "metric", "value"])

    def close(self) -> None:
        """Remove the run folder now if it is a temporary one; summary and metrics stay."""
        if self._remove is not None and self._remove.alive:
            self._lines = read_lines(self.folder / "metrics.jsonl")
            self._remove()

    def report(self, path: Path | str) -> Path:
        """Write the report to a file and return its path."""
        if not (self.folder / "report.html").is_file():
            raise RunFolderError(f"there is no report in '{self.folder}' any more")
        return write_file(Path(path), (self.folder / "report.html").read_bytes(), RunFolderError)
