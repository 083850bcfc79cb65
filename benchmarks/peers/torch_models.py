"""The benchmark's models in PyTorch, with weights in and out of the work file's layout."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)


class Classifier(nn.Module):
    """Logits of images and their mean cross-entropy."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.layers(x), y)


class NextCharacter(nn.Module):
    """Embedding, LSTM, dense layer; x and y are [batch, time]."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers)
        self.dense = nn.Linear(hidden, vocabulary)
        for i in range(layers):  # the two biases of a layer are one: only the first is trained
            getattr(self.lstm, f"bias_hh_l{i}").requires_grad_(False).zero_()

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, _ = self.lstm(self.embedding(x.T))
        return functional.cross_entropy(self.dense(a).flatten(0, 1), y.T.flatten())


def module(model: str) -> nn.Module:
    """A new module; `load` gives it weights."""
    if model == "logistic":
        return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(784, 62)))
    if model == "mlp":
        dense = nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 62)
        return Classifier(nn.Sequential(nn.Flatten(), *dense))
    if model == "cnn":
        convolutions = nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
        dense = nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 62)
        return Classifier(nn.Sequential(*convolutions, nn.Flatten(), *dense))
    return NextCharacter(90, 8, 256, 2)


def tensors(client: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's columns; images are channels first."""
    x = torch.from_numpy(np.ascontiguousarray(client["x"]))
    return (x.permute(0, 3, 1, 2) if x.ndim == 4 else x.long()), torch.from_numpy(client["y"]).long()


@torch.no_grad()
def load(model: str, into: nn.Module, weights: dict[str, np.ndarray]) -> None:
    """Set a module's parameters."""
    for name, parameter in _names(model, into).items():
        parameter.copy_(torch.from_numpy(_to_torch(name, weights[name])))


def dump(model: str, module: nn.Module) -> dict[str, np.ndarray]:
    """A module's parameters."""
    return {name: _from_torch(name, p.detach().numpy()).copy() for name, p in _names(model, module).items()}


def _names(model: str, module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by their names in the work file."""
    if model == "char_lstm":
        named = {"embedding": module.embedding.weight, "dense/w": module.dense.weight, "dense/b": module.dense.bias}
        for i in range(2):
            for name, torch_name in (("w", "weight_ih"), ("u", "weight_hh"), ("b", "bias_ih")):
                named[f"lstm{i}/{name}"] = getattr(module.lstm, f"{torch_name}_l{i}")
        return named
    kinds = {"conv": [], "dense": []}
    for layer in module.layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            kinds["conv" if isinstance(layer, nn.Conv2d) else "dense"].append(layer)
    layers = {f"{kind}{i}": layer for kind, found in kinds.items() for i, layer in enumerate(found)}
    return {f"{name}/{w}": p for name, layer in layers.items() for w, p in (("w", layer.weight), ("b", layer.bias))}


def _to_torch(name: str, value: np.ndarray) -> np.ndarray:
    if value.ndim == 4:
        value = value.transpose(3, 2, 0, 1)
    elif value.shape == (128, 9216):  # channels come last in the file, first in torch
        value = value.reshape(128, 12, 12, 64).transpose(0, 3, 1, 2).reshape(128, 9216)
    elif name.startswith("lstm") and value.ndim == 2:
        value = value.T
    return np.ascontiguousarray(value)


def _from_torch(name: str, value: np.ndarray) -> np.ndarray:
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if value.shape == (128, 9216):
        return value.reshape(128, 64, 12, 12).transpose(0, 2, 3, 1).reshape(128, 9216)
    return value.T if name.startswith("lstm") and value.ndim == 2 else value
