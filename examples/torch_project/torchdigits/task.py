"""What the clients have: a model, their data and a loss, in PyTorch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import fedmime as fm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8 * 8, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def load_data(partition_id, num_partitions):
    """The examples of one client: every so many-th of the scanned digits."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.as_tensor(images / 16).float(), torch.as_tensor(labels).long()
    return TensorDataset(images[partition_id::num_partitions], labels[partition_id::num_partitions])


def client(config):
    """The client that the server asks, from the configuration of its node."""
    dataset = load_data(int(config["partition-id"]), int(config["num-partitions"]))
    loss = nn.CrossEntropyLoss(reduction="none")  # one number per example; the mean is the library's
    return fm.deploy.torch_client(Net(), loss, dataset, client=config["name"], state=config["state"])
