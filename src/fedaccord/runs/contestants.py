"""The contestants of a comparison: runs that differ only in their seed are one contestant, compared seed by seed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaccord.evaluation.judge import Interval, Judgement, judge_better, mean_interval, paired_differences
from fedaccord.runs.gains import run_headlines, site_headline
from fedaccord.runs.page import NOTHING, listed, measure_name, signed
from fedaccord.runs.reading import Federation, Figures, Run, read_settings

Settings = dict[str, str]  # "method.lr" -> its value as JSON
Values = Mapping[int | None, float | None]  # seed -> a figure of that run, None if it was not measured
# Settings that change no figure, or only by chance.
NOT_PART_OF_A_METHOD = ("name", "seed", "run.workers", "run.batched", "run.checkpoint_every", "run.track")
FEDERATION_PARTS = ("labels.", "data.", "sites.", "server.")
LONGEST_LABEL = 50  # letters; contestants whose settings need more are labelled by folder


@dataclass(frozen=True)
class Measure:
    """A figure that contestants are compared by."""

    scope: str
    metric: str

    @property
    def words(self) -> str:
        """Its name on the page."""
        return f"{'Global model' if self.scope == 'global' else 'Mean over sites'}, {measure_name(self.metric)}"

    @property
    def share(self) -> bool:
        """Whether the metric is a share in percent, where higher is better; otherwise lower is better."""
        return self.metric != "nll"

    def of(self, figures: Figures) -> float | None:
        """Return its value among the figures of a round, or None if it was not measured."""
        return (figures.overall if self.scope == "global" else figures.sites.mean).get(self.metric)

    def curve(self, run: Run) -> dict[int, float]:
        """Return its value for every round of a run that measured it."""
        return dict(run.curve(self.scope, "metrics" if self.scope == "global" else "mean", self.metric))


@dataclass
class Contestant:
    """Runs of the same name, method and settings with different seeds, sorted by seed."""

    label: str
    settings: Settings
    runs: list[Run]

    @property
    def seeds(self) -> list[int | None]:
        """The seeds; None if a seed was not recorded."""
        return [run.summary.seed for run in self.runs]

    def figures(self, best: bool = False) -> dict[int | None, Figures]:
        """Return the figures of the last round, or of the best one, for every seed."""
        return {run.summary.seed: run.summary.best if best else run.summary.final for run in self.runs}

    def measured(self, measure: Measure, best: bool = False) -> dict[int | None, float | None]:
        """Return a measure for every seed; None if the run does not have it."""
        return {seed: measure.of(figures) for seed, figures in self.figures(best).items()}

    def values(self, measure: Measure, best: bool = False) -> dict[int | None, float]:
        """Return a measure for every seed that has it."""
        return {seed: value for seed, value in self.measured(measure, best).items() if value is not None}

    def at_site(self, site: str) -> dict[int | None, float]:
        """Return the headline figure of a site, last round, for every seed that has it."""
        found = {}
        for run in self.runs:
            metrics = run.summary.final.sites.each.get(site, {})
            view = run.federation.sites[site].view if site in run.federation.sites else {}
            if head := site_headline(view, metrics):
                found[run.summary.seed] = metrics[head]
        return found


@dataclass(frozen=True)
class Paired:
    """A comparison over shared seeds that both measured, and the judgement of the claim that the first is better."""

    seeds: list[int]
    first: float
    second: float
    difference: Interval  # of first minus second
    ahead: int
    level: int
    judgement: Judgement


def measures(contestants: Iterable[Contestant]) -> tuple[Measure, ...]:
    """Return the measures to compare contestants by: the headline metrics of any run, and the likelihood."""
    runs = [run for contestant in contestants for run in contestant.runs]
    headlines = dict.fromkeys(name for run in runs for name in run_headlines(run))
    return tuple(Measure(scope, metric) for scope in ("global", "sites") for metric in (*headlines, "nll"))


def find_contestants(runs: Sequence[Run]) -> list[Contestant]:
    """Group runs into contestants, in the order of the runs; a second run with a seed starts another contestant."""
    groups: list[Contestant] = []
    for run in runs:
        settings = flat_settings(read_settings(run.folder))
        for group in groups:
            first = group.runs[0].summary
            same = (first.name, first.method, group.settings) == (run.summary.name, run.summary.method, settings)
            if same and run.summary.seed not in group.seeds:
                group.runs.append(run)
                break
        else:
            groups.append(Contestant("", settings, [run]))
    _label(groups)
    for group in groups:
        group.runs.sort(key=lambda run: (run.summary.seed is None, run.summary.seed))
    return groups


def paired(first: Values, second: Values, more_is_better: bool) -> Paired | None:
    """Compare two contestants seed by seed; None if no shared seed was measured by both."""
    one, other = ({seed: value for seed, value in each.items() if seed is not None} for each in (first, second))
    found = {s: (a, b) for s, a in sorted(one.items()) if a is not None and (b := other.get(s)) is not None}
    if not found:
        return None
    differences = [a - b for a, b in found.values()]
    ahead = sum((difference > 0) if more_is_better else (difference < 0) for difference in differences)
    return Paired(
        seeds=list(found),
        first=statistics.fmean(a for a, _ in found.values()),
        second=statistics.fmean(b for _, b in found.values()),
        difference=mean_interval(differences),
        ahead=ahead,
        level=differences.count(0.0),
        judgement=judge_better(paired_differences(one, other, more_is_better)),
    )


def interval_words(interval: Interval, share: bool, difference: bool = False) -> str:
    """Format a 95 % interval, in percent or points if the metric is a share; one seed has none."""
    if interval.n < 2:
        return NOTHING
    factor, decimals = (100, 2 if difference else 1) if share else (1, 3)
    ends = (factor * end for end in (interval.low, interval.high))
    low, high = (signed(end, decimals) if difference else f"{end:.{decimals}f}".replace("-", "−") for end in ends)
    return f"{low} to {high}"


def differing_settings(contestants: Sequence[Contestant]) -> dict[str, list[str | None]]:
    """Return the settings in which contestants differ: key -> the value of each as JSON, or None if it has none."""
    keys = dict.fromkeys(key for contestant in contestants for key in contestant.settings)
    values = {key: [contestant.settings.get(key) for contestant in contestants] for key in keys}
    return {key: each for key, each in values.items() if len(set(each)) > 1}


def federation_sentence(contestants: Sequence[Contestant]) -> tuple[str, bool]:
    """Return a sentence on how the runs' federations differ, empty if they do not, and whether it is a warning.

    It is no warning if the seed alone makes the difference, and runs of one seed have the same federation.
    """
    runs = [run for contestant in contestants for run in contestant.runs]
    differing = _differences([run.federation for run in runs])
    if not differing:
        return "", False
    set_to_differ = any(key.startswith(FEDERATION_PARTS) for key in differing_settings(contestants))
    by_seed = [[run.federation for run in runs if run.summary.seed == seed] for seed in {r.summary.seed for r in runs}]
    if not set_to_differ and not any(map(_differences, by_seed)):
        return f"The federation is drawn anew with each seed. Between seeds differ: {'; '.join(differing)}.", False
    why = "Their figures are not measured on the same task, so a difference need not come from the method."
    return f"These runs are not of the same federation. They differ in: {'; '.join(differing)}. {why}", True


def run_problems(contestants: Sequence[Contestant]) -> list[str]:
    """Return a sentence for each problem of a run, such as divergence, with its contestant and seed."""
    return [
        f"{contestant.label}, seed {seed_list([run.summary.seed])}: {problem.text}"
        for contestant in contestants
        for run in contestant.runs
        for problem in run.summary.problems
    ]


def seed_list(seeds: Iterable[int | None]) -> str:
    """Format seeds as a list."""
    return listed(["unknown" if seed is None else str(seed) for seed in seeds])


def _label(groups: Sequence[Contestant]) -> None:
    """Give contestants short labels: names and, if those are equal, also methods, settings or folders."""
    if len(groups) == 1:
        groups[0].label = groups[0].runs[0].summary.name
    words_for: tuple[Callable[[Sequence[Contestant]], list[str]], ...] = (
        lambda clash: [group.runs[0].summary.name for group in clash],
        lambda clash: [group.runs[0].summary.method for group in clash],
        _settings,
        lambda clash: [str(group.runs[0].folder) for group in clash],
    )
    for make_words in words_for:
        for label in list(dict.fromkeys(group.label for group in groups)):
            clash = [group for group in groups if group.label == label]
            words = make_words(clash)
            if len(set(words)) > 1:
                for group, more in zip(clash, words, strict=True):
                    group.label = f"{label} · {more}" if label else more


def _settings(clash: Sequence[Contestant]) -> list[str]:
    differing = {key.rpartition(".")[2]: values for key, values in differing_settings(clash).items()}
    pairs = [[f"{key}={values[at] or 'not set'}" for key, values in differing.items()] for at in range(len(clash))]
    words = [", ".join(each) for each in pairs]
    return words if max(map(len, words)) <= LONGEST_LABEL else []


def _differences(federations: Sequence[Federation]) -> list[str]:
    labels = _not_everywhere([federation.labels for federation in federations])
    sites = _not_everywhere([list(federation.sites) for federation in federations])
    views: dict[str, list[dict[str, Any]]] = {}
    for federation in federations:
        for name, site in federation.sites.items():
            views.setdefault(name, []).append(site.view)
    unlike = [name for name, each in views.items() if any(view != each[0] for view in each)]
    tests = list(dict.fromkeys(federation.test or "none" for federation in federations))
    found = [f"labels (not in every run: {listed(labels)})"] if labels else []
    found += [f"sites (not in every run: {listed(sites)})"] if sites else []
    found += [f"views (of {listed(unlike)})"] if unlike else []
    return found + ([f"global test data ({listed(tests, '; ')})"] if len(tests) > 1 else [])


def _not_everywhere(lists: Sequence[Sequence[str]]) -> list[str]:
    every = dict.fromkeys(name for names in lists for name in names)
    return [name for name in every if any(name not in names for names in lists)]


def flat_settings(table: Mapping[str, Any]) -> Settings:
    """Flatten nested tables, with dotted keys, without name, seed and other keys that change no figure.

    A list of named tables is keyed by their names.
    """

    def walk(value: Any, key: str) -> Iterator[tuple[str, str]]:
        if isinstance(value, list) and value and all(isinstance(x, dict) and "name" in x for x in value):
            value = {str(each["name"]): each for each in value}
        if isinstance(value, dict):
            for inner, each in value.items():
                yield from walk(each, f"{key}.{inner}" if key else inner)
        else:
            yield key, json.dumps(value, ensure_ascii=False, default=str)

    return {key: value for key, value in walk(table, "") if key not in NOT_PART_OF_A_METHOD}
