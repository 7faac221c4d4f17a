"""The page of pFedMo's table: its nine baselines, and what the server's public data gives without any site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from papers.harness.bars import ahead_of_all, is_ahead, verdict
from papers.harness.cells import Results, Row, Size
from papers.harness.pages import Block, Chapter, Chart, Curve, Finding, Grid, findings_grid
from papers.harness.statistics import in_words, mean, paired, spread
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
    "tau": "steps in a round",
    "gamma": "Nesterov momentum",
    "pi": "temperature",
    "sites": "number of sites",
    "edge": "edge network",
}
OF_LENET = "published, LeNet-5"  # said wherever another network may stand beside the figure


def chapters(results: Results, size: Size) -> list[Chapter]:
    """Return the page."""
    scale = SCALES[size]
    parts = [
        Chapter("What was run", _what_was_run(scale, size)),
        Chapter("Bars", [findings_grid(_bars(results, scale))]),
        Chapter(f"Classes at each site: {scale.skew}", _over_classes(results)),
        *(Chapter(f"Main table: {t}", _main(results, t)) for t in scale.iterations),
    ]
    if scale.studies:
        parts += [
            Chapter(f"Quantity skew: {scale.study}", _quantity(results)),
            Chapter(f"Dirichlet splits: {scale.study}", [_over(results, "dirichlet", ALPHAS, scale.fewer, DIRICHLET)]),
            Chapter(f"Steps in a round: {scale.study}", [_over(results, "tau", TAUS, scale.few)]),
            Chapter(f"Nesterov momentum: {scale.study}", _over_gamma(results)),
            Chapter(f"Temperature: {scale.study}", [_over(results, "pi", PIS, WITH_PI)]),
            Chapter(f"Number of sites: {scale.study}", _over_sites(results, scale)),
        ]
    return [*parts, Chapter("A simulated edge network", _edge(results, scale))]


def _what_was_run(scale: Scale, size: Size) -> list[Block]:
    steps = ", ".join(f"`{name}` {total}" for name, total in scale.iterations.items())
    har = "and UCI-HAR " if scale.tau.get(HAR, TASKS[HAR].tau) == 40 else ""
    return [
        f"Four sites unless said, batches of 64, learning rate 0.01, every momentum constant 0.5, {scale.seeds} paired "
        f"seeds. Local steps of a site in all (T): {steps}. A round is 20 steps, with LeNet-5 {har}40. `Linear` is "
        "least squares on one-hot targets.",
        "The server's public data is 1 % of the training data, the same number of each class, taken out of the data "
        "before it is dealt to the sites, for every method alike; pFedMo alone and `public data alone` look at it. Of "
        "it pFedMo holds a fifth out and takes its scores on that part; `public data alone` takes none and learns from "
        "all. Nothing is chosen on test data.",
        "The paper does not tell the split of its main table; ours is i.i.d. (but UCI-HAR's sites are "
        "people)." + (_studies() if scale.studies else ""),
        "A site of some classes gets as many samples as the others, as far as its classes have them. So splits do not "
        "use the same number: of MNIST's 59,400 images that are not public, about 54,000 with three classes at each "
        "site, 57,500 with six and 59,200 with nine.",
        *([_cifar()] if CIFAR in scale.iterations else []),
        "UCI-HAR: subjects 1 to 24 are the sites, and the test is the six others, whom nothing was chosen on. Its "
        "windows overlap by half, so a public window may share half of its signal with a training window of the same "
        "person; with a test window none does.",
        "Figures are the accuracy of the global model (for pFedMo the mean of the sites' models) on the test data "
        "after T local steps, in percent: mean ± standard deviation over seeds. Differences are paired by seed. What "
        "the paper calls training accuracy is taken for that of the global model on the test data. Published figures "
        "come from all of CIFAR-10, LeNet-5 on UCI-HAR and sites whose split is not told: beside ours, not the same "
        "experiment.",
        _until(scale),
        _who_ran(size),
        *([_shrunk(scale)] if size != "full" else []),
    ]


def _cifar() -> str:
    return (
        "The CIFAR-10 subset has 4,000 training images, of which 40 are public and 3,960 at the sites, and 1,000 test "
        "images, all of which are used."
    )


def _until(scale: Scale) -> str:
    own = [f"{100 * TASKS[name].target:g} for `{name}`" for name in scale.iterations if TASKS[name].target != TARGET]
    return (
        "`until N %` is the first evaluated round with that accuracy: its mean over the seeds that came to it, and how "
        f"many did. N is {', '.join([*own, f'{100 * TARGET:g} elsewhere'])}: round numbers, set so that methods differ "
        "in when they come to them; nothing is chosen by them. Networks (LeNet-5, 1-D CNN) are evaluated at every "
        "fifth of their rounds only (if there are five), so there it is no finer than that; linear models, and all on "
        "the edge network, in every round."
    )


def _who_ran(size: Size) -> str:
    """Tell which methods each part has, as its cells say."""
    names: dict[str, list[str]] = {}
    for cell in cells(size):
        part = f"{cell.row[1]} classes at each site" if cell.row[0] == "classes" else PARTS[cell.row[0]]
        names[part] = [*dict.fromkeys([*names.get(part, []), cell.row[-1]])]
    parts: dict[str, list[str]] = {}
    for part, ran in names.items():
        who = "all methods" if len(ran) == len(METHODS_RUN) else "; ".join(ran)
        parts.setdefault(who, []).append(part)
    return " ".join(f"Run with {who}: {', '.join(of)}." for who, of in parts.items())


def _shrunk(scale: Scale) -> str:
    full = SCALES["full"]
    less = [
        "T as above",
        f"{scale.seeds} seeds",
        f"{TASKS[HAR].tau} steps in a round of UCI-HAR",
        f"{scale.test_samples} test images of MNIST",
        f"Mime's full gradient on {scale.gradient_samples} samples of a site",
        *([f"classes at each site with `{scale.skew}`"] if scale.skew != full.skew else []),
        (
            f"other splits, steps, gamma, pi, numbers of sites and the edge network with `{scale.study}`"
            if scale.studies
            else f"the edge network with `{scale.study}` and rounds of 20 steps alone; no other studies and tasks"
        ),
        "some of the methods in some parts",
    ]
    return (
        f"Shrunk against `--full`, which has the paper's T ({full.iterations[HAR]} for UCI-HAR, "
        f"{full.iterations[CIFAR]} for CIFAR-10), {full.seeds} seeds, {full.tau[HAR]} steps in a round of UCI-HAR, all "
        f"test images, full gradients, `{full.study}` in all studies, and all methods in every part but those on gamma "
        f"and pi, which not all have: {'; '.join(less)}. At every size UCI-HAR has a 1-D CNN and CIFAR-10 is a subset."
    )


def _studies() -> str:
    return (
        " Label skew, quantity skew and Dirichlet splits have chapters of their own. Steps, Nesterov momentum, "
        "temperature and numbers of sites are studied with three classes at each site and, where pi is not what is "
        "varied, pi = 1; the published studies have pi = 0.5. Quantity skew is "
        f"{', '.join(f'{n:,}' for n in SIZES)}: all 60,000 training images but the server's 600 public ones, which the "
        "largest site (25,000 in the paper) does without."
    )


def _values(results: Results, *row: str) -> dict[int, float]:
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
            told = f"{printed[name]:.2f}" if name in printed else ""
            gap = "" if name == OURS else in_words(paired(ours, found))
            row = (*at, name)
            rows.append([name, told, spread(_early(results, row)), spread(found), gap, _reached(results, row, target)])
    head = ("method", printed_head, "after 2/5 of T", "after T", f"{OURS} ahead by", f"until {100 * target:g} %")
    return Grid(head, rows)


def _early(results: Results, row: Row) -> dict[int, float]:
    """Return the accuracy after two fifths of the rounds by seed; networks are evaluated then as well."""
    found = {}
    for seed, result in results.cells.get(row, {}).items():
        curve = result["curve"]
        at = [point for point in curve if 5 * point["round"] == 2 * curve[-1]["round"]]
        if at and "accuracy" in at[0]["global"]:
            found[seed] = at[0]["global"]["accuracy"]
    return found


def _over_classes(results: Results) -> list[Block]:
    head = ("method", *(f"{c} classes" for c in CLASSES), f"{OURS} ahead at 3")
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
    chart = Chart("Accuracy over classes at each site", "classes", "accuracy, %", curves)
    return [chart, Grid(head, rows), _margins(results)]


def _margins(results: Results) -> Grid:
    """Tell by how much pFedMo is ahead of the baseline that comes closest, and who ran."""
    closest, ran = [], []
    for c in CLASSES:
        ours = _values(results, "classes", str(c), OURS)
        found = {name: paired(ours, _values(results, "classes", str(c), name)) for name in BASELINES}
        gaps = {name: gap for name, gap in found.items() if gap is not None}
        least = min(gaps, key=lambda name: gaps[name].mean, default=None)
        closest.append("–" if least is None else f"{least}: {gaps[least]}")
        ran.append("all nine" if len(gaps) == len(BASELINES) else ", ".join(gaps) or "–")
    rows = [
        [f"{OF_LENET}, over all nine: at least", *(f"{MARGINS[c]:.2f}" for c in CLASSES)],
        ["here, over the closest baseline that ran", *closest],
        ["baselines that ran", *ran],
    ]
    return Grid((f"{OURS}'s smallest margin", *(f"{c} classes" for c in CLASSES)), rows, words=True)


def _quantity(results: Results) -> list[Block]:
    said = f"Sites of {', '.join(map(str, SIZES))} samples, all weighed alike."
    return [said, _comparison(results, ("quantity",), {OURS: QUANTITY_SKEW}, OF_LENET)]


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
    said = "The momentum of the sites' steps is varied; that of FastSlowMo's server stays at 0.5."
    return [said, _over(results, "gamma", GAMMAS, WITH_GAMMA)]


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
    said = (
        f"{EDGE_SITES} sites, Dirichlet 1, {scale.study}, each with a computer and a link drawn by the seed "
        f"({network}: samples in a second, megabits in a second, seconds). Time is simulated, not measured; the "
        "server's own work is free. DOMO and Mime are charged a model more on the way down than they would need: the "
        "server's momentum, which sites could infer from two models, and the model itself with each of two questions. "
        f"Published, on another system and task: {MINUTES_TO_TARGET}."
    )
    taus = (20, 40) if scale.studies else (20,)
    rows = []
    for name in METHODS_RUN:
        told = [_reached(results, ("edge", str(tau), name)) for tau in taus]
        last = [spread(_values(results, "edge", str(tau), name)) for tau in taus]
        if any(results.cells.get(("edge", str(tau), name)) for tau in taus):
            rows.append([name, *told, *last])
    head = ("method", *(f"tau {tau}: until {100 * TARGET:g} %" for tau in taus), *(f"tau {tau}: last" for tau in taus))
    return [said, Grid(head, rows)]


def _reached(results: Results, row: Row, target: float = TARGET) -> str:
    """Write when the target was first reached, in rounds and, on a network, simulated minutes."""
    curves = [result["curve"] for result in results.cells.get(row, {}).values()]
    first = [next((p for p in curve if p["global"].get("accuracy", 0) >= target), None) for curve in curves]
    there = [point for point in first if point is not None]
    if not there:
        return f"never, 0 of {len(curves)}" if curves else "–"
    rounds = f"{sum(p['round'] for p in there) / len(there):.1f} rounds"
    minutes = [p["simulated"] / 60 for p in there if "simulated" in p]
    timed = f", {sum(minutes) / len(minutes):.1f} min" if minutes else ""
    if timed and row[-1] == ALONE:
        timed = ", no site works"
    return f"{rounds}{timed}, {len(there)} of {len(curves)}"


def _bars(results: Results, scale: Scale) -> list[Finding]:
    ours = {c: _values(results, "classes", str(c), OURS) for c in CLASSES}
    gaps = {n: paired(ours[3], _values(results, "classes", "3", n)) for n in BASELINES}
    lost = paired(ours[9], ours[3])
    alone = paired(ours[3], _values(results, "classes", "3", ALONE))
    printed = paired(ours[3], _values(results, "classes", "3", PRINTED))
    return [
        ahead_of_all(
            f"{scale.skew}, 3 classes at each site: pFedMo ahead of all nine baselines, mean over paired seeds",
            gaps,
            scale.seeds,
        ),
        Finding(
            f"{scale.skew}: pFedMo loses less than 2 points from 9 to 3 classes at each site",
            verdict([lost], scale.seeds, lambda gap: gap.mean < 2),
            "–" if lost is None else f"lost {lost.mean:.1f} ({OF_LENET}: {LOST})",
        ),
        Finding(
            "pFedMo is ahead of what the server's public data gives without any site, 3 classes at each site",
            verdict([alone], scale.seeds, is_ahead),
            in_words(alone),
        ),
        Finding(
            "The default rule is ahead of the printed one, 3 classes at each site",
            verdict([printed], scale.seeds, is_ahead),
            in_words(printed),
        ),
    ]
