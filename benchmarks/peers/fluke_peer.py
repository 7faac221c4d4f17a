"""fluke: FedAVG on its CentralizedFL, clients one after another in one process."""

from __future__ import annotations

import work as w


def main() -> None:
    options = w.arguments()
    import torch

    torch.set_num_threads(options.threads)
    w.let_torchvision_import()
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import FastDataLoader
    from fluke.server import Server
    from fluke.utils import FederationObserver

    work, clock = w.Work(options.workload), w.Clock(options)
    turns = iter(work.cohorts(options.rounds))
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)

    class Splitter:
        def assign(self, n_clients, batch_size):
            loaders = [
                FastDataLoader(*work.client(c), num_labels=w.CLASSES, batch_size=batch_size, shuffle=False)
                for c in range(n_clients)
            ]
            return (loaders, [None] * n_clients), None

    class Scheduled(Server):
        def get_eligible_clients(self, eligible_perc):
            return [self.clients[c] for c in next(turns)]

    class Algorithm(FedAVG):
        def get_server_class(self):
            return Scheduled

        def finalize(self) -> None:  # the final broadcast is not part of a round
            pass

    class Marks(FederationObserver):
        def start_round(self, round, global_model) -> None:
            clock.begin()

        def end_round(self, round) -> None:
            clock.mark()

    sgd, constant = DDict(name="SGD", lr=w.LR), DDict(name="StepLR", step_size=1, gamma=1)
    client = DDict(batch_size=w.BATCH, local_epochs=1, loss="CrossEntropyLoss", optimizer=sgd, scheduler=constant)
    settings = DDict(model=work.model(), client=client, server=DDict(weighted=True))
    algorithm = Algorithm(work.spec.clients, Splitter(), settings)
    algorithm.set_callbacks(Marks())
    algorithm.run(options.rounds, work.spec.cohort / work.spec.clients)
    clock.finish(work, algorithm.server.model.state_dict())


if __name__ == "__main__":
    main()
