"""Personalised momentum: pFedMo, its nine baselines, and training on the server's public data alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedaccord.evaluation.judge import judge_at_most, judge_better
from papers.harness.bars import ahead_of_all, judged_finding
from papers.harness.cells import Results, Row, Size
from papers.harness.claims import load_ledger
from papers.harness.ledger import claims_chapter
from papers.harness.pages import Block, Chapter, Chart, Curve, Finding, Grid, findings_grid
from papers.harness.statistics import Figures, differences, in_words, mean, paired, spread
from papers.pfedmo.cells import (
    ALONE,
    ALPHAS,
    BASELINES,
    CIFAR,
    CLASSES,
    EDGE,
    EDGE_SITES,
    GAMMAS,
    HAR,
    METHODS_RUN,
    OURS,
    PIS,
    PRINTED,
    SCALES,
    SIZES,
    TARGET,
    TASKS,
    TAUS,
    WITH_GAMMA,
    WITH_PI,
    Scale,
)
from papers.pfedmo.cells import cells as cells
from papers.pfedmo.published import DIRICHLET, LOST, MAIN, MARGINS, MINUTES_TO_TARGET, QUANTITY_SKEW

TITLE = "Personalised momentum: pFedMo"
ACCURACY = "global.accuracy"
PARTS = {
    "main": "main table",
    "quantity": "quantity skew",
    "dirichlet": "Dirichlet splits",
    "tau": "steps per round",
    "gamma": "Nesterov momentum",
    "pi": "temperature",
    "sites": "number of sites",
    "edge": "edge network",
}
OF_LENET = "published, LeNet-5"  # heads published figures of LeNet-5 next to figures of other networks


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    parts = [
        Chapter("What was run", _what_was_run(scale, size)),
        claims_chapter(load_ledger(Path(__file__).with_name("claims.toml")), results, cells(size)),
        Chapter("Criteria", [findings_grid(_bars(results, scale))]),
        Chapter(f"Classes per site: {scale.skew}", _over_classes(results)),
        *(Chapter(f"Main table: {t}", _main(results, t)) for t in scale.iterations),
    ]
    if scale.studies:
        parts += [
            Chapter(f"Quantity skew: {scale.study}", _quantity(results)),
            Chapter(f"Dirichlet splits: {scale.study}", [_over(results, "dirichlet", ALPHAS, scale.fewer, DIRICHLET)]),
            Chapter(f"Steps per round: {scale.study}", [_over(results, "tau", TAUS, scale.few)]),
            Chapter(f"Nesterov momentum: {scale.study}", _over_gamma(results)),
            Chapter(f"Temperature: {scale.study}", [_over(results, "pi", PIS, WITH_PI)]),
            Chapter(f"Number of sites: {scale.study}", _over_sites(results, scale)),
        ]
    return [*parts, Chapter("A simulated edge network", _edge(results, scale))]


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    steps = ", ".join(f"`{name}` {total}" for name, total in scale.iterations.items())
    har = " and UCI-HAR" if scale.tau.get(HAR, TASKS[HAR].tau) == 40 else ""
    return [
        f"Four sites unless stated otherwise, batches of 64, learning rate 0.01, all momentum constants 0.5, "
        f"{scale.seeds} paired seeds. Total local steps of a site (T): {steps}. A round is 20 steps "
        f"(LeNet-5{har}: 40). `Linear` is least squares on one-hot targets.",
        "The server's public data is 1 % of the training data, balanced over classes. It is removed before the data is "
        "split over the sites, for every method; only pFedMo and `public data alone` use it. pFedMo holds out a fifth "
        "of it and computes its scores there; `public data alone` holds out nothing and trains on all of it. No "
        "setting was chosen on test data.",
        "The paper does not state the split of its main table; ours is i.i.d. (except that UCI-HAR's sites are "
        "people)." + (_studies() if scale.studies else ""),
        "With a limited number of classes per site, all sites get the same number of samples if their classes "
        "have enough, so splits differ in size: of MNIST's 59,400 images that are not public, about 54,000 are used "
        "with three classes per site, 57,500 with six and 59,200 with nine.",
        *([_cifar()] if CIFAR in scale.iterations else []),
        "UCI-HAR: subjects 1 to 24 are the sites; the six others are the test data, and no setting was chosen on them. "
        "Windows overlap by half, so a public window may share half of its signal with a training window of the same "
        "person, but not with a test window.",
        "Figures are the accuracy of the global model (for pFedMo the mean of the sites' models) on the test data "
        "after T local steps, in percent: mean ± standard deviation over seeds. Differences are paired by seed. We "
        "read the paper's training accuracy as the accuracy of the global model on the test data. Published figures "
        "are for all of CIFAR-10, for LeNet-5 on UCI-HAR, and for an unknown split: not the same experiment.",
        _time_to_target(scale),
        _who_ran(size),
        *([_smaller(scale)] if size != "full" else []),
    ]


def _cifar() -> str:
    return (
        "The CIFAR-10 subset has 4,000 training images, 40 public and 3,960 at the sites, and 1,000 test images; all "
        "are used."
    )


def _time_to_target(scale: Scale) -> str:
    own = [f"{100 * TASKS[name].target:g} for `{name}`" for name in scale.iterations if TASKS[name].target != TARGET]
    return (
        "`time to N %` is the first evaluated round with that accuracy: the mean over the seeds that reach it, and "
        f"their number. N is {', '.join([*own, f'{100 * TARGET:g} elsewhere'])}. These are round numbers at which "
        "methods differ; no setting was chosen by them. LeNet-5 and the 1-D CNN are evaluated only after every fifth "
        "of their rounds (if there are five), so their time is less precise; linear models, and all runs on the edge "
        "network, are evaluated in every round."
    )


def _who_ran(size: Size) -> str:
    """List the methods of each part, from its cells."""
    names: dict[str, list[str]] = {}
    for cell in cells(size):
        part = f"{cell.row[1]} classes per site" if cell.row[0] == "classes" else PARTS[cell.row[0]]
        names[part] = [*dict.fromkeys([*names.get(part, []), cell.row[-1]])]
    parts: dict[str, list[str]] = {}
    for part, ran in names.items():
        who = "all methods" if len(ran) == len(METHODS_RUN) else "; ".join(ran)
        parts.setdefault(who, []).append(part)
    return " ".join(f"Run with {who}: {', '.join(of)}." for who, of in parts.items())


def _smaller(scale: Scale) -> str:
    full = SCALES["full"]
    less = [
        "T as above",
        f"{scale.seeds} seeds",
        f"{TASKS[HAR].tau} steps per round on UCI-HAR",
        f"{scale.test_samples} test images of MNIST",
        f"Mime's full gradient on {scale.gradient_samples} samples per site",
        *([f"classes per site with `{scale.skew}`"] if scale.skew != full.skew else []),
        (
            f"other splits, steps, gamma, pi, numbers of sites and the edge network with `{scale.study}`"
            if scale.studies
            else f"the edge network with `{scale.study}` and rounds of 20 steps only; no other studies and tasks"
        ),
        "fewer methods in some parts",
    ]
    return (
        f"Smaller than `--full`, which has the paper's T ({full.iterations[HAR]} for UCI-HAR, "
        f"{full.iterations[CIFAR]} for CIFAR-10), {full.seeds} seeds, {full.tau[HAR]} steps per round on UCI-HAR, all "
        f"test images, full gradients, `{full.study}` in all studies, and all methods in every part except the "
        f"studies of gamma and pi, which some methods do not have: {'; '.join(less)}. At every size UCI-HAR has a 1-D "
        "CNN and CIFAR-10 is a subset."
    )


def _studies() -> str:
    return (
        " Label skew, quantity skew and Dirichlet splits have their own chapters. Steps, Nesterov momentum, "
        "temperature and numbers of sites are studied with three classes per site and, unless pi is varied, pi = 1; "
        f"the published studies have pi = 0.5. Quantity skew is {', '.join(f'{n:,}' for n in SIZES)}: all 60,000 "
        "training images except the server's 600 public ones, which are taken from the largest site (25,000 in the "
        "paper)."
    )


def _values(results: Results, *row: str) -> Figures:
    return results.values(row, ACCURACY)


def _main(results: Results, task: str) -> list[Block]:
    head = OF_LENET if task == HAR else "published"
    return [_comparison(results, ("main", task), MAIN[task], head, TASKS[task].target)]


def _comparison(
    results: Results, at: Row, printed: Mapping[str, float], printed_head: str, target: float = TARGET
) -> Grid:
    ours, rows = _values(results, *at, OURS), []
    for name in METHODS_RUN:
        found = _values(results, *at, name)
        if found:
            published = f"{printed[name]:.2f}" if name in printed else ""
            gap = "" if name == OURS else in_words(paired(ours, found))
            row = (*at, name)
            rows.append(
                [name, published, spread(_early(results, row)), spread(found), gap, _reached(results, row, target)]
            )
    head = ("method", printed_head, "after 2/5 of T", "after T", f"{OURS} - method", f"time to {100 * target:g} %")
    return Grid(head, rows)


def _early(results: Results, row: Row) -> Figures:
    """Return the accuracy after two fifths of the rounds by seed, a round in which all networks are evaluated."""
    found = {}
    for seed, result in results.cells.get(row, {}).items():
        curve = result["curve"]
        at = [point for point in curve if 5 * point["round"] == 2 * curve[-1]["round"]]
        if at and "accuracy" in at[0]["global"]:
            found[seed] = at[0]["global"]["accuracy"]
    return Figures(found)


def _over_classes(results: Results) -> list[Block]:
    head = ("method", *(f"{c} classes" for c in CLASSES), f"{OURS} - method, 3 classes")
    ours, rows = _values(results, "classes", "3", OURS), []
    for name in METHODS_RUN:
        found = [_values(results, "classes", str(c), name) for c in CLASSES]
        if any(found):
            gap = "" if name == OURS else in_words(paired(ours, found[0]))
            rows.append([name, *map(spread, found), gap])
    curves = []
    for name in METHODS_RUN:
        found = [_values(results, "classes", str(c), name) for c in CLASSES]
        if all(found):
            curves.append(Curve(name, CLASSES, [100 * mean(v) for v in found]))
    chart = Chart("Accuracy over classes per site", "classes", "accuracy, %", curves)
    return [chart, Grid(head, rows), _margins(results)]


def _margins(results: Results) -> Grid:
    """Return pFedMo's margin over the closest baseline, and the baselines that were run."""
    closest, ran = [], []
    for c in CLASSES:
        ours = _values(results, "classes", str(c), OURS)
        found = {name: paired(ours, _values(results, "classes", str(c), name)) for name in BASELINES}
        gaps = {name: gap for name, gap in found.items() if gap is not None}
        least = min(gaps, key=lambda name: gaps[name].mean, default=None)
        closest.append("–" if least is None else f"{least}: {gaps[least]}")
        ran.append("all nine" if len(gaps) == len(BASELINES) else ", ".join(gaps) or "–")
    rows = [
        [f"{OF_LENET}, over all nine baselines", *(f"{MARGINS[c]:.2f}" for c in CLASSES)],
        ["here, closest baseline that was run", *closest],
        ["baselines that were run", *ran],
    ]
    return Grid((f"{OURS}'s smallest margin", *(f"{c} classes" for c in CLASSES)), rows, words=True)


def _quantity(results: Results) -> list[Block]:
    text = f"Sites of {', '.join(map(str, SIZES))} samples, with equal weights."
    return [text, _comparison(results, ("quantity",), {OURS: QUANTITY_SKEW}, OF_LENET)]


def _over(
    results: Results,
    what: str,
    values: Sequence[float],
    names: Sequence[str],
    printed: Mapping[float, float] | None = None,
) -> Grid:
    rows = [[name, *(spread(_values(results, what, str(v), name)) for v in values)] for name in names]
    if printed:
        rows.insert(0, [f"{OURS}, {OF_LENET}", *(f"{printed[v]:.2f}" if v in printed else "" for v in values)])
    return Grid((what, *map(str, values)), rows)


def _over_gamma(results: Results) -> list[Block]:
    text = "Only the local momentum is varied; the server momentum of FastSlowMo stays at 0.5."
    return [text, _over(results, "gamma", GAMMAS, WITH_GAMMA)]


def _over_sites(results: Results, scale: Scale) -> list[Block]:
    curves = []
    for name in scale.fewer:
        found = [_values(results, "sites", str(n), name) for n in scale.many]
        if all(found):
            curves.append(Curve(name, scale.many, [100 * mean(v) for v in found]))
    chart = Chart("Accuracy over the number of sites, 3 classes each", "sites", "accuracy, %", curves)
    return [chart, _over(results, "sites", scale.many, scale.fewer)]


def _edge(results: Results, scale: Scale) -> list[Block]:
    network = "; ".join(f"{key} {low:g} to {high:g}" for key, (low, high) in EDGE.items())
    text = (
        f"{EDGE_SITES} sites, Dirichlet 1, {scale.study}. The seed draws a computer and a link for each site "
        f"({network}: samples per second, megabits per second, seconds). Time is simulated, not measured; the server's "
        "computation takes no time. DOMO and Mime are charged one more download of the model than necessary: DOMO for "
        "the server's momentum, which sites could infer from two models, and Mime for the model in each of its two "
        f"requests. Published, on another system and task: {MINUTES_TO_TARGET}."
    )
    taus = (20, 40) if scale.studies else (20,)
    rows = []
    for name in METHODS_RUN:
        times = [_reached(results, ("edge", str(tau), name)) for tau in taus]
        last = [spread(_values(results, "edge", str(tau), name)) for tau in taus]
        if any(results.cells.get(("edge", str(tau), name)) for tau in taus):
            rows.append([name, *times, *last])
    head = (
        "method",
        *(f"tau {tau}: time to {100 * TARGET:g} %" for tau in taus),
        *(f"tau {tau}: final accuracy, %" for tau in taus),
    )
    return [text, Grid(head, rows)]


def _reached(results: Results, row: Row, target: float = TARGET) -> str:
    """Format the time to the target: rounds and, on a network, simulated minutes."""
    curves = [result["curve"] for result in results.cells.get(row, {}).values()]
    first = [next((p for p in curve if p["global"].get("accuracy", 0) >= target), None) for curve in curves]
    there = [point for point in first if point is not None]
    if not there:
        return f"not reached, 0 of {len(curves)}" if curves else "–"
    rounds = f"{sum(p['round'] for p in there) / len(there):.1f} rounds"
    minutes = [p["simulated"] / 60 for p in there if "simulated" in p]
    timed = f", {sum(minutes) / len(minutes):.1f} min" if minutes else ""
    if timed and row[-1] == ALONE:
        timed = ", without sites"
    return f"{rounds}{timed}, {len(there)} of {len(curves)}"


def _bars(results: Results, scale: Scale) -> list[Finding]:
    ours = {c: _values(results, "classes", str(c), OURS) for c in CLASSES}
    rivals = {name: _values(results, "classes", "3", name) for name in (*BASELINES, ALONE, PRINTED)}

    def ahead(statement: str, name: str) -> Finding:
        return judged_finding(statement, {"": judge_better(differences(ours[3], rivals[name]))}, scale.seeds)

    return [
        ahead_of_all(
            f"{scale.skew}, 3 classes per site: pFedMo is better than all nine baselines",
            ours[3],
            {name: rivals[name] for name in BASELINES},
            scale.seeds,
        ),
        judged_finding(
            f"{scale.skew}: pFedMo loses at most 2 points from 9 to 3 classes per site",
            {"lost": judge_at_most(differences(ours[9], ours[3]), 2)},
            scale.seeds,
            note=f"{OF_LENET}: {LOST}",
        ),
        ahead("pFedMo is better than training on the server's public data alone, 3 classes per site", ALONE),
        ahead("The default rule is better than the printed one, 3 classes per site", PRINTED),
    ]
