"""The comparison of several runs: one self-contained page, made from their folders alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from fedaccord.durable import write_file
from fedaccord.errors import RunFolderError, UserError
from fedaccord.evaluation.judge import mean_interval
from fedaccord.runs import contestants as rivals
from fedaccord.runs import page as parts
from fedaccord.runs import report_figures as draw
from fedaccord.runs.contestants import Contestant, Measure, Paired, seed_list
from fedaccord.runs.gains import site_headline
from fedaccord.runs.page import NOTHING, Figure, Html, counted, decimal, listed, percent, remark, section, table, text
from fedaccord.runs.reading import Run, read_run

DEFAULT_NAME = "comparison.html"
OVER_SEEDS = "± is the sample standard deviation over seeds; a single seed has none."
INTERVALS = "In brackets: the 95 % interval of the mean, by Student's t over seeds."
COLOURS = (draw.BLUE, draw.ORANGE, *(colour for colour in draw.OTHERS if colour != draw.GREY))
DASHES = {"solid": "solid", "dash": "dashed", "dot": "dotted"}  # plotly's name -> the name in CSS


def write_comparison(folders: Sequence[Path], target: Path) -> Path:
    """Write a page that compares the runs in these folders.

    Raise RunFolderError if a file of a run is missing or damaged or the page cannot be written, and UserError if a
    folder is named twice.
    """
    for at, folder in enumerate(folders):
        if folder.resolve() in [earlier.resolve() for earlier in folders[:at]]:
            raise UserError(f"the run folder '{folder}' is named twice; a run cannot be compared with itself")
    contestants, figures = rivals.find_contestants([read_run(folder) for folder in folders]), dict[str, Figure]()
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
    return write_file(target, parts.page(title, body, figures), RunFolderError)


def _headline(contestants: Sequence[Contestant]) -> Html:
    runs = [run for contestant in contestants for run in contestant.runs]
    federation = runs[0].federation
    said, warns = rivals.federation_sentence(contestants)
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
        + "".join(remark(f"Problem of {problem}.", "problem") for problem in rivals.run_problems(contestants))
        + remark(f"Runs that differ only in their seed are one contestant. {measured}")
    )


def _curves(contestants: Sequence[Contestant], figures: dict[str, Figure]) -> Html:
    # A colour is used again with another dash, so 24 contestants look different.
    every = [(colour, dash) for dash in DASHES for colour in COLOURS]
    strokes = {contestant.label: every[at % len(every)] for at, contestant in enumerate(contestants)}
    panels = ""
    for measure in rivals.measures(contestants):
        measured = {c.label: [curve for run in c.runs if (curve := measure.curve(run))] for c in contestants}
        if any(measured.values()):
            key = f"{measure.scope}-{measure.metric}"
            traces = [trace for c in contestants for trace in _lines(c.label, measured[c.label], *strokes[c.label])]
            figures[key] = draw.over_rounds(traces, measure.share)
            panels += f"<div><h3>{measure.words}</h3>{parts.figure_box(key, measure.words)}</div>"
    if not panels:
        return section("Learning curves", "No run was evaluated, so there is no curve to draw.")
    reading = "A line is the mean over a contestant's seeds; its band spans the lowest to the highest seed."
    keys = ""
    for contestant in contestants:
        colour, dash = strokes[contestant.label]
        stroke = f'<b class="stroke" style="border-top:3px {DASHES[dash]} {colour}"></b>'
        keys += f"<span>{stroke}{text(contestant.label)}, {counted(len(contestant.runs), 'seed')}</span>"
    return section("Learning curves", reading, Html(f'<p class="keys">{keys}</p><div class="pair">{panels}</div>'))


def _lines(label: str, runs: Sequence[Mapping[int, float]], colour: str, dash: str) -> list[Figure]:
    """Return a contestant's mean over its seeds, after the band from the lowest to the highest seed if it has several.

    Only rounds that all seeds have evaluated: a mean over changing seeds would show steps that no run made.
    """
    if not runs:
        return []
    each = [(at, [run[at] for run in runs]) for at in sorted(set.intersection(*map(set, runs)))]
    name, traces = text(label), []
    if len(runs) > 1:
        hidden = {"mode": "lines", "meta": "spread", "hoverinfo": "skip", "hovertemplate": None}
        edge = {"width": 0, "color": colour}
        red, green, blue = bytes.fromhex(colour.removeprefix("#"))
        area = {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.14)"}
        low, high = ([(at, end(values)) for at, values in each] for end in (min, max))
        traces = [draw.curve_line(name, low, edge, **hidden), draw.curve_line(name, high, edge, **area, **hidden)]
    mean = [(at, statistics.fmean(values)) for at, values in each]
    line = {"width": 2.5, "color": colour, "dash": dash}
    return [*traces, draw.curve_line(name, mean, line, hoverlabel={"namelength": -1})]


def _figures(contestants: Sequence[Contestant]) -> Html:
    compared = rivals.measures(contestants)
    last = [[c.label, len(c.runs), *_with_intervals(c, compared)] for c in contestants]
    best = [[c.label, *_best_rounds(c, compared), *_row(c, compared, best=True)] for c in contestants]
    measures = [*(measure.words for measure in compared), f"Between sites, {parts.measure_name(compared[0].metric)}"]
    between = "Between sites: the standard deviation over the sites of one run, in points, averaged over seeds."
    return section(
        "Figures",
        Html("<h3>Last round</h3>"),
        table(["Contestant", "Seeds", *measures], last, numbers=range(1, 3 + len(compared))),
        remark(f"{OVER_SEEDS} {INTERVALS} {between}"),
        Html('<h3 class="later">Best round, not last</h3>'),
        table(
            ["Contestant", "Best round", "Picked by", *measures],
            best,
            numbers=range(3, 4 + len(compared)),
            kind="aside",
        ),
        remark(f"{parts.BEST_IS_OPTIMISTIC} Rounds are in the order of the seeds."),
    )


def _row(contestant: Contestant, measures: Sequence[Measure], best: bool) -> list[str]:
    seeds, head = len(contestant.runs), measures[0].metric
    cells = [_over_seeds(contestant.values(measure, best), seeds, measure.share) for measure in measures]
    spreads = [figures.sites.std for figures in contestant.figures(best).values() if head in figures.sites.std]
    between = f"± {100 * statistics.fmean(std[head] for std in spreads):.1f}" if spreads else NOTHING
    return [*cells, between]


def _with_intervals(contestant: Contestant, measures: Sequence[Measure]) -> list[str]:
    """Return the figures of the last round, each with the interval of its mean if there are several seeds."""
    *cells, between = _row(contestant, measures, best=False)
    for at, measure in enumerate(measures):
        interval = mean_interval(list(contestant.values(measure).values()))
        if interval.n > 1:
            words = rivals.interval_words(interval, measure.share)
            cells[at] = Html(f"{text(cells[at])} <br>({text(words)})")  # on a line of its own: the table is wide
    return [*cells, between]


def _over_seeds(values: Mapping[int | None, float], seeds: int, share: bool) -> str:
    """Format the mean and the sample standard deviation over seeds, and the number of seeds if some lack the figure."""
    if not values:
        return NOTHING
    mean, some = statistics.fmean(values.values()), f" ({len(values)} of {seeds} seeds)" if len(values) < seeds else ""
    if len(values) == 1:
        return (percent(mean) if share else decimal(mean)) + some
    std = statistics.stdev(values.values())
    return (f"{percent(mean)} ± {100 * std:.1f}" if share else f"{decimal(mean)} ± {decimal(std)}") + some


def _best_rounds(contestant: Contestant, measures: Sequence[Measure]) -> list[str]:
    """Return the best rounds of a contestant's seeds, and the metrics that picked them."""
    figures = contestant.figures(best=True).values()
    scopes = {"global": "global", "sites": "sites.mean"}
    words = {f"{scopes[measure.scope]}.{measure.metric}": measure.words for measure in measures}
    metrics = dict.fromkeys(words.get(best.metric, best.metric) for best in figures if best.metric)
    return [listed([str(best.round) if best.metric else NOTHING for best in figures]), listed(list(metrics)) or NOTHING]


def _pairs(contestants: Sequence[Contestant]) -> Html:
    title = "Seed by seed"
    if len(contestants) == 1:
        return section(title, "There is only one contestant, so there is nothing to compare it with.")
    apart, in_part, rows = list[str](), list[str](), list[list[str]]()
    for first, second in combinations(contestants, 2):
        pair = f"{first.label} and {second.label}"
        shared = [seed for seed in first.seeds if seed is not None and seed in second.seeds]
        rest = {c.label: [seed for seed in c.seeds if seed not in shared] for c in (first, second)}
        left_out = [f"{seed_list(seeds)} of {label}" for label, seeds in rest.items() if seeds]
        if not shared:
            apart.append(f"{pair} (seeds {seed_list(first.seeds)} against {seed_list(second.seeds)})")
        elif left_out:
            in_part.append(f"{pair} (shared: {seed_list(shared)}; left out: {', '.join(left_out)})")
        for measure in rivals.measures(contestants):
            if found := rivals.paired(first.measured(measure), second.measured(measure), measure.share):
                rows.append([first.label, second.label, measure.words, *_paired_cells(found, measure.share)])
    warnings = []
    if apart:
        why = "A difference between runs of different seeds may come from the seeds."
        warnings.append(f"Not compared, because they share no seed: {'; '.join(apart)}. {why}")
    if in_part:
        warnings.append(f"These are compared only on the seeds that they share: {'; '.join(in_part)}.")
    shown = [remark(warning, "warning") for warning in warnings]
    if not rows:
        return section(title, *shown, "No two contestants have a figure of the same seed.")
    head = ["First", "Second", "Measure, last round", "Shared seeds", "First's mean", "Second's mean"]
    head += ["First − second", "95 % interval", "First ahead", "First is better"]
    return section(title, *shown, table(head, rows, numbers=range(3, 9)), remark(parts.TEXTS["seed_by_seed"]))


def _paired_cells(found: Paired, share: bool) -> list[str]:
    seeds, level = len(found.seeds), f", {found.level} level" if found.level else ""
    factor, decimals, write = (100, 2, percent) if share else (1, 3, decimal)
    return [
        str(seeds),
        write(found.first),
        write(found.second),
        parts.signed(factor * found.difference.mean, decimals),
        rivals.interval_words(found.difference, share, difference=True),
        f"{found.ahead} of {seeds}{level}",
        verdict_words(found),
    ]


def verdict_words(found: Paired) -> str:
    """Return the verdict on the claim that the first is better, with the number of seeds that one did not measure."""
    failed = f" ({counted(found.judgement.failed, 'seed')} without a figure)" if found.judgement.failed else ""
    return found.judgement.verdict + failed


def _sites(contestants: Sequence[Contestant]) -> Html:
    runs = [run for contestant in contestants for run in contestant.runs]
    names = dict.fromkeys(name for run in runs for name in run.federation.sites)
    rows = [[name, *(_over_seeds(c.at_site(name), len(c.runs), share=True) for c in contestants)] for name in names]
    head = ["Site", *(contestant.label for contestant in contestants)]
    figures = listed(_site_figures(runs), " or ")
    task = f"Figures: {figures}, on each site's own task and test samples, last round."
    return section("Sites", table(head, rows, numbers=range(1, len(head))), remark(f"{task} {OVER_SEEDS}"))


def _site_figures(runs: Sequence[Run]) -> list[str]:
    """Return the names of the headline metrics of the sites in these runs."""
    headlines = dict.fromkeys(
        site_headline(run.federation.sites[site].view, metrics)
        for run in runs
        for site, metrics in run.summary.final.sites.each.items()
        if site in run.federation.sites
    )
    return [parts.measure_name(name) for name in headlines if name] or [parts.measure_name("accuracy")]


def _settings(contestants: Sequence[Contestant]) -> Html:
    title, differing = "What differs in the settings", rivals.differing_settings(contestants)
    if not differing:
        return section(title, "Nothing that changes a figure: at most names and seeds differ.")
    rows = [
        [Html(f"<code>{text(key)}</code>"), *(NOTHING if value is None else value for value in values)]
        for key, values in differing.items()
    ]
    reading = f"{NOTHING} means that a contestant has no such setting. All others are equal, except name and seed."
    return section(title, table(["Setting", *(c.label for c in contestants)], rows), remark(reading))


def _runs(contestants: Sequence[Contestant]) -> Html:
    runs = [(contestant.label, run.summary, run.folder) for contestant in contestants for run in contestant.runs]
    rows = [
        [label, run.method, seed_list([run.seed]), run.rounds, parts.duration(run.seconds), run.dropped, folder]
        for label, run, folder in runs
    ]
    head = ["Contestant", "Method", "Seed", "Rounds", "Time", "Dropped replies", "Folder"]
    return section("Runs", table(head, rows, numbers={2, 3, 4, 5}))
