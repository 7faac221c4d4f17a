"""The comparison: one self-contained page that puts several runs side by side, made from their folders alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from fedaccord.errors import UserError
from fedaccord.runs import compare_figures as draw
from fedaccord.runs.contestants import (
    MEASURES,
    Contestant,
    Paired,
    differing_settings,
    federation_sentence,
    find_contestants,
    paired,
    seed_list,
)
from fedaccord.runs.page import (
    NOTHING,
    Figure,
    Html,
    counted,
    decimal,
    duration,
    figure_box,
    listed,
    page,
    percent,
    remark,
    section,
    signed,
    table,
    text,
    write_page,
)
from fedaccord.runs.reading import read_run

DEFAULT_NAME = "comparison.html"
OVER_SEEDS = "± is the sample standard deviation over seeds; a single seed has none."


def write_comparison(folders: Sequence[Path], target: Path) -> Path:
    """Write a page that compares the runs in these folders.

    Raises RunFolderError where a run's file is missing or broken or the page cannot be written, and UserError where a
    folder is named twice.
    """
    for at, folder in enumerate(folders):
        if folder.resolve() in [earlier.resolve() for earlier in folders[:at]]:
            raise UserError(f"the run folder '{folder}' is named twice; a run cannot be compared with itself")
    contestants, figures = find_contestants([read_run(folder) for folder in folders]), dict[str, Figure]()
    body = [
        _headline(contestants),
        _curves(contestants, figures),
        _figures(contestants),
        _pairs(contestants),
        _sites(contestants),
        _settings(contestants),
        _runs(contestants),
    ]
    title = f"Comparison of {listed([contestant.label for contestant in contestants])}"
    return write_page(target, page(title, body, figures))


def _headline(contestants: Sequence[Contestant]) -> Html:
    runs = [run for contestant in contestants for run in contestant.runs]
    federation = runs[0].federation
    said, warns = federation_sentence(contestants)
    names = list(dict.fromkeys(run.summary.name for run in runs))
    labels = [contestant.label for contestant in contestants]
    who = listed(labels) if len(names) > 1 or labels == names else f"{names[0]}: {listed(labels)}"
    facts = [counted(len(contestants), "contestant"), counted(len(runs), "run")]
    facts += [] if warns else [counted(len(federation.sites), "site"), counted(len(federation.labels), "label")]
    measured = f"Global figures: {federation.test.rstrip('.')}." if federation.test and not warns else ""
    return Html(
        f'<header><h1>Comparison</h1><p class="method">{text(who)}</p>'
        f'<p class="facts">{text(" · ".join(facts))}</p></header>'
        + (remark(said, "warning" if warns else "note") if said else "")
        + remark(f"Runs that differ only in their seed are one contestant. {measured}")
    )


def _curves(contestants: Sequence[Contestant], figures: dict[str, Figure]) -> Html:
    looks = draw.strokes(contestant.label for contestant in contestants)
    panels = ""
    for measure in MEASURES:
        measured = {c.label: [curve for run in c.runs if (curve := measure.curve(run))] for c in contestants}
        if any(measured.values()):
            key = f"{measure.scope}-{measure.metric}"
            curves = {label: runs for label, runs in measured.items() if runs}
            figures[key] = draw.seed_curves(curves, looks, measure.share)
            panels += f"<div><h3>{measure.words}</h3>{figure_box(key, measure.words)}</div>"
    if not panels:
        return section("Learning curves", "No run was evaluated, so there is no curve to draw.")
    said = "A line is the mean over a contestant's seeds; its shade reaches from the lowest to the highest seed."
    key = draw.key(looks, {c.label: counted(len(c.runs), "seed") for c in contestants})
    return section("Learning curves", said, key, Html(f'<div class="pair">{panels}</div>'))


def _figures(contestants: Sequence[Contestant]) -> Html:
    last = [[c.label, len(c.runs), *_row(c, best=False)] for c in contestants]
    best = [[c.label, _best_rounds(c), _picked_by(c), *_row(c, best=True)] for c in contestants]
    measures = [*(measure.words for measure in MEASURES), "Between sites, accuracy"]
    flatters = "The best round is picked by its test figure and so flatters: quote the last round."
    between = "Between sites: the standard deviation over the sites of one run, in points, and its mean over seeds."
    return section(
        "Figures",
        Html("<h3>Last round</h3>"),
        table(["Contestant", "Seeds", *measures], last, numbers=range(1, 7)),
        remark(f"{OVER_SEEDS} {between}"),
        Html('<h3 class="later">Best round, not last</h3>'),
        table(["Contestant", "Best round", "Picked by", *measures], best, numbers=range(3, 8), kind="aside"),
        remark(f"{flatters} Rounds stand in the order of the seeds."),
    )


def _row(contestant: Contestant, best: bool) -> list[str]:
    seeds = len(contestant.runs)
    cells = [_over_seeds(contestant.values(measure, best), seeds, measure.share) for measure in MEASURES]
    spreads = [figures.sites.std for figures in contestant.figures(best).values() if "accuracy" in figures.sites.std]
    between = f"± {100 * statistics.fmean(std['accuracy'] for std in spreads):.1f}" if spreads else NOTHING
    return [*cells, between]


def _over_seeds(values: Mapping[int | None, float], seeds: int, share: bool) -> str:
    """Write a figure's mean over seeds and its sample standard deviation, and how many seeds have it if not all."""
    if not values:
        return NOTHING
    mean, some = statistics.fmean(values.values()), f" ({len(values)} of {seeds} seeds)" if len(values) < seeds else ""
    if len(values) == 1:
        return (percent(mean) if share else decimal(mean)) + some
    std = statistics.stdev(values.values())
    return (f"{percent(mean)} ± {100 * std:.1f}" if share else f"{decimal(mean)} ± {decimal(std)}") + some


def _best_rounds(contestant: Contestant) -> str:
    rounds = [str(best.round) if best.metric else NOTHING for best in contestant.figures(best=True).values()]
    return listed(rounds)


def _picked_by(contestant: Contestant) -> str:
    metrics = dict.fromkeys(best.metric for best in contestant.figures(best=True).values() if best.metric)
    said = {f"{measure.scope}{'.mean' * (measure.scope == 'sites')}.{measure.metric}": measure for measure in MEASURES}
    return listed([said[metric].words if metric in said else metric for metric in metrics]) or NOTHING


def _pairs(contestants: Sequence[Contestant]) -> Html:
    title = "Seed by seed"
    if len(contestants) == 1:
        return section(title, "There is one contestant only, so there is nothing to compare it with.")
    apart, in_part, rows = list[str](), list[str](), list[list[str]]()
    for first, second in combinations(contestants, 2):
        pair = f"{first.label} and {second.label}"
        shared = [seed for seed in first.seeds if seed is not None and seed in second.seeds]
        left_out = [
            f"{seed_list(rest)} of {c.label}"
            for c in (first, second)
            if (rest := [seed for seed in c.seeds if seed not in shared])
        ]
        if not shared:
            apart.append(f"{pair} (seeds {seed_list(first.seeds)} against {seed_list(second.seeds)})")
        elif left_out:
            in_part.append(f"{pair} (shared: {seed_list(shared)}; left out: {', '.join(left_out)})")
        for measure in MEASURES:
            if found := paired(first.values(measure), second.values(measure), more_is_better=measure.share):
                rows.append([first.label, second.label, measure.words, *_paired_cells(found, measure.share)])
    parts = (
        [
            remark(
                f"Not compared, for want of a shared seed: {'; '.join(apart)}. A difference between runs of "
                "different seeds may be the seeds' doing.",
                "warning",
            )
        ]
        if apart
        else []
    )
    if in_part:
        why = "The seeds do not match, so these are compared only on those they share"
        parts.append(remark(f"{why}: {'; '.join(in_part)}.", "warning"))
    if not rows:
        return section(title, *parts, "No two contestants have a figure of the same seed.")
    head = [
        "First",
        "Second",
        "Measure, last round",
        "Shared seeds",
        "First's mean",
        "Second's mean",
        "First − second",
        "Standard error",
        "First ahead",
    ]
    how = (
        "Only runs of the same seed are compared. The difference of accuracies is in points. Its standard error is the "
        "sample standard deviation of the seeds' differences, divided by the square root of their number; one seed has "
        "none. Ahead means more accuracy, but less nll."
    )
    return section(title, *parts, table(head, rows, numbers=range(3, 9)), remark(how))


def _paired_cells(found: Paired, share: bool) -> list[str]:
    seeds, level = len(found.seeds), f", {found.level} level" if found.level else ""
    factor, decimals, write = (100, 2, percent) if share else (1, 3, decimal)
    error = NOTHING if found.standard_error is None else f"{factor * found.standard_error:.{decimals}f}"
    difference = signed(factor * found.difference, decimals)
    return [str(seeds), write(found.first), write(found.second), difference, error, f"{found.ahead} of {seeds}{level}"]


def _sites(contestants: Sequence[Contestant]) -> Html:
    runs = [run for contestant in contestants for run in contestant.runs]
    names = dict.fromkeys(name for run in runs for name in run.federation.sites)
    rows = [[name, *(_over_seeds(c.at_site(name), len(c.runs), share=True) for c in contestants)] for name in names]
    head = ["Site", *(contestant.label for contestant in contestants)]
    own = "Accuracy on each site's own task and test samples, last round."
    return section("Sites", table(head, rows, numbers=range(1, len(head))), remark(f"{own} {OVER_SEEDS}"))


def _settings(contestants: Sequence[Contestant]) -> Html:
    title, differing = "What differs in the settings", differing_settings(contestants)
    if not differing:
        return section(title, "Nothing that changes a figure: the runs differ at most in name and seed.")
    rows = [
        [Html(f"<code>{text(key)}</code>"), *(NOTHING if value is None else value for value in values)]
        for key, values in differing.items()
    ]
    said = f"{NOTHING} means that a contestant has no such setting. All others are the same, but for name and seed."
    return section(title, table(["Setting", *(c.label for c in contestants)], rows), remark(said))


def _runs(contestants: Sequence[Contestant]) -> Html:
    rows = []
    for contestant in contestants:
        for run in contestant.runs:
            told, seed = run.summary, seed_list([run.summary.seed])
            rows.append(
                [contestant.label, told.method, seed, told.rounds, duration(told.seconds), told.dropped, run.folder]
            )
    head = ["Contestant", "Method", "Seed", "Rounds", "Time", "Dropped replies", "Folder"]
    return section("Runs", table(head, rows, numbers={2, 3, 4, 5}))
