"""Mirrors metrics.jsonl to experiment trackers (TensorBoard, MLflow); importable without the extras.

The output is in the run folder under `tracking/`. A resumed run rewrites it from metrics.jsonl, so that no round is
duplicated and no lost round remains.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from fedaccord.errors import ConfigError

_MOST_AT_ONCE = 1000  # metrics that MLflow accepts in one call


class Tracker(Protocol):
    """An experiment tracker."""

    def put(self, step: int, figures: Mapping[str, float]) -> None:
        """Add and flush the metrics of a round, by tag."""

    def close(self) -> None:
        """Close the tracker."""


class Tracking:
    """Sends the lines of each round to all trackers; a tracker that fails is removed without stopping the run."""

    def __init__(self, trackers: Mapping[str, Tracker], note: Callable[[str], None]) -> None:
        self._trackers, self._note = dict(trackers), note
        self._tags: dict[str, str] = {}  # by the name of a site or a label

    def put(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Mirror the lines of one round."""
        if not self._trackers or not lines:
            return
        figures = self.scalars(lines)
        for name, tracker in list(self._trackers.items()):
            with self._removed_on_error(name):
                tracker.put(int(lines[0]["round"]), figures)

    def close(self) -> None:
        """Close all trackers."""
        for name, tracker in list(self._trackers.items()):
            with self._removed_on_error(name):
                tracker.close()

    def scalars(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return all metrics of a round by tag."""
        found: dict[str, Any] = {}
        for line in lines:
            match line["scope"]:
                case "round":
                    found |= {"round/loss": line["loss"], "round/replied": line["replied"]}
                    found |= {"round/dropped": len(line["dropped"])}
                    found |= {f"seconds/{step}": value for step, value in line["seconds"].items()}
                    found |= {f"round/{figure}": value for figure, value in line.get("figures", {}).items()}
                case "global":
                    found |= {f"global/{figure}": value for figure, value in line["metrics"].items()}
                case "sites":
                    kinds = {kind: line.get(kind, {}) for kind in ("mean", "std", "min", "max")}
                    found |= {f"sites/{kind}/{figure}": v for kind, part in kinds.items() for figure, v in part.items()}
                case "site":
                    site = self._tag(line["site"])
                    found |= {f"site/{site}/{figure}": value for figure, value in line["metrics"].items()}
                case "classes":
                    found |= {f"class/{self._tag(label)}/recall": value for label, value in line["recall"].items()}
        return {tag: float(value) for tag, value in found.items() if value is not None}

    def _tag(self, name: str) -> str:
        """Convert the name of a site or a label to a tag; trackers allow fewer characters."""
        if name not in self._tags:
            plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
            plain = plain if plain.strip(".") else "_" * max(1, len(plain))  # "." and ".." would be folders
            taken, number = set(self._tags.values()), 2
            while plain in taken:  # "a b" and "a_b" need different tags
                plain, number = f"{plain.removesuffix(f'-{number - 1}')}-{number}", number + 1
            self._tags[name] = plain
        return self._tags[name]

    @contextmanager
    def _removed_on_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # an error of a tracker must not stop the run
            self._trackers.pop(name)
            self._note(f"tracking with {name} ended: {type(error).__name__}: {error}")


@contextmanager
def tracking(
    names: Sequence[str], folder: Path, title: str, past: Sequence[Mapping[str, Any]], note: Callable[[str], None]
) -> Iterator[Tracking]:
    """Open the named trackers in a run folder, and send the past lines of the run to them.

    Raise ConfigError if the package of a tracker is not installed. `note` receives messages about errors.
    """
    opened: dict[str, Tracker] = {}
    for name in dict.fromkeys(names):
        place = folder / "tracking" / name
        shutil.rmtree(place, ignore_errors=True)
        try:
            opened[name] = _TRACKERS[name](place, title)
        except ImportError as error:
            raise ConfigError(
                f"tracking with {name} needs the package '{error.name or name}', which is not installed; "
                f"install the extra: pip install 'fedaccord[{name}]'"
            ) from None
        except OSError as error:
            raise ConfigError(f"tracking with {name} cannot start in '{place}': {error}") from None
    mirror = Tracking(opened, note)
    try:
        for _, lines in groupby(past, key=lambda line: line["round"]):
            mirror.put(list(lines))
        yield mirror
    finally:
        mirror.close()


class TensorBoard:
    """Writes event files; view them with `tensorboard --logdir RUN/tracking/tensorboard`."""

    def __init__(self, place: Path, title: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step is for a TensorBoard that was already open before the run was interrupted.
        self._writer = SummaryWriter(str(place), purge_step=0)

    def put(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the figures of a round."""
        for tag, value in figures.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class MLflow:
    """Writes one run to a local MLflow file store; nothing is sent over the network.

    View it with `MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri RUN/tracking/mlflow`.
    """

    def __init__(self, place: Path, title: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # MLflow 3 requires this for a file store; its databases need four more packages and seconds to start.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=place.resolve().as_uri())
        self._run = self._client.create_run(self._client.create_experiment(title), run_name=title).info.run_id

    def put(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the figures of a round."""
        now = int(time.time() * 1000)
        metrics = [self._metric(tag, value, now, step) for tag, value in figures.items()]
        for start in range(0, len(metrics), _MOST_AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[start : start + _MOST_AT_ONCE])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


_TRACKERS: dict[str, Callable[[Path, str], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}
