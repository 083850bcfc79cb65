"""A client written in PyTorch: its own model and loss, the server's algorithm.

`torch_client` makes a node of a module, a loss and the client's examples. The node speaks the affine dialect
(`affine_node.py`) and gives the same numbers as a client written in JAX, up to rounding. It needs PyTorch and NumPy but
not JAX, and is the only module of the library that imports PyTorch.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmime.deploy.affine_node import AffineNode
from fedmime.deploy.rule import Arrays, Signature
from fedmime.deploy.torch_layouts import Binding, Layer, Names, bind, by_order
from fedmime.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports] - an extra


def torch_client(
    model: Any,
    loss: Any,
    data: Any,
    *,
    client: str,
    names: Names | None = None,
    state: str | os.PathLike[str] | None = None,
) -> AffineNode:
    """A deployed client from a PyTorch model, a loss and the client's examples.

    It follows Mime and MimeLite with every built-in base optimizer applied frozen, FedAvg, FedProx and SCAFFOLD, and
    may share a cohort with clients written in JAX. It trains where the model's parameters are, on a CPU or a GPU.

    Args:
        model: a `torch.nn.Module` whose trainable parameters are all float32 or all float64; every request overwrites
            them. Buffers, which batch normalization has, and dropout are refused: the server does not know them.
        loss: a module such as `nn.CrossEntropyLoss(reduction="none")`, which is called with `model(x)` and y, or a
            function `loss(model, batch)`. Either returns one number per example [n], never a mean.
        data: a dictionary of arrays or tensors [n, ...], with the fields `"x"` and `"y"` unless the loss is a function;
            or a `torch.utils.data.Dataset` of such dictionaries or of pairs (x, y). A data set is read once, so that
            random transformations are drawn once.
        client: the client's name. It must stay the same when the node is started again, and no other may have it.
        names: for each array of the server's model the parameter of this one, or a pair of parameter and layout (see
            `fm.deploy.torch_layouts`), such as `{"dense0.w": "fc.weight", "dense0.b": "fc.bias"}`. May be left out for
            `nn.Linear` and `nn.Conv2d` layers in the same order as the server's.
        state: a directory in which the client keeps what SCAFFOLD's clients keep between rounds; None keeps it in
            memory, where it is lost when the process ends.

    Raises:
        ConfigError: a model or a loss that cannot take part. DataError: examples that cannot be trained on.
    """
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("torch_client needs PyTorch: pip install torch") from None
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"torch_client: model must be a torch.nn.Module, got {type(model).__name__}")
    learner = TorchLearner(model, loss, data, names)
    return AffineNode(learner, client, None if state is None else Path(state))


class TorchLearner:
    """A module, a loss and examples; see `Learner` in `affine_node.py`. Arrays are tensors in the module's layout."""

    def __init__(self, model: Any, loss: Any, data: Any, names: Names | None) -> None:
        self._model, self._names = model, names
        self._parameters = _trainable(model)
        first = next(iter(self._parameters.values()))
        self._device, self._dtype = first.device, str(first.dtype).removeprefix("torch.")
        self._columns = _columns(data, self._device)
        self._loss = _loss(loss, self._columns)
        self._bindings: list[Binding] = []
        self._check_loss()

    @property
    def examples(self) -> int:
        """See `Learner.examples`."""
        return len(next(iter(self._columns.values())))

    @property
    def identity(self) -> str:
        """See `Learner.identity`."""
        total = hashlib.sha256()
        for name, column in self._columns.items():
            array = column.cpu().numpy()
            total.update(repr((name, array.dtype.str, array.shape)).encode())
            total.update(np.ascontiguousarray(array).tobytes())
        return total.hexdigest()

    @property
    def nbytes(self) -> int:
        """See `Learner.nbytes`."""
        return sum(each.numel() * each.element_size() for each in self._parameters.values())

    def bind(self, server: Signature) -> None:
        """See `Learner.bind`."""
        names = by_order(server, _layers(self._model)) if self._names is None else self._names
        shapes = {name: tuple(each.shape) for name, each in self._parameters.items()}
        self._bindings = bind(server, shapes, self._dtype, names)

    def take(self, arrays: list[np.ndarray]) -> Arrays:
        """See `Learner.take`."""
        import torch  # pyright: ignore[reportMissingImports]

        pairs = zip(arrays, self._bindings, strict=True)
        return [torch.from_numpy(each.layout.to_torch(array).copy()).to(self._device) for array, each in pairs]

    def give(self, arrays: Arrays) -> list[np.ndarray]:
        """See `Learner.give`."""
        pairs = zip(arrays, self._bindings, strict=True)
        return [each.layout.to_server(array.cpu().numpy()) for array, each in pairs]

    def gradient(self, y: Arrays, rows: np.ndarray) -> tuple[float, Arrays]:
        """See `Learner.gradient`."""
        import torch  # pyright: ignore[reportMissingImports]

        mine = [self._parameters[each.name] for each in self._bindings]
        with torch.no_grad():
            for parameter, value in zip(mine, y, strict=True):
                parameter.copy_(value)
        mean = self._losses(rows).mean()
        found = torch.autograd.grad(mean, mine, allow_unused=True)
        pairs = zip(found, mine, strict=True)
        return float(mean.detach()), [torch.zeros_like(p) if g is None else g for g, p in pairs]

    def _losses(self, rows: np.ndarray) -> torch.Tensor:
        """The losses of the examples at some positions [rows]."""
        import torch  # pyright: ignore[reportMissingImports]

        chosen = torch.from_numpy(np.asarray(rows, np.int64)).to(self._device)
        return self._loss(self._model, {name: column[chosen] for name, column in self._columns.items()})

    def _check_loss(self) -> None:
        """Refuse a loss that is no vector of one number per example, or that draws random numbers."""
        import torch  # pyright: ignore[reportMissingImports]

        shapes = [each.shape for each in self._parameters.values()] + [c.shape[1:] for c in self._columns.values()]
        taken = {length for shape in shapes for length in shape}
        n = next(n for n in itertools.count(7) if n not in taken)  # to be recognised in the shape of the losses
        self._model.train()
        with torch.no_grad(), torch.random.fork_rng():
            first, second = (self._tried(n, seed) for seed in (0, 1))
        if list(first.shape) != [n]:
            got = str(list(first.shape)).replace(str(n), "n")
            raise ConfigError(f"torch_client: loss must have shape [n], got {got}; use reduction='none', take no mean")
        if not torch.allclose(first, second, equal_nan=True):
            words = "got two results for one batch; set dropout to 0"
            raise ConfigError(f"torch_client: loss must not draw random numbers, {words}")

    def _tried(self, n: int, seed: int) -> torch.Tensor:
        """The losses of n examples, some of them repeated where there are fewer, after a seed."""
        import torch  # pyright: ignore[reportMissingImports]

        torch.manual_seed(seed)
        return torch.as_tensor(self._losses(np.arange(n) % self.examples))


def _trainable(model: Any) -> dict[str, torch.Tensor]:
    """The parameters that are trained, by name."""
    found = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not found:
        raise ConfigError("torch_client: model must have parameters that require gradients, got none")
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if foreign := [name for name in model.state_dict() if name not in parameters]:
        advice = "use GroupNorm in place of batch normalization, and persistent=False for constants"
        raise ConfigError(f"torch_client: model must have no buffers, got {foreign[0]!r}; {advice}")
    dtypes = sorted({str(each.dtype) for each in found.values()})
    if len(dtypes) > 1:
        raise ConfigError(f"torch_client: model must have parameters of one type, got {', '.join(dtypes)}")
    return found


def _layers(model: Any) -> list[Layer]:
    """The layers of a model that own trainable parameters, in the order in which they were defined."""
    layers = []
    for name, module in model.named_modules():
        if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
            inputs = getattr(module, "in_features", 0) or getattr(module, "in_channels", 0)
            outputs = getattr(module, "out_features", 0) or getattr(module, "out_channels", 0)
            layers.append(Layer(name, type(module).__name__, inputs, outputs))
    return layers


def _loss(loss: Any, columns: Mapping[str, Any]) -> Callable[[Any, Mapping[str, Any]], Any]:
    """A function of model and batch from either kind of loss."""
    import torch  # pyright: ignore[reportMissingImports]

    if not isinstance(loss, torch.nn.Module):
        if not callable(loss):
            raise ConfigError(f"torch_client: loss must be a module or a function loss(model, batch), got {loss!r}")
        return loss
    if missing := {"x", "y"} - columns.keys():
        raise DataError(
            f"torch_client: data must have the fields 'x' and 'y' for such a loss, {min(missing)!r} is missing"
        )
    return lambda model, batch: loss(model(batch["x"]), batch["y"])


def _columns(data: Any, device: Any) -> dict[str, torch.Tensor]:
    """The examples as one tensor per field, on the model's device."""
    import torch  # pyright: ignore[reportMissingImports]

    found = dict(data) if isinstance(data, Mapping) else _read(data)
    columns = {name: torch.as_tensor(column).to(device) for name, column in found.items()}
    lengths = {name: len(column) if column.ndim else 0 for name, column in columns.items()}
    if not lengths or len(set(lengths.values())) > 1 or not all(lengths.values()):
        raise DataError(f"torch_client: data must have the same number of examples in every field, got {lengths}")
    for name, column in columns.items():
        if not torch.isfinite(column).all():
            raise DataError(f"torch_client: data must be finite, field {name!r} has NaN or infinite values")
    return columns


def _read(data: Any) -> dict[str, torch.Tensor]:
    """All examples of a data set, stacked."""
    from torch.utils.data import Dataset, default_collate  # pyright: ignore[reportMissingImports]

    if not isinstance(data, Dataset) or not hasattr(data, "__len__"):
        kind = type(data).__name__
        raise DataError(f"torch_client: data must be a dictionary or a Dataset with a length, got {kind}")
    whole = default_collate([data[place] for place in range(len(data))])  # pyright: ignore[reportArgumentType]
    if isinstance(whole, Mapping):
        return dict(whole)
    if isinstance(whole, list | tuple) and len(whole) == 2:
        return dict(zip(("x", "y"), whole, strict=True))
    raise DataError("torch_client: data must hold dictionaries or pairs (x, y), got something else")
