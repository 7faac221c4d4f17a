"""A table of the bundled digits that runs in seconds, for tests of the command."""

from fedaccord.evaluation.judge import judge_better
from papers.harness.bars import judged_finding
from papers.harness.cells import Cell, in_order
from papers.harness.pages import Chapter, Chart, Curve, Grid, findings_grid
from papers.harness.statistics import differences, spread

TITLE = "A small <table>"


def cells(size):
    def cell(name, seed):
        experiment = {
            "data": {"dataset": "digits", "samples": 60, "partition": {"kind": "iid", "sites": 2}},
            "model": {"name": "linear"},
            "method": {"name": name, "rounds": 2, "batch": 16},
        }
        return Cell((name,), seed, experiment)

    return in_order(cell(name, seed) for name in ("fedavg", "local") for seed in range(1 if size == "quick" else 2))


def chapters(results, size):
    values = {name: results.values((name,), "sites.mean.accuracy") for name in ("fedavg", "local")}
    judged = {"": judge_better(differences(values["fedavg"], values["local"]))}
    return [
        Chapter("Figures", [Grid(("method", "accuracy"), [(n, spread(v)) for n, v in values.items()])]),
        Chapter("In words", ["Made by `a < b`."]),
        Chapter("Findings", [findings_grid([judged_finding("FedAvg | local", judged, 1)])]),
        Chapter("Curves", [Chart("over x", "x", "y", [Curve("a", [1, 2], [3, 4], [0.1, 0.2])])]),
    ]
