"""accord against its rivals, training alone at every site, and FLamby's heart disease: the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fedaccord.evaluation.judge import CONFIDENCE, Interval, Judgement
from papers.accord.cells import SCALES, Scale, cells, chosen_rate, estimate, follow_ups
from papers.accord.compared import Standing, better_alone, difference, ranked_names, standing, values
from papers.accord.contestants import ACCORD, LOCAL, POOLED, REGULARISED, TREES, contestants, rates
from papers.accord.every_site import CHANCE, site_statement
from papers.accord.flamby import flamby_blocks
from papers.accord.forest import ForestRow, forest_plot
from papers.accord.made_data import make_files
from papers.accord.sets import EVERY, SETS
from papers.harness.archive import Archive
from papers.harness.cells import Results, Size
from papers.harness.pages import Block, Chapter, Grid, Picture
from papers.harness.statistics import spread

__all__ = ["ARCHIVE", "TITLE", "cells", "chapters", "estimate", "follow_ups", "prepare"]

TITLE = "accord on every kind of label"
FOREST = "accord-grand.svg"
AVERAGING = ("fedavg", "fedprox", "FedPer, own heads")
COMMON = (*AVERAGING, LOCAL, REGULARISED, TREES, POOLED)
FEW_SEEDS = 5
ARCHIVE = Archive(Path(__file__).with_name("finished"), ("accuracy", "map", "nll", "samples"))
prepare = make_files


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    return [
        Chapter("What was run", _what_was_run(scale, size)),
        Chapter("Where accord stands", _where_accord_stands(results)),
        Chapter("Mean over sites", _means(results)),
        Chapter("Differences", _differences(results)),
        Chapter("Every site against training alone", _every_site(results, scale)),
        Chapter("The global model", [_global(results)]),
        Chapter("FLamby's Fed-Heart-Disease", flamby_blocks(results)),
        Chapter("Learning rates", _learning_rates(results, scale)),
        Chapter("What is missing", _missing(results, scale, size)),
    ]


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    quick = (
        "**This is the quick form: it shows that the instrument works and roughly where `accord` stands. It is not the "
        f"table.** It has {scale.seeds} seeds, a fifth of the rounds and no search of learning rates; `python -m "
        "papers accord` makes the table."
    )
    searched = (
        "Every contestant tries the same three learning rates once per set, on rows kept apart from the training rows "
        "of seed 0 (as `fedaccord tune`, by the likelihood of the annotations). Other seeds draw other test rows, so a "
        "row may have a part in the search and be tested with another seed; with three values of one setting this "
        "leaves little room for a choice that fits the test."
    )
    blocks: list[Block] = [
        f"{len(SETS)} federations of every kind of label, {scale.seeds} seeds ({scale.many} for `accord`, for training "
        "alone and for the best rival on each set). All contestants of a set have the same split, annotations, initial "
        "weights, network, rounds and steps. Figures are those of what each site ends with, on its own test rows: the "
        "mean over the sites, in percent; accuracy, or mean average precision of tags. `accord` is the method "
        "with its defaults of this version.",
        "`local, regularised` is `local` with `regularise = true`, at candidate sites with the loss of `pfedpll`. "
        "`FedPer, own heads` shares the encoder only. `boosted trees, alone` is scikit-learn's "
        "HistGradientBoosting on a site's own training rows (one ensemble per tag); they are left out where labels are "
        "candidate sets, where there are dozens of tags, and where inputs are no table. `pooled` trains on the true "
        "labels (or the tags) of all sites in one place: a bound that is not ranked. On the coarse sets the "
        "server holds three labelled samples of each class, which `accord` and FedMT's methods use. All but the trees "
        "have the cosine schedule.",
        searched if scale.searched else "Everybody has the middle of the three learning rates of its set.",
    ]
    return [quick, *blocks] if size == "quick" else blocks


def _where_accord_stands(results: Results) -> list[Block]:
    found = [place for name in SETS if (place := standing(results, name)) is not None]
    if not found:
        return ["No set is finished yet."]
    first = [place for place in found if place.is_first]
    worst = min(found, key=lambda place: place.gap.mean)
    alone = {place.name: _to_training_alone(results, place.name) for place in found}
    rows = [
        ForestRow(place.name, [place.gap.interval, None if (gap := alone[place.name]) is None else gap.interval])
        for place in found
    ]
    return [
        f"`accord` is first, or within one standard error of the first, on {len(first)} of {len(found)} sets"
        f"{_names([place.name for place in found if not place.is_first])}. {_furthest(worst)} Against the best rival "
        f"of each set it is {_count([place.gap for place in found])}; against the better way of training alone it is "
        f"{_count([gap for gap in alone.values() if gap is not None])}.",
        Picture(
            FOREST,
            "Differences of accord to the best rival and to the better way of training alone",
            forest_plot("Differences of accord", ("to the best rival", "to the better way alone"), rows),
        ),
        "Points are mean paired differences over seeds, lines their 95 % intervals (dashed where cut). The better way "
        "of training alone is here the one with the higher mean on the test rows, which favours it.",
    ]


def _to_training_alone(results: Results, name: str) -> Judgement | None:
    alone = better_alone(results, name)
    return None if alone is None else difference(results, name, alone)


def _count(gaps: Sequence[Judgement]) -> str:
    verdicts = [gap.verdict for gap in gaps]
    decided = f"better beyond the 95 % interval on {verdicts.count('holds')}, worse on {verdicts.count('refuted')}"
    return f"{decided} and undecided on {verdicts.count('undecided')}"


def _furthest(worst: Standing) -> str:
    if worst.gap.mean >= 0:
        return "It is behind on none."
    return f"It is furthest behind on {worst.name}: {_words(worst.gap.interval)} to {worst.rival}."


def _names(names: list[str]) -> str:
    return f" (not on {'; '.join(names)})" if names else ""


def _means(results: Results) -> list[Block]:
    rows = []
    for name, chosen in SETS.items():
        special = [c.name for c in contestants(chosen) if c.name not in (ACCORD, *COMMON)]
        own = "; ".join(f"{each} {spread(values(results, name, each))}" for each in special)
        shown = [spread(found) if (found := values(results, name, each)) else "–" for each in (ACCORD, *COMMON)]
        rows.append([name, chosen.kind, shown[0], own or "–", *shown[1:]])
    head = ("set", "labels", ACCORD, "made for this kind", *COMMON)
    return [
        Grid(head, rows, words=True),
        "Mean ± standard deviation over seeds. `pooled` is a bound and not ranked; a dash: does not compete or has not "
        "run.",
    ]


def _differences(results: Results) -> list[Block]:
    rows = []
    for name in SETS:
        for rival in [each for each in ranked_names(name) if each != ACCORD]:
            gap = difference(results, name, rival)
            if gap is not None:
                rows.append((name, rival, _words(gap.interval), str(gap.interval.n), gap.verdict))
    return [
        "Paired differences of `accord` to each rival in points, with 95 % intervals (Student's t over seeds), and the "
        "verdict on `accord is better`: `holds`, `refuted` or `undecided`.",
        Grid(("set", "rival", "accord is ahead by", "seeds", "verdict"), rows, words=True),
    ]


def _every_site(results: Results, scale: Scale) -> list[Block]:
    statement = site_statement(results, scale)
    if not statement.sites:
        return ["No site has figures with two seeds yet."]
    losing, number = statement.losing, len(statement.sites)
    verdict = "significantly above" if statement.p_value < 1 - CONFIDENCE else "not significantly above"
    blocks: list[Block] = [
        "At each site `accord` is compared with the better of the two ways of training alone, plain and regularised, "
        "chosen by the site with each seed on rows kept apart from its training rows, not on its test rows. The "
        "interval is over seeds; where sites are drawn anew with each seed, a site is its place in the split.",
        f"At {len(losing)} of {number} sites ({100 * len(losing) / number:.1f} %) the difference is below zero beyond "
        f"its 95 % interval. Chance alone would give {100 * CHANCE:.1f} %; the share is {verdict} that (one-sided "
        f"binomial test, p = {statement.p_value:.2g}).",
    ]
    if scale.many < FEW_SEEDS:
        blocks.append(
            f"With {scale.many} seeds this only checks the instrument: at a small site two differences are often "
            "equal, and the interval then has no width."
        )
    if losing:
        rows = [(each.name, each.site, _words(each.interval)) for each in losing]
        blocks.append(Grid(("set", "site", "accord to the better way alone"), rows, words=True))
    return blocks


def _global(results: Results) -> Grid:
    rows = []
    for name, chosen in SETS.items():
        ours, theirs = (values(results, name, each, "global") for each in (ACCORD, "fedavg"))
        special = [c.name for c in contestants(chosen) if c.name not in (ACCORD, *COMMON)]
        made = "; ".join(f"{s} {spread(found)}" for s in special if (found := values(results, name, s, "global")))
        gap = difference(results, name, "fedavg", scope="global")
        words = "–" if gap is None else f"{_words(gap.interval)}, {gap.verdict}"
        rows.append((name, spread(ours), spread(theirs), words, made or "–"))
    head = ("set", "accord", "fedavg", "accord is better than fedavg by", "made for this kind")
    return Grid(head, rows, words=True)


def _learning_rates(results: Results, scale: Scale) -> list[Block]:
    rows = []
    for name, chosen in EVERY.items():
        if not scale.searches(name):
            continue
        found = {c.name: chosen_rate(results, scale, name, c) for c in contestants(chosen)}
        words = "; ".join(f"{each} {rate:g}" for each, rate in found.items() if rate is not None)
        tried = ", ".join(f"{rate:g}" for rate in rates(chosen, contestants(chosen)[0]))
        rows.append((name, tried, words or "–"))
    return [Grid(("set", "tried (trees: 0.0333, 0.1, 0.3)", "chosen"), rows, words=True)]


def _missing(results: Results, scale: Scale, size: Size) -> list[Block]:
    absent = []
    for name, chosen in EVERY.items():
        names = [c.name for c in contestants(chosen)]
        few = [each for each in names if len(results.cells.get((name, each), {})) < scale.seeds_of(name, each)]
        if few:
            absent.append((name, ", ".join(few)))
    option = "" if size == "default" else f" --{size}"
    command = f"`python -m papers accord{option} --data DIR` runs what is missing; finished runs are kept."
    if not absent:
        further = " The table itself is made by `python -m papers accord --data DIR`." if size == "quick" else ""
        return [f"Nothing of this form.{further}"]
    return [command, Grid(("set", "contestants without all seeds"), absent, words=True)]


def _words(found: Interval) -> str:
    return f"{found.mean:+.1f}" + ("" if math.isinf(found.low) else f" ({found.low:+.1f} to {found.high:+.1f})")
