"""Flower: its FedAvg strategy and simulation runtime, one Ray actor per core, the local loop in PyTorch."""

import functools
import logging
import os
import sys

import flower_client
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import Case, serve
from torch_models import dump, load, module
from work_file import WorkFile

server_app = ServerApp()


class Simulation:
    """A round is one call of the strategy."""

    def __init__(self, grid: Grid, work: WorkFile, case: Case) -> None:
        if case["algorithm"] != "fedavg":
            raise ValueError("Flower has no Mime")
        self._grid, self._work, self._module = grid, work, module(work.model)
        clients = len(work.clients)
        self._strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self._config = {"path": sys.argv[1], "epochs": case["epochs"], "eta": case["eta"]}
        self.reset()

    def wait(self) -> None:
        """A round has ended when it returns."""

    def reset(self) -> None:
        load(self._work.model, self._module, self._work.initial)
        self._arrays = ArrayRecord(self._module.state_dict())

    def round(self) -> None:
        config = ConfigRecord(self._config)
        result = self._strategy.start(self._grid, self._arrays, num_rounds=1, train_config=config)
        if not result.train_metrics_clientapp:
            raise RuntimeError("no client of Flower's answered; see the log")
        self._arrays = result.arrays

    def weights(self) -> dict[str, np.ndarray]:
        self._module.load_state_dict(self._arrays.to_torch_state_dict())
        return dump(self._work.model, self._module)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Answer requests from inside the running simulation."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    serve(functools.partial(Simulation, grid))


if __name__ == "__main__":
    cores = len(os.sched_getaffinity(0))
    resources = {"init_args": {"num_cpus": cores}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    clients = len(WorkFile(sys.argv[1]).clients)
    run_simulation(server_app, flower_client.app, clients, backend_config=resources)
