"""FedLab: StandalonePipeline with its own serial trainer, clients one after another in one process."""

from __future__ import annotations

import work as w


def main() -> None:
    options = w.arguments()
    import torch

    torch.set_num_threads(options.threads)
    w.let_torchvision_import()
    from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.core.standalone import StandalonePipeline
    from fedlab.utils import Aggregators, SerializationTool

    work, clock = w.Work(options.workload), w.Clock(options)
    cohorts = work.cohorts(options.rounds)

    class Data(FedDataset):
        def __init__(self) -> None:
            super().__init__()
            self.num = work.spec.clients

        def get_dataloader(self, id, batch_size, type="train"):  # left to the user; slices are the fastest option
            return work.batches(id)

    class Trainer(FedAvgSerialClientTrainer):
        def train(self, model_parameters, train_loader):  # FedLab's own version does not send the weight
            return super().train(model_parameters, train_loader) + [torch.tensor(float(work.spec.samples))]

    class Handler(FedAvgServerHandler):
        def sample_clients(self):
            clock.begin()
            return cohorts[self.round]

        def global_update(self, buffer) -> None:
            mean = Aggregators.fedavg_aggregate([b[0] for b in buffer], torch.stack([b[1] for b in buffer]))
            SerializationTool.deserialize_model(self._model, mean)

    class Pipeline(StandalonePipeline):
        def evaluate(self) -> None:
            clock.mark()

    model = work.model()
    handler = Handler(model, options.rounds, work.spec.cohort / work.spec.clients)
    trainer = Trainer(model, work.spec.clients)
    trainer.setup_dataset(Data())
    trainer.setup_optim(1, w.BATCH, w.LR)
    Pipeline(handler, trainer).main()
    clock.finish(work, handler.model.state_dict())


if __name__ == "__main__":
    main()
