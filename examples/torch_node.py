"""A client in PyTorch as a process of its own: `fedmime deploy client --torch examples/torch_node.py:client`.

The server's task says what the model is. This one goes with `fedmime deploy server --task digits-two-labels`, whose
model is one linear layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedmime as fm


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.flatten(1))


def client(config: dict[str, Any]) -> fm.deploy.Node:
    """The client that a server asks: its name is that of its key, its data what --data names."""
    arrays = np.load(config["data"])
    dataset = TensorDataset(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]).long())
    loss = nn.CrossEntropyLoss(reduction="none")
    return fm.deploy.torch_client(Net(), loss, dataset, client=config["name"], state=config["state"])
