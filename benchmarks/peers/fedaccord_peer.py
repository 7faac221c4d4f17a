"""FedAccord, run as by `fedaccord run`, with given sites in each round and without shuffling."""

from __future__ import annotations

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

import work as w

MODELS = "fedaccord_model"  # the module next to this file


def main() -> None:
    options = w.arguments(_more)
    from fedaccord.cli import importing, started_ahead  # imported by every command

    with started_ahead(options.workers, "fedaccord.hosting"):
        with importing():
            import fedaccord.experiment
            import fedaccord.runs.trained_model  # noqa: F401
        from fedaccord.extensions import trusting

        with trusting([MODELS]):
            play(options)


def _more(parser: ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=0)


def play(options: Namespace) -> None:
    from fedaccord.config import check_experiment
    from fedaccord.data.site_data import Samples, SiteData
    from fedaccord.data.sites import FederationData
    from fedaccord.experiment import run_experiment
    from fedaccord.federation.server import Server
    from fedaccord.labels.space import LabelSpace
    from fedaccord.labels.views import Exact
    from fedaccord.recording import Watcher
    from fedaccord.runs.folder import RunFolder
    from fedaccord.runs.trained_model import TrainedModel

    work, clock = w.Work(options.workload), w.Clock(options)
    cohorts = work.cohorts(options.rounds)
    space = LabelSpace(str(label) for label in range(w.CLASSES))
    names = [f"site-{number:05d}" for number in range(work.spec.clients)]
    sites = {}
    for number, name in enumerate(names):
        x, y = work.client(number)
        sites[name] = SiteData(name, Exact(space), Samples(x, y), Samples(x[:0], y[:0]))
    experiment = check_experiment(
        {
            "data": {"dataset": "digits", "partition": {"kind": "iid", "sites": 1}},  # replaced by the data in memory
            "model": {"name": f"{MODELS}:{work.spec.model}"},
            "method": {
                "name": "fedavg",
                "rounds": options.rounds,
                "epochs": 1,
                "batch": w.BATCH,
                "lr": w.LR,
                "momentum": 0.0,
                "participation": work.spec.cohort,
            },
            "run": {"workers": options.workers, "evaluate_every": 0, "checkpoint_every": options.checkpoint_every},
        }
    )
    Server.sample_sites = lambda server: [names[number] for number in cohorts[server.state.round]]
    watcher = Watcher(started=lambda data: clock.begin(), round=lambda record: clock.mark())
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place, "run"))
        shape = tuple(sites[names[0]].train.x.shape[1:])
        run_experiment(experiment, Path(__file__).parent, folder, watcher, data=FederationData(space, sites, shape))
        trained = TrainedModel.load(folder.path / "model", trust=[MODELS]).network()
        folder.close()
    model = work.model()
    clock.finish(work, dict(zip(model.state_dict(), trained.state_dict().values(), strict=True)))


if __name__ == "__main__":
    main()
