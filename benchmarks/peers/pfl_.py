"""pfl: its FedAvg on its simulated back end, one process, the clients' examples already in the given order."""

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from protocol import Case, serve
from torch_models import dump, load, module, tensors
from work_file import WorkFile

NEVER = 10**9


class Simulation:
    """A round is one more central iteration of the same run."""

    def __init__(self, work: WorkFile, case: Case) -> None:
        if case["algorithm"] != "fedavg" or case["epochs"] != 1:
            raise ValueError("pfl takes examples in one order and has no Mime: FedAvg with one epoch only")
        self._work, self._done = work, 0
        self._module = module(work.model)
        self._module.metrics = _metrics  # asked for before the first round
        central = torch.optim.SGD(self._module.parameters(), lr=1.0)
        self._model = PyTorchModel(self._module, torch.optim.SGD, central)
        clients = FederatedDataset(_datasets(work).__getitem__, MinimizeReuseUserSampler(range(len(work.clients))))
        self._backend = SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()])
        self._algorithm = FederatedAveraging()
        self._local = NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=case["eta"]
        )
        self.reset()

    def wait(self) -> None:
        """A round has ended when it returns."""

    def reset(self) -> None:
        load(self._work.model, self._module, self._work.initial)

    def round(self) -> None:
        self._done += 1
        iterations = NNAlgorithmParams(self._done, NEVER, len(self._work.clients), val_cohort_size=0)
        self._algorithm.run(iterations, self._backend, self._model, self._local, send_metrics_to_platform=False)

    def weights(self) -> dict[str, np.ndarray]:
        return dump(self._work.model, self._module)


def _metrics(x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
    return {"examples": Weighted(len(y), len(y))}


def _datasets(work: WorkFile) -> list[Dataset]:
    orders = [np.concatenate(work.batches(i, 1)) for i in range(len(work.clients))]
    columns = [
        tensors({name: c[order] for name, c in client.items()})
        for client, order in zip(work.clients, orders, strict=True)
    ]
    return [Dataset(list(pair), user_id=i) for i, pair in enumerate(columns)]


if __name__ == "__main__":
    serve(Simulation)
