"""Flower: run_simulation (Ray) with its FedAvg, one core per client, two clients at a time."""

from __future__ import annotations

import logging
import os
import sys
import time

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
}
for key, value in QUIET.items():
    os.environ.setdefault(key, value)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import work as w  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402


def client_app(workload: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        import torch
        import work as w

        kept = vars(w).setdefault("_kept", {})  # lives as long as the Ray actor
        if not kept:
            torch.set_num_threads(1)
            kept["work"] = w.Work(workload)
            kept["model"] = kept["work"].model()
        work, model = kept["work"], kept["model"]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=w.LR)
        for x, y in work.batches(int(message.content["config"]["client"])):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
        reply = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": work.spec.samples}),
        }
        return Message(content=RecordDict(reply), reply_to=message)

    return app


def main() -> None:
    options = w.arguments(lambda parser: parser.add_argument("--parallel", type=int, default=2))
    import torch
    from flwr.simulation import run_simulation

    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    work, clock = w.Work(options.workload), w.Clock(options)
    cohorts = work.cohorts(options.rounds)
    kept: dict = {}

    class Strategy(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):  # Flower's own, except for the choice of clients
            clock.begin()
            nodes = sorted(grid.get_node_ids())
            contents = {
                client: RecordDict({"arrays": arrays, "config": ConfigRecord({"client": client})})
                for client in cohorts[server_round - 1]
            }
            return [
                Message(content=content, message_type="train", dst_node_id=nodes[client])
                for client, content in contents.items()
            ]

        def aggregate_train(self, server_round, replies):
            combined = super().aggregate_train(server_round, replies)
            clock.mark()
            return combined

    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < work.spec.clients:
            time.sleep(0.05)
        strategy = Strategy(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=work.spec.clients)
        first = ArrayRecord(work.model().state_dict())
        result = strategy.start(grid=grid, initial_arrays=first, num_rounds=options.rounds)
        kept["state"] = result.arrays.to_torch_state_dict()

    ray = {"num_cpus": options.parallel, "include_dashboard": False, "logging_level": "ERROR", "log_to_driver": False}
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": ray}
    run_simulation(app, client_app(options.workload), num_supernodes=work.spec.clients, backend_config=resources)
    clock.finish(work, kept["state"])


if __name__ == "__main__":
    main()
