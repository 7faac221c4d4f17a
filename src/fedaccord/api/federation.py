"""A federation of sites with data in memory: check it, or train it in one call."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedaccord.api.frames import FrameSite, frame_space, join_frames
from fedaccord.api.python_lines import in_python
from fedaccord.api.result import Result
from fedaccord.api.site import Site, read_samples, site_data, without_words
from fedaccord.checks.federation import check_data
from fedaccord.config import Experiment, check_experiment
from fedaccord.data.declarations import Fairness
from fedaccord.data.server_data import check_apart_from_test
from fedaccord.data.site_data import ServerInputs
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import natural
from fedaccord.errors import ConfigError, DataError, UserError
from fedaccord.experiment import run_experiment, site_files
from fedaccord.extensions import INSTALLED, trusting
from fedaccord.federation.recipe import Recipe
from fedaccord.findings import Finding
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.synonyms import Synonyms, check_own_synonyms, rename_annotation, renaming
from fedaccord.labels.views import NOT_ANNOTATED, Exact, View
from fedaccord.methods.registry import given, is_importable
from fedaccord.models.catalogue import give_model
from fedaccord.runs.folder import RunFolder


class Federation:
    """Sites that train together."""

    def __init__(
        self,
        sites: Sequence[Site | FrameSite],
        test: Any = None,
        labelled: Any = None,
        unlabelled: Any = None,
        features: Mapping[str, Any] | None = None,
        classes: Sequence[str] | None = None,
        synonyms: Synonyms | None = None,
        missing: Sequence[str] = (),
    ) -> None:
        """Store the sites, the server's test and labelled samples as (samples, class names), and its unlabelled inputs.

        `features` (as `[features]` in an experiment file) and `classes` are for sites with frames; without them, the
        columns and labels of the frames decide. Samples of the server are then a frame, or (frame, class names).

        `synonyms` lists the words that stand for a label in annotations: {"mild": ["Mild", "1"]}. `missing` lists the
        words that mean that a sample is not annotated: ["?"].
        """
        if not isinstance(sites, Sequence) or not sites:
            raise DataError("a federation needs at least one site, in a list")
        for site in sites:
            if not isinstance(site, Site | FrameSite):
                raise ConfigError(f"a federation is made of fedaccord.Site, not of {type(site).__name__}")
            if sum(other.name == site.name for other in sites) > 1:
                raise ConfigError(f"two sites are named '{site.name}'")
        self.sites, self.test, self.labelled, self.unlabelled = list(sites), test, labelled, unlabelled
        self._arrays = [site for site in sites if isinstance(site, Site)]
        self._frames = [site for site in sites if isinstance(site, FrameSite)]
        if self._arrays and self._frames:
            raise ConfigError(
                f"site '{self._frames[0].name}' has a frame, site '{self._arrays[0].name}' arrays; make all with "
                "Site.from_frame, so that they agree on features"
            )
        if self._arrays and (features is not None or classes is not None):
            raise ConfigError("features and classes are for sites with frames; arrays are used as they are")
        self.features = dict(features or {})
        self.space = frame_space(self._frames, classes) if self._frames else _common_space(self._arrays)
        self.synonyms = {label: list(words) for label, words in (synonyms or {}).items()}
        self.missing = [missing] if isinstance(missing, str) else list(missing)
        for site in self._arrays:
            common, names = ({}, site.view.answers) if site.view.has_own_names else (self.synonyms, site.view.space)
            _check_synonyms(site.synonyms or {}, common, tuple(names), f"site '{site.name}'")

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
        admit: Mapping[str, Any] | None = None,
        trust: Iterable[str] = (),
        **settings: Any,
    ) -> Result:
        """Train and return the result; `settings` are the method's own, such as `rounds`, `lr` or `steps`.

        `method` is a name or a recipe function, whose argument is annotated with its class of settings. One that other
        processes cannot import needs `workers=0`.

        `run`, `stop`, `fairness` and `admit` are the sections of these names in an experiment file. With `fairness`,
        groups join the features at their end unless its `input` is false.

        `model` is a catalogue name, a table with a name and settings, or any module with an `encoder` and a `head`.
        Names such as "package.module:factory" need that package in `trust`; objects that you hand over do not. The run
        folder is written to `out`, or to a temporary one that lives as long as the result.
        """
        sections = {"seed": seed, "run": run, "stop": stop, "fairness": fairness, "admit": admit}
        with self._experiment(method, model, workers, trust, sections, settings) as (experiment, packages):
            return self._train(experiment, out, packages)

    def check(
        self,
        method: str | Callable[[Any], Recipe] = "accord",
        model: str | nn.Module | Mapping[str, Any] = "mlp",
        seed: int = 0,
        run: Mapping[str, Any] | None = None,
        stop: Mapping[str, Any] | None = None,
        fairness: Mapping[str, Any] | None = None,
        admit: Mapping[str, Any] | None = None,
        trust: Iterable[str] = (),
        **settings: Any,
    ) -> list[Finding]:
        """Return the findings of `fedaccord check` for `train` with the same arguments.

        Data that cannot be used are findings of level "error". Wrong arguments raise, as in `train`.
        """
        sections = {"seed": seed, "run": run, "stop": stop, "fairness": fairness, "admit": admit}
        with self._experiment(method, model, 0, trust, sections, settings) as (experiment, _):
            try:
                findings = check_data(experiment, Path(), self._data(experiment)).all_findings()
            except UserError as error:
                findings = [Finding("error", str(error))]
            return [replace(finding, text=in_python(finding.text)) for finding in findings]

    @contextmanager
    def _experiment(
        self,
        method: str | Callable[[Any], Recipe],
        model: str | nn.Module | Mapping[str, Any],
        workers: int,
        trust: Iterable[str],
        sections: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> Iterator[tuple[Experiment, list[str]]]:
        """Yield the experiment that these arguments describe, and the packages whose code it may run."""
        table = {
            "name": "federation",
            "sites": [*map(_section, self._arrays), *(dict(site.declaration) for site in self._frames)],
            "features": self.features,
            "model": _model_table(model),
            **{key: value for key, value in sections.items() if value is not None},
            "run": {"workers": workers, **(sections["run"] or {})},
        }
        classes = {} if self.space is None else {"classes": list(self.space.names)}
        table["labels"] = {**classes, "synonyms": self.synonyms, "missing": self.missing}
        views = {type(site.view).__module__ for site in self._arrays} | {site.code for site in self._frames} - {""}
        outside = [module for module in views if not module.startswith("fedaccord.")]
        packages = [*([trust] if isinstance(trust, str) else trust), *outside, INSTALLED]
        with trusting(packages), _named(method) as (name, found_elsewhere):
            table["method"] = {"name": name, **settings}
            experiment = check_experiment(_plain(table), "Federation")
            if not found_elsewhere and (experiment.run.workers != 0 or experiment.run.engine != "embedded"):
                raise ConfigError(
                    f"method: '{name}' cannot be imported by other processes; use workers=0, or put the function into "
                    "a module"
                )
            yield experiment, packages

    def _train(self, experiment: Experiment, out: Path | str | None, trust: Sequence[str]) -> Result:
        data = self._data(experiment).without_flaws()
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

    def _data(self, experiment: Experiment) -> FederationData:
        if not self._frames:
            return self._array_data(experiment.seed, experiment.fairness)
        server = {"test": self.test, "labelled": self.labelled, "unlabelled": self.unlabelled}
        return _apart(join_frames(self._frames, site_files(experiment, Path()), **server))

    def _array_data(self, seed: int, fairness: Fairness | None = None) -> FederationData:
        assert self.space is not None
        data = FederationData(self.space, {}, (), groups=self._groups())
        for site in self._arrays:
            data.add(site_data(site, seed, self.synonyms, self.missing, data.groups, fairness), site.test)
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
        if self.unlabelled is not None:
            x = read_samples(self.unlabelled, "unlabelled")
            data.set_unlabelled(ServerInputs(_of_shape(x, "unlabelled", data.input_shape)), "unlabelled")
        return _apart(data)

    def _groups(self) -> list[str]:
        """Return the groups that any site names, in order."""
        values = [str(v) for s in self._arrays for v in s.groups or () if v is not None]
        return sorted({name.strip() for value in values for name in value.split("|")} - {""}, key=natural)

    def _of_server(self, given: Any, name: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        if not isinstance(given, Sequence) or len(given) != 2:
            raise DataError(f"{name}: samples and their true class names are needed, as in {name}=(x, names)")
        assert self.space is not None
        words = renaming(self.synonyms)
        classes = [rename_annotation(value, None, words) for value in without_words(given[1], self.missing)]
        x, target = read_samples(given[0], name), Exact(self.space).encode(classes, name)
        if len(target) != len(x):
            raise DataError(f"{name}: there are {len(x)} samples but {len(target)} class names")
        known = target != NOT_ANNOTATED
        return _of_shape(x, name, shape)[known], target[known]


def _of_shape(x: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    if tuple(x.shape[1:]) != shape:
        raise DataError(f"{name}: the samples have shape {tuple(x.shape[1:])}, the sites' have {shape}")
    return x


def _apart(data: FederationData) -> FederationData:
    """Return the data with flaws or notes on samples of the server that are also in its test."""
    for name, x in (("labelled", data.labelled and data.labelled[0]), ("unlabelled", data.unlabelled)):
        with data.collecting_flaws():
            data.notes += check_apart_from_test(x, data.test, name)
    return data


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


def _common_space(sites: Sequence[Site]) -> LabelSpace:
    """Return the label space of sites with arrays; raise ConfigError if their views do not have the same."""
    for site in sites:
        if not isinstance(site.view, View):
            raise ConfigError(f"site '{site.name}': its view should be one such as Exact(space), not {site.view!r}")
        if site.view.space != sites[0].view.space:
            raise ConfigError(f"site '{site.name}' has another label space than site '{sites[0].name}'")
    return sites[0].view.space


def _check_synonyms(own: Synonyms, common: Synonyms, names: Sequence[str], where: str) -> None:
    try:
        check_own_synonyms(own, common, names)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _section(site: Site) -> dict[str, Any]:
    """Return a site with arrays as a `[[sites]]` table."""
    return {
        "name": site.name,
        "data": "(in memory)",
        "test": site.test,
        "joins": site.joins,
        "leaves": site.leaves,
    }


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
