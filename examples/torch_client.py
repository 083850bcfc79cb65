"""A federated client in PyTorch: its own module, loss and data set, and a server that trains by Mime with Adam.

Run as a program it is a rehearsal without a network: five clients in this process, three of them in PyTorch and two in
JAX, and the same run as a simulation for comparison.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import fedmime as fm


# --- an ordinary PyTorch project
class Net(nn.Module):
    """What the clients train."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(64 * 2 * 2, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class Digits(torch.utils.data.Dataset):
    """The images of one client, [1, 8, 8] each, and their labels."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = torch.as_tensor(images)[:, None], torch.as_tensor(labels).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def client(name: str, dataset: torch.utils.data.Dataset, state: str | None = None) -> fm.deploy.Node:
    """The client that a server asks."""
    layouts = fm.deploy.torch_layouts
    names = {
        "conv0.w": ("conv1.weight", layouts.CONVOLUTION),
        "conv0.b": "conv1.bias",
        "conv1.w": ("conv2.weight", layouts.CONVOLUTION),
        "conv1.b": "conv2.bias",
        "dense0.w": ("fc1.weight", layouts.flattened(channels=64)),
        "dense0.b": "fc1.bias",
        "dense1.w": "fc2.weight",
        "dense1.b": "fc2.bias",
    }
    loss = nn.CrossEntropyLoss(reduction="none")
    return fm.deploy.torch_client(Net(), loss, dataset, client=name, names=names, state=state)


# --- a rehearsal
def rehearse(rounds: int = 5) -> None:
    """Five clients in this process, and the same run as a simulation."""
    from sklearn.datasets import load_digits

    from fedmime.deploy.node import JaxNode
    from fedmime.deploy.server import Waiting, run
    from fedmime.deploy.transport import LoopTransport

    images, labels = load_digits(return_X_y=True)
    images, labels = (images.reshape(-1, 8, 8) / 16).astype(np.float32), labels.astype(np.int32)
    parts = np.array_split(np.argsort(labels, kind="stable"), 40)[::8]  # each client has one or two of the ten digits
    data = {f"client {i}": {"x": images[part][:, :, :, None], "y": labels[part]} for i, part in enumerate(parts)}
    problem = fm.models.cnn((8, 8, 1), classes=10, dropout=0.0)
    algorithm = fm.algorithms.mime(fm.optimizers.adam(eps=1e-3), eta=5e-4)

    nodes = {}
    for number, (name, columns) in enumerate(data.items()):
        in_torch = number % 2 == 0
        dataset = Digits(columns["x"][..., 0], columns["y"])
        nodes[number] = client(name, dataset) if in_torch else JaxNode(problem, columns, name, algorithm=algorithm)
    deployed = run(LoopTransport(nodes), algorithm, problem, rounds, 5, waiting=Waiting(joining=60))
    simulated = fm.simulate(algorithm, problem, fm.data.from_arrays(data), rounds, 5)

    differences = [np.abs(a - b).max() for a, b in zip(_arrays(deployed), _arrays(simulated), strict=True)]
    for number, loss in enumerate(deployed.history["loss"]):
        primed = np.isnan(loss)  # the first round gathers gradients, so that Adam does not divide by zeros
        print(f"round {number}: " + ("gradients only" if primed else f"loss {loss:.4f}"))
    print(f"largest difference from a simulation: {max(differences):.1e}")


def _arrays(trained: fm.Run) -> list[np.ndarray]:
    return [np.asarray(array) for layer in trained.params.values() for array in layer.values()]


if __name__ == "__main__":
    rehearse()
