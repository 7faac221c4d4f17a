"""FedAccord from Python: sites with data in memory, one call to train, and a result object."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedaccord.config import Experiment, check_experiment
from fedaccord.data.declarations import Fairness
from fedaccord.data.server_data import check_apart_from_test
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import natural
from fedaccord.durable import write_file
from fedaccord.errors import ConfigError, DataError, RunFolderError
from fedaccord.experiment import run_experiment
from fedaccord.extensions import INSTALLED, trusting
from fedaccord.federation.recipe import Recipe
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import NOT_ANNOTATED, Candidates, Exact, View
from fedaccord.methods.registry import given, is_importable
from fedaccord.models.catalogue import give_model
from fedaccord.runs.checkpoint import read_lines
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.model_folder import TrainedModel
from fedaccord.seeds import derive

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Site:
    """A site with samples in memory: one row of features and one annotation per sample, and the view."""

    name: str
    x: Any
    labels: Iterable[Any]
    view: View
    test: float = 0.2
    truth: Iterable[str] | None = None  # true class names, for evaluation only
    groups: Iterable[Any] | None = None  # of a sensitive attribute: names, or `a|b` where several may be true
    joins: int | None = None  # first round with the site
    leaves: int | None = None  # first round without the site


class Federation:
    """Sites that train together."""

    def __init__(
        self,
        sites: Sequence[Site],
        test: tuple[Any, Iterable[str]] | None = None,
        labelled: tuple[Any, Iterable[str]] | None = None,
    ) -> None:
        """Store the sites, and the server's test and labelled samples as (samples, class names)."""
        if not isinstance(sites, Sequence) or not sites:
            raise DataError("a federation needs at least one site, in a list")
        for site in sites:
            if not isinstance(site, Site):
                raise ConfigError(f"a federation is made of fedaccord.Site, not of {type(site).__name__}")
            if not isinstance(site.view, View):
                raise ConfigError(f"site '{site.name}': its view should be one such as Exact(space), not {site.view!r}")
        self.space = sites[0].view.space
        for site in sites:
            if site.view.space != self.space:
                raise ConfigError(f"site '{site.name}' has another label space than site '{sites[0].name}'")
        self.sites, self.test, self.labelled = list(sites), test, labelled

    def train(
        self,
        method: str | Callable[[Any], Recipe] = "accord",
        model: str | nn.Module | Mapping[str, Any] = "mlp",
        seed: int = 0,
        out: Path | str | None = None,
        workers: int = 0,
        run: Mapping[str, Any] | None = None,
        stop: Mapping[str, Any] | None = None,
        fairness: Mapping[str, Any] | None = None,
        trust: Iterable[str] = (),
        **settings: Any,
    ) -> Result:
        """Train and return the result; `settings` are the method's own, such as `rounds`, `lr` or `steps`.

        `method` is a name or a recipe function, whose argument is annotated with its class of settings. One that other
        processes cannot import needs `workers=0`.

        `run`, `stop` and `fairness` are the sections of these names in an experiment file. With `fairness`, groups join
        the features at their end unless its `input` is false.

        `model` is a catalogue name, a table with a name and settings, or any module with an `encoder` and a `head`.
        Names such as "package.module:factory" need that package in `trust`; objects that you hand over do not. The run
        folder is written to `out`, or to a temporary one that lives as long as the result.
        """
        table = {
            "name": "federation",
            "seed": seed,
            "labels": {"classes": list(self.space.names)},
            "sites": [
                {"name": s.name, "data": "(in memory)", "test": s.test, "joins": s.joins, "leaves": s.leaves}
                for s in self.sites
            ],
            "model": _model_table(model),
            "run": {"workers": workers, **(run or {})},
            "stop": dict(stop or {}),
            **({} if fairness is None else {"fairness": dict(fairness)}),
        }
        views = {type(s.view).__module__ for s in self.sites if not type(s.view).__module__.startswith("fedaccord.")}
        packages = [*([trust] if isinstance(trust, str) else trust), *views, INSTALLED]
        with trusting(packages), _named(method) as (name, found_elsewhere):
            table["method"] = {"name": name, **settings}
            experiment = check_experiment(_plain(table), "Federation.train")
            if not found_elsewhere and (experiment.run.workers != 0 or experiment.run.engine != "embedded"):
                raise ConfigError(
                    f"method: '{name}' cannot be imported by other processes; use workers=0, or put the function into "
                    "a module"
                )
            return self._train(experiment, out, packages)

    def _train(self, experiment: Experiment, out: Path | str | None, trust: Sequence[str]) -> Result:
        data = self._data(experiment.seed, experiment.fairness)
        folder = RunFolder(Path(tempfile.mkdtemp(prefix="fedaccord-")) if out is None else Path(out))
        try:
            summary = run_experiment(experiment, Path(), folder, data=data)
        except BaseException:
            if out is None:
                shutil.rmtree(folder.path, ignore_errors=True)  # nobody will read a temporary folder
            raise
        finally:
            folder.close()
        return Result(folder.path, summary, temporary=out is None, trust=trust)

    def _data(self, seed: int, fairness: Fairness | None = None) -> FederationData:
        data = FederationData(self.space, {}, (), groups=self._groups())
        for site in self.sites:
            if site.name in data.sites:
                raise ConfigError(f"two sites are named '{site.name}'")
            data.add(_site_data(site, seed, data.groups, fairness), site.test)
        shapes = {site.name: tuple(site.train.x.shape[1:]) for site in data.sites.values()}
        if len(set(shapes.values())) > 1:
            raise DataError("the sites' samples differ in shape: " + ", ".join(f"{n}: {s}" for n, s in shapes.items()))
        data.input_shape = next(iter(shapes.values()))
        if fairness is not None and fairness.input and data.groups:
            data.group_features = data.input_shape[0] - len(data.groups)
        if self.test is not None:
            data.test = self._of_server(self.test, "test", data.input_shape)
            data.test_source = "the test data given to the federation"
        if self.labelled is not None:
            data.labelled = self._of_server(self.labelled, "labelled", data.input_shape)
            data.notes += check_apart_from_test(data.labelled, data.test, "labelled")
        return data

    def _groups(self) -> list[str]:
        """Return the groups that any site names, in order."""
        values = [str(v) for s in self.sites for v in s.groups or () if v is not None]
        return sorted({name.strip() for value in values for name in value.split("|")} - {""}, key=natural)

    def _of_server(self, given: Any, name: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        if not isinstance(given, Sequence) or len(given) != 2:
            raise DataError(f"{name}: samples and their true class names are needed, as in {name}=(x, names)")
        x, target = _samples(given[0], name), Exact(self.space).encode(given[1], name)
        if len(target) != len(x):
            raise DataError(f"{name}: there are {len(x)} samples but {len(target)} class names")
        if tuple(x.shape[1:]) != shape:
            raise DataError(f"{name}: the samples have shape {tuple(x.shape[1:])}, the sites' have {shape}")
        known = target != NOT_ANNOTATED
        return x[known], target[known]


class Result:
    """The result of a training run: its folder, summary, model and metrics."""

    def __init__(self, folder: Path, summary: dict[str, Any], temporary: bool, trust: Iterable[str]) -> None:
        self.folder, self.summary = folder, summary
        self._trust = tuple(trust)  # packages whose code the model may run
        self._lines: list[dict[str, Any]] | None = None  # read before a temporary folder is removed
        # A temporary folder is removed together with the result.
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True) if temporary else None

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


@contextmanager
def _named(method: str | Callable[[Any], Recipe]) -> Iterator[tuple[str, bool]]:
    """Yield a method's name, and whether other processes find it; a function can be found within this context."""
    if isinstance(method, str):
        yield method, True
    elif not callable(method):
        raise ConfigError(f"method should be a name or a function that returns a recipe, not {method!r}")
    else:
        with given(method) as name, trusting([method.__module__]):
            yield name, is_importable(method)


def _model_table(model: Any) -> dict[str, Any]:
    if isinstance(model, nn.Module):
        return give_model(model)
    if isinstance(model, str):
        return {"name": model}
    if isinstance(model, Mapping):
        return dict(model)
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise ConfigError(f"model is the class {model.__name__}; make one of it: model={model.__name__}(...)")
    forms = "a name, a table with a name and settings, or a module with an encoder and a head"
    raise ConfigError(f"model should be {forms}, not {model!r}")


def _plain(value: Any) -> Any:
    """Return settings with numpy numbers converted to Python numbers, as an experiment file holds them."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def _site_data(site: Site, seed: int, groups: Sequence[str] = (), fairness: Fairness | None = None) -> SiteData:
    x = _samples(site.x, f"site '{site.name}'")
    target = site.view.encode(site.labels, f"site '{site.name}'")
    if len(target) != len(x):
        raise DataError(f"site '{site.name}' has {len(x)} samples but {len(target)} labels")
    truth = site.view.true_classes(target)
    if site.truth is not None:
        truth = Exact(site.view.space).encode(site.truth, f"site '{site.name}', truth")
    listed = None if site.groups is None else Candidates(LabelSpace(groups)).encode(site.groups, f"site '{site.name}'")
    if listed is not None and len(listed) != len(x):
        raise DataError(f"site '{site.name}' has {len(x)} samples but {len(listed)} groups")
    if fairness is not None and fairness.input:
        if listed is None or x.ndim != 2:
            what = "has no groups" if listed is None else "has samples that are no rows of numbers"
            raise ConfigError(f"fairness: site '{site.name}' {what}; set input to False to keep groups out of it")
        bits = listed.to(x.dtype)
        x = torch.cat([x, bits / bits.sum(1, keepdim=True).clamp(min=1) if fairness.normalise else bits], 1)
    order = torch.from_numpy(np.random.default_rng(derive(seed, "test", site.name)).permutation(len(x)))
    test_size = int(site.test * len(x))

    def part(rows: Tensor) -> Samples:
        rows = rows.sort().values
        known = (None if values is None else values[rows] for values in (truth, listed))
        return Samples(x[rows], target[rows], *known)

    return SiteData(site.name, site.view, part(order[test_size:]), part(order[:test_size]))


def _samples(x: Any, where: str) -> Tensor:
    try:
        with np.errstate(over="ignore"):  # infinite values are reported below
            given = x.detach() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, dtype=np.float32))
        samples = given.to(torch.float32)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: samples are rows of numbers, and these are not: {error}") from None
    if samples.ndim < 2 or not len(samples):
        raise DataError(f"{where}: samples are rows of numbers, not an array of shape {tuple(samples.shape)}")
    if not bool(torch.isfinite(samples).all()):
        raise DataError(f"{where}: the samples hold NaN or infinite values; fill them in first")
    return samples
