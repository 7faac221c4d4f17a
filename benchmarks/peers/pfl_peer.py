"""pfl-research: FederatedAveraging on SimulatedBackend, in one process or in several, started as in its manual."""

from __future__ import annotations

import os
import subprocess
import sys

import work as w


def main() -> None:
    options = w.arguments(lambda parser: parser.add_argument("--processes", type=int, default=1))
    if options.processes > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        sys.exit(subprocess.call([*run, "--nproc_per_node", str(options.processes), *sys.argv]))
    import numpy as np
    import torch

    torch.set_num_threads(options.threads)
    np.random.seed(0)  # noqa: NPY002  (pfl requires the same seed in every process)
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    work, clock = w.Work(options.workload), w.Clock(options)
    net = work.model()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def loss(self, x, y):
            self.train()
            return torch.nn.functional.cross_entropy(self.net(x), y)

        def metrics(self, x, y):
            return {}

    class Marks(TrainingProcessCallback):
        def on_train_begin(self, *, model):
            clock.begin()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            clock.mark()
            return False, Metrics()

    order = iter([client for cohort in work.cohorts(options.rounds) for client in cohort])
    seen: dict = {}

    def make(user):  # a Dataset caches its batches, so each is made once
        if user not in seen:
            seen[user] = Dataset(work.client(user), user_id=str(user))
        return seen[user]

    data = FederatedDataset(make, lambda: next(order))
    module = Net()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=options.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=work.spec.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=w.LR, local_batch_size=w.BATCH),
        callbacks=[Marks()],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("RANK", "0")) == 0:
        clock.finish(work, net.state_dict())
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
