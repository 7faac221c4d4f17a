"""The report of a run: one self-contained page, made from the run folder alone."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fedaccord.durable import write_file
from fedaccord.errors import RunFolderError, UserError
from fedaccord.federation.membership import ALWAYS, Membership
from fedaccord.federation.traffic import sum_by_site
from fedaccord.labels.views.registry import missing_words, shown_class
from fedaccord.messages.names import LARGEST_MATRIX
from fedaccord.methods.registry import method_entry
from fedaccord.runs import page as parts
from fedaccord.runs import report_experts as ending
from fedaccord.runs import report_fairness as fairness
from fedaccord.runs import report_figures as draw
from fedaccord.runs import report_labels as meaning
from fedaccord.runs import report_quality as quality
from fedaccord.runs.gains import compared_gains, run_headlines, run_verdict
from fedaccord.runs.page import (
    NOTHING,
    Figure,
    Html,
    counted,
    decimal,
    listed,
    measure_name,
    percent,
    remark,
    section,
    table,
    text,
)
from fedaccord.runs.problems import find_problems
from fedaccord.runs.progress import read_any_run
from fedaccord.runs.reading import Metrics, Run, read_resamples, read_summary
from fedaccord.training.settings import FigureSection

SITE_POINTS, FEWEST_POINTS = 8000, 20  # of the sites' learning curves: in all, and of one site
PAIR = (draw.BLUE, draw.ORANGE)


def write_report(folder: Path, alone: Path | None = None, note: Callable[[str], object] = str) -> Path:
    """Write `report.html` into a run folder; `alone` is a run of the same sites without federation, to compare with.

    `note` is called with a sentence if the run is not finished, and for each kind of view whose class, and so its
    words, could not be used. Raise RunFolderError if a file of the run is missing, damaged or cannot be written.
    """
    run = read_any_run(Path(folder))
    for sentence in [*([run.progress] if run.progress else []), *_missing_words(run)]:
        note(sentence)
    return write_file(Path(folder) / "report.html", report_page(run, alone), RunFolderError)


def report_page(run: Run, alone: Path | None = None, version: str = "") -> str:
    """Return the report as a page; one with a `version` replaces itself when its server has another version."""
    figures: dict[str, Figure] = {}
    gains = compared_gains(run.summary, run.federation, read_resamples(run.folder), alone)
    compared = [] if alone is None else [quality.gains(read_summary(alone), gains or {})]
    headline = _headline(run, "" if run.progress else run_verdict(run.summary, run.federation, gains)["text"])
    body = [
        headline,
        fairness.exclusions(run, figures),
        *compared,
        ending.experts(run, alone is not None),
        quality.quality(run, figures),
        _curves(run, figures),
        _sites(run),
        _classes(run),
        _confusion(run, figures),
        fairness.treatment(run, figures),
        meaning.coverage(run),
        meaning.absent(run),
        meaning.correspondences(run, figures),
        meaning.estimated_correspondences(run, figures),
        meaning.correlations(run, figures),
        *_figure_sections(run, figures),
        _dropped(run),
        _time(run),
        _network(run),
        _bytes(run),
        _settings(run),
    ]
    if run.progress and not run.lines:  # nothing to show before the first round
        body = [headline]
    return parts.page(run.summary.name, body, figures, version)


def _headline(run: Run, verdict: str) -> Html:
    summary, final, best = run.summary, run.summary.final, run.summary.best
    problems = find_problems(run.lines, len(run.federation.labels))
    facts = [counted(summary.rounds, "round"), parts.duration(summary.seconds), f"seed {summary.seed}"]
    facts += [counted(len(run.federation.sites), "site"), f"engine {summary.engine}"]
    facts += [] if run.progress else [counted(summary.workers, "worker")]
    facts += [f"stopped early: {summary.stopped}"] if summary.stopped else []
    scope, _, metric = best.metric.rpartition(".")
    figure = (best.overall if scope == "global" else best.sites.mean).get(metric)
    model = "global model" if scope == "global" else "mean over sites"
    chosen_by = f"{measure_name(metric)}, {model}" if metric else "not measured"
    asked = sum(len(line.asked) for line in run.of("round"))
    best_title = f"Best, not last: round {best.round}" if metric else "Best, not last"
    cards = [
        *fairness.exclusion_cards(run),
        _card(run, "Global model, last round", final.overall),
        _card(run, "Mean over sites, in the end", final.sites.mean, final.sites.std),
        parts.card(best_title, decimal(figure) if metric == "nll" else percent(figure), chosen_by, "aside"),
        parts.card("Dropped replies", str(summary.dropped), f"of {asked} asked for" if asked else ""),
    ]
    measured = f"Global figures: {run.federation.test.rstrip('.')}." if run.federation.test else ""
    picked = parts.BEST_IS_OPTIMISTIC if metric else ""
    return Html(
        (f'<p class="verdict">{text(verdict)}</p>' if verdict else "")
        + f'<header><h1>{text(summary.name)}</h1><p class="method">Method {text(summary.method)}</p>'
        f'<p class="facts">{text(" · ".join(facts))}</p></header>'
        + (remark(run.progress, "progress") if run.progress else "")
        + "".join(remark(f"Problem: {problem.text}.", "problem") for problem in problems)
        + f'<div class="cards">{"".join(cards)}</div>'
        + "".join(remark(f"Warning: {warning}.") for warning in summary.warnings)
        + remark(f"{measured} {picked}")
    )


def _card(run: Run, label: str, metrics: Metrics, spread: Metrics | None = None) -> Html:
    headlines = [name for name in run_headlines(run) if name in metrics]
    if not headlines:
        return parts.card(label, NOTHING, "not measured")
    first, *others = headlines
    std = f" ± {100 * spread[first]:.1f}" if spread and first in spread else ""
    more = [f"{measure_name(head)} {percent(metrics[head])}" for head in others]
    below = [measure_name(first), *more, f"nll {decimal(metrics.get('nll'))}"]
    return parts.card(label, percent(metrics[first]) + std, "; ".join(below))


def _curves(run: Run, figures: dict[str, Figure]) -> Html:
    names = list(dict.fromkeys(str(line.site) for line in run.of("site")))
    panels = ""
    titles = {head: parts.heading(measure_name(head)) for head in run_headlines(run)}
    for metric, title in (titles | {"nll": "Negative log-likelihood, lower is better"}).items():
        overall, mean = run.curve("global", "metrics", metric), run.curve("sites", "mean", metric)
        low, high = run.curve("sites", "min", metric), run.curve("sites", "max", metric)
        each: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
        for line in run.of("site"):
            if metric in line.metrics:
                each[str(line.site)].append((line.round, line.metrics[metric]))
        each = {name: _thinned(curve, max(FEWEST_POINTS, SITE_POINTS // len(names))) for name, curve in each.items()}
        if overall or mean or any(each.values()):
            figures[metric] = draw.learning_curves(overall, mean, low, high, each, share=metric != "nll")
            panels += f"<div><h3>{title}</h3>{parts.figure_box(metric, title)}</div>"
    if not panels:
        return section("Learning curves", "This run was not evaluated, so there is no curve to draw.")
    reading = ["The shaded band spans the weakest to the strongest site."] if run.of("sites") else []
    switch = [draw.each_site_switch(names)] if names else []
    return section("Learning curves", *reading, *switch, Html(f'<div class="pair">{panels}</div>'))


def _thinned(curve: list[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Return about `most` points of a curve, with its last, because those of many sites would make the page large."""
    step = -(-len(curve) // most) if curve else 1
    return curve[::-1][::step][::-1]


def _sites(run: Run) -> Html:
    labels, best, each = len(run.federation.labels), run.summary.best, run.summary.final.sites.each
    at_best = {line.site: line.metrics for line in run.of("site") if line.round == best.round} | best.sites.each
    main = next((head for head in run_headlines(run) if any(head in metrics for metrics in each.values())), "accuracy")
    optional = [(key, words) for key, words in parts.TEXTS["optional_metrics"].items() if key != main]
    more = {words: metric for metric, words in optional if any(metric in metrics for metrics in each.values())}
    best_round = f" ({best.round})" if best.metric else ""
    title = parts.heading(measure_name(main))
    head = ["Site", "How it labels", "Train", "Test", "Labels taught", f"{title}, in the end", "Nll, in the end"]
    head += [f"{title}, best round{best_round}", *more]
    rows = []
    for name, site in run.federation.sites.items():
        final, taught = each.get(name, {}), len(site.informs)
        words = shown_class(site.view).in_words(site.view, taught, labels)
        words += "" if site.set_size is None else f", {site.set_size:.2f} labels on average"
        membership = Membership(site.joins, site.leaves)
        words += "" if membership == ALWAYS else f"; {membership.in_words()}"
        figures = [percent(final.get(main)), decimal(final.get("nll"))]
        figures += [percent(at_best.get(name, {}).get(main)), *(percent(final.get(key)) for key in more.values())]
        rows.append([name, words, site.train, site.test, f"{taught} of {labels}", *figures])
    task = "Figures are on the site's own task and test samples: a site that labels in groups is judged by groups."
    remarks = map(remark, [task, *_missing_words(run)])
    return section("Sites", table(head, rows, numbers=range(2, len(head))), *remarks)


def _missing_words(run: Run) -> list[str]:
    return missing_words(site.view for site in run.federation.sites.values())


def _classes(run: Run) -> Html:
    if not (lines := run.of("classes")):
        return section("Classes", "No recall for each class was measured in this run.")
    recall, samples = lines[-1].recall, lines[-1].samples
    names = [name for name in run.federation.labels if name in recall or name in samples]
    found = {name: recall.get(name) for name in names}
    rows = [(name, parts.share_bar(share), percent(share), samples.get(name, 0)) for name, share in found.items()]
    rows_of = f"the test samples of {listed(lines[-1].sites)}" if lines[-1].sites else "a class's test samples"
    meaning = f"Recall after round {lines[-1].round}: the share of {rows_of} that the model assigns to their class."
    return section("Classes", meaning, table(["Class", "", "Recall", "Samples"], rows, numbers={2, 3}))


def _confusion(run: Run, figures: dict[str, Figure]) -> Html:
    last = {line.site: line for line in run.of("confusion")}
    if not last:
        return section("Confusion", "No confusion matrix was measured in this run.")
    shown = sorted(last, key=lambda site: site is not None)
    models = [("global model" if site is None else f"site {site}", last[site]) for site in shown]
    large = [(who, line) for who, line in models if len(line.names) > LARGEST_MATRIX]
    options = {}
    for number, (who, line) in enumerate(models):
        if len(line.names) <= LARGEST_MATRIX:
            figures[f"confusion-{number}"] = draw.confusion(line.names, line.counts)
            options[f"confusion-{number}"] = f"{who}, round {line.round}"
    reading = "A row is a true class: colours show the shares of its samples, numbers count them."
    matrices = [reading, *parts.figure_choice("Matrix of", options)] if options else []
    frequent = f"The most frequent confusions of models with more than {LARGEST_MATRIX} classes."
    return section("Confusion", *matrices, *([frequent, draw.frequent_confusions(large)] if large else []))


def _dropped(run: Run) -> Html:
    drops = [(line.round, drop) for line in run.of("round") for drop in line.dropped]
    if not drops:
        return section("Dropped replies", "No reply was dropped.")
    number = f"Replies that failed a check and were not aggregated: {len(drops)}."
    return section("Dropped replies", number, draw.drops(drops))


def _time(run: Run) -> Html:
    total: Counter[str] = Counter()
    for line in run.of("round"):
        total.update(line.seconds)
    if not total.total():
        return section("Time", "No time was recorded.")
    rows = [
        (step, parts.share_bar(seconds / total.total()), f"{seconds:.2f}", percent(seconds / total.total()))
        for step, seconds in total.items()
    ]
    unit = f"Seconds in each step of a round, over {counted(len(run.of('round')), 'round')}."
    return section("Time", unit, table(["Step", "", "Seconds", "Share"], rows, numbers={2, 3}))


def _network(run: Run) -> Html:
    network = run.summary.simulated
    if network is None:
        return Html("")
    took = f"the run took {parts.duration(network.seconds)}" if network.sites_work else "no site works"
    sentence = f"On the simulated network {took}; computation on the server takes no time."
    if network.target is not None:
        at = network.reached
        when = f"in round {at['round']:g}" if at else "in no evaluated round"
        if at and network.sites_work:
            when = f"after {parts.duration(at['seconds'])}, {when}"
        sentence += f" It reached {network.metric} {network.target:g} {when}."
    head = ["Site", "Samples per second", "Uplink, Mbit/s", "Downlink, Mbit/s", "Latency, s"]
    columns = ("speed", "up", "down", "latency")
    rows = [(name, *(f"{link.get(key, 0.0):.3g}" for key in columns)) for name, link in network.sites.items()]
    return section("Simulated network", sentence, table(head, rows, numbers={1, 2, 3, 4}))


def _bytes(run: Run) -> Html:
    rounds = [line for line in run.of("round") if line.bytes]
    if not rounds:
        return section("Bytes", "No bytes were recorded.")
    rows = []
    for site, (sent, received) in sorted(sum_by_site(line.bytes for line in rounds).items()):
        asked = sum(site in line.bytes for line in rounds)
        rows.append((site, asked, parts.size(sent / asked), parts.size(received / asked), parts.size(sent + received)))
    meaning = "Mean size of the encoded messages to and from each site in a round that it took part in."
    head = ["Site", "Rounds", "To it, each round", "From it, each round", "In all"]
    return section("Bytes", meaning, table(head, rows, numbers={1, 2, 3, 4}))


def _settings(run: Run) -> Html:
    values = text(json.dumps(run.summary.settings, indent=2, ensure_ascii=False))
    folded = Html(f"<details><summary>Show all</summary><pre>{values}</pre></details>")
    digest = Html(f"<p>SHA-256 of the final parameters: <code>{text(run.summary.model_sha256)}</code></p>")
    settings = section("Settings", folded if run.summary.settings else "No settings were recorded.")
    return Html(settings + section("Model", digest if run.summary.model_sha256 else "No global model was saved."))


def _figure_sections(run: Run, figures: dict[str, Figure]) -> list[Html]:
    """Draw the server's figures in the sections that the settings of the method describe."""
    sections: tuple[FigureSection, ...] = ()
    with contextlib.suppress(UserError):  # a method outside the package that is not trusted or not there
        sections = method_entry(run.summary.method).settings.report_sections
    shown = [(part, _figure_curves(run, part, f"figures-{at}", figures)) for at, part in enumerate(sections)]
    return [section(part.title, *body) for part, body in shown if body]


def _figure_curves(run: Run, part: FigureSection, key: str, figures: dict[str, Figure]) -> list[str]:
    """Draw the curves of a section into `figures` and return its body; empty if the run has none of its figures."""
    prefix, names = part.per_site, sorted({name for line in run.of("round") for name in line.figures})
    sites = {name: text(name.removeprefix(prefix)) for name in names if prefix and name.startswith(prefix)}
    curves = {words: run.curve("round", "figures", name) for name, words in (sites or part.curves).items()}
    body: list[str] = []
    if sites:
        colours = list(draw.site_colours(list(sites)).values())
        figures[key] = draw.named_curves(curves, colours, width=1.8, legend=len(sites) <= 12)
    elif any(curves.values()):
        figures[key] = draw.named_curves(curves, PAIR, share=True)
    if key in figures:
        body += [part.reading, parts.figure_box(key, f"{part.title} over the rounds")]
    for name, words in part.means.items():
        if shares := [share for _, share in run.curve("round", "figures", name)]:
            body.append(remark(words.format(mean=percent(sum(shares) / len(shares)))))
    return body
