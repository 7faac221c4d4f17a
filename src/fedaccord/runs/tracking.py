"""Figures of a run for programs that people already watch runs with: a mirror of metrics.jsonl.

It lies in the run folder, under `tracking/`. A resumed run writes it anew from metrics.jsonl, so that it never holds a
round twice or one that was lost. Importable without the extras.
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

_MOST_AT_ONCE = 1000  # figures that MLflow takes in one call


class Tracker(Protocol):
    """A place that figures are sent to, by tag and round."""

    def put(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the figures of a round, so that they are there when this returns."""

    def close(self) -> None:
        """End it."""


class Tracking:
    """Sends the lines of each round to all trackers; one that fails is left out, and the run goes on."""

    def __init__(self, trackers: Mapping[str, Tracker], tell: Callable[[str], None]) -> None:
        self._trackers, self._tell = dict(trackers), tell
        self._tags = _Tags()

    def put(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Mirror the lines of one round."""
        if not self._trackers or not lines:
            return
        figures = self._tags.scalars(lines)
        for name, tracker in list(self._trackers.items()):
            with self._left_out_on_error(name):
                tracker.put(int(lines[0]["round"]), figures)

    def close(self) -> None:
        """End all trackers."""
        for name, tracker in list(self._trackers.items()):
            with self._left_out_on_error(name):
                tracker.close()

    @contextmanager
    def _left_out_on_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is, it is the mirror that broke, not the run
            self._trackers.pop(name)
            self._tell(f"tracking with {name} ended: {type(error).__name__}: {error}")


@contextmanager
def tracking(
    names: Sequence[str], folder: Path, title: str, past: Sequence[Mapping[str, Any]], tell: Callable[[str], None]
) -> Iterator[Tracking]:
    """Open the named trackers in a run folder, with the past lines of the run in them.

    Raises ConfigError where the package of one is not installed.
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
            raise ConfigError(f"tracking with {name} cannot begin in '{place}': {error}") from None
    mirror = Tracking(opened, tell)
    try:
        for _, lines in groupby(past, key=lambda line: line["round"]):
            mirror.put(list(lines))
        yield mirror
    finally:
        mirror.close()


class TensorBoard:
    """Writes event files: look at them with `tensorboard --logdir RUN/tracking/tensorboard`."""

    def __init__(self, place: Path, title: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # That earlier rounds are void is for a TensorBoard that has been watching since before the run was cut.
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
    """Writes one run into a local MLflow store of files; nothing is sent anywhere.

    Look at it with `MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri RUN/tracking/mlflow`.
    """

    def __init__(self, place: Path, title: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # MLflow 3 asks for this before it writes files; its databases need four packages more and seconds to begin.
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
        """Say that no more will come."""
        self._client.set_terminated(self._run)


_TRACKERS: dict[str, Callable[[Path, str], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


class _Tags:
    """Names figures for trackers, which take fewer characters than our sites and labels may have."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def scalars(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return all figures of a round by tag."""
        found: dict[str, Any] = {}
        for line in lines:
            match line["scope"]:
                case "round":
                    found |= {"round/loss": line["loss"], "round/replied": line["replied"]}
                    found |= {"round/dropped": len(line["dropped"])}
                    found |= {f"seconds/{beat}": value for beat, value in line["seconds"].items()}
                    found |= {f"round/{figure}": value for figure, value in line.get("figures", {}).items()}
                case "global":
                    found |= {f"global/{figure}": value for figure, value in line["metrics"].items()}
                case "sites":
                    kinds = {kind: line.get(kind, {}) for kind in ("mean", "std", "min", "max")}
                    found |= {f"sites/{kind}/{figure}": v for kind, part in kinds.items() for figure, v in part.items()}
                case "site":
                    site = self._name(line["site"])
                    found |= {f"site/{site}/{figure}": value for figure, value in line["metrics"].items()}
                case "classes":
                    found |= {f"class/{self._name(label)}/recall": value for label, value in line["recall"].items()}
        return {tag: float(value) for tag, value in found.items() if value is not None}

    def _name(self, name: str) -> str:
        if name not in self._names:
            plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
            plain = plain if plain.strip(".") else "_" * max(1, len(plain))  # "." and ".." would be folders
            taken, number = set(self._names.values()), 2
            while plain in taken:  # "a b" and "a_b" stay apart
                plain, number = f"{plain.removesuffix(f'-{number - 1}')}-{number}", number + 1
            self._names[name] = plain
        return self._names[name]
