"""Which array of a PyTorch model is which array of the server's, and how its axes are arranged.

Both frameworks have the same layers with other names and other orders of axes, and shapes alone do not tell them apart:
a square matrix fits transposed as well. So the arrangement follows from names, or is said, and shapes are checked on
top. Nothing here needs PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmime.deploy.rule import Parameter, Signature
from fedmime.errors import ConfigError


class Layout(NamedTuple):
    """How the axes of an array are arranged in PyTorch."""

    axes: tuple[int, ...] = ()
    """For each axis in PyTorch, which of the server's it is; () leaves them as they are."""
    channels: int = 0
    """For weights [out, in] behind a flattened image: the image's channels, which the server has last and PyTorch
    first; 0 for other arrays."""

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """The server's array as PyTorch has it."""
        if self.channels:
            return array.reshape(len(array), -1, self.channels).swapaxes(1, 2).reshape(array.shape)
        return array.transpose(self.axes) if self.axes else array

    def to_server(self, array: np.ndarray) -> np.ndarray:
        """Undo `to_torch`."""
        if self.channels:
            return array.reshape(len(array), self.channels, -1).swapaxes(1, 2).reshape(array.shape)
        return array.transpose(np.argsort(self.axes)) if self.axes else array

    def server_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape on the server of an array of PyTorch; None if such an array cannot have this layout."""
        if self.channels:
            return shape if len(shape) == 2 and shape[1] % self.channels == 0 else None
        if not self.axes:
            return shape
        return tuple(shape[axis] for axis in np.argsort(self.axes)) if len(shape) == len(self.axes) else None


SAME = Layout()
"""The same axes in the same order: biases, and the weights [out, in] of `fm.models`."""
TRANSPOSED = Layout((1, 0))
"""Weights [in, out] on the server, as flax has them, and [out, in] in `nn.Linear`."""
CONVOLUTION = Layout((3, 2, 0, 1))
"""A kernel [height, width, in, out] on the server and [out, in, height, width] in `nn.Conv2d`."""


def flattened(channels: int) -> Layout:
    """The weights [out, in] of the first dense layer behind convolutions.

    The server flattens images [height, width, channels], PyTorch [channels, height, width]. A PyTorch model that moves
    the channels to the end before it flattens needs `SAME` instead.

    Args:
        channels: of the images that are flattened.
    """
    return Layout(channels=channels)


Names = Mapping[str, str | tuple[str, Layout]]


class Binding(NamedTuple):
    """An array of the server's model in a PyTorch model."""

    name: str
    layout: Layout


class Layer(NamedTuple):
    """A layer of a PyTorch model that has parameters."""

    name: str
    """Such as `fc1` or `features.0`."""
    kind: str
    """The name of its class, such as `Linear`."""
    inputs: int
    """Features or channels that come in; 0 where the layer has no such number."""
    outputs: int


def bind(server: Signature, own: Mapping[str, tuple[int, ...]], dtype: str, names: Names) -> list[Binding]:
    """The array of PyTorch for each array of the server's model, in the server's order.

    Args:
        server: the server's model.
        own: the shapes of the trainable parameters of the PyTorch model, by name.
        dtype: their type.
        names: for each array of the server the name in PyTorch, or a pair of name and layout.

    Raises:
        ConfigError: an array has no partner or two, or another shape or type; the message names the first.
    """
    found = [_binding(names[each.name]) for each in server.parameters if each.name in names]
    partners = [each.name for each in found]
    for name in partners:
        if name not in own:
            words = f"got {name!r}; the model has {_list(own)}"
            raise ConfigError(f"torch_client: names must name trainable parameters, {words}")
    if twice := [name for name in own if partners.count(name) > 1]:
        raise ConfigError(f"torch_client: names must name every parameter once, got {twice[0]!r} more than once")
    if missing := [each.name for each in server.parameters if each.name not in names]:
        raise ConfigError(f"torch_client: names must have a parameter for {_list(missing)} of the server's model")
    if spare := [name for name in own if name not in partners]:
        raise ConfigError(f"torch_client: the server's model has nothing for {_list(spare)} of the PyTorch model")
    if dtype != server.dtype:
        move = "double" if server.dtype == "float64" else "float"
        raise ConfigError(f"torch_client: the server's model is {server.dtype}, this one {dtype}; use model.{move}()")
    mine = Signature(dtype, tuple(_seen(*pair, own) for pair in zip(server.parameters, found, strict=True)))
    if difference := server.difference(mine):
        raise ConfigError(f"torch_client: {difference}; names must pair arrays of one shape, in the right layout")
    return found


def _binding(value: Any) -> Binding:
    """An entry of `names`."""
    if isinstance(value, str):
        return Binding(value, SAME)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Layout):
        return Binding(*value)
    raise ConfigError(f"torch_client: names must hold names or pairs (name, layout), got {value!r}")


def _seen(parameter: Parameter, binding: Binding, own: Mapping[str, tuple[int, ...]]) -> Parameter:
    """An array of PyTorch as the server would see it."""
    shape = binding.layout.server_shape(own[binding.name])
    if shape is None:
        wrong = f"{binding.name!r} of shape {list(own[binding.name])} cannot have {binding.layout}"
        raise ConfigError(f"torch_client: names must give {parameter.name!r} a layout that fits, {wrong}")
    return Parameter(parameter.name, shape)


def _list(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names))


_LEAVES = {"w": ("weight", SAME), "kernel": ("weight", TRANSPOSED), "b": ("bias", SAME), "bias": ("bias", SAME)}


def by_order(server: Signature, layers: Sequence[Layer]) -> dict[str, tuple[str, Layout]]:
    """The names of a model of `nn.Linear` and `nn.Conv2d` layers that follow each other as the server's do.

    The server's layers are those of `fm.models` or of flax, numbered: `conv0.w`, `dense0.w` or `Dense_0.kernel`. The
    first convolution is paired with the first one, and so on, and dense layers likewise.

    Raises:
        ConfigError: the layers cannot be paired without a guess, so that `names` must be given.
    """
    strange = [layer.name for layer in layers if layer.kind not in ("Linear", "Conv2d")]
    if strange:
        raise _guess(f"layer {strange[0]!r} is neither Linear nor Conv2d")
    groups: dict[str, dict[str, Parameter]] = {}
    for parameter in server.parameters:
        layer, _, leaf = parameter.name.rpartition(".")
        if leaf not in _LEAVES:
            raise _guess(f"{parameter.name!r} of the server's model ends in none of {_list(_LEAVES)}")
        groups.setdefault(layer, {})[leaf] = parameter
    names = {}
    for kind, axes in (("Linear", 2), ("Conv2d", 4)):
        theirs = _numbered([name for name, leaves in groups.items() if _axes(leaves) == axes])
        ours = [layer for layer in layers if layer.kind == kind]
        if len(theirs) != len(ours):
            raise _guess(f"the server's model has {len(theirs)} {kind} layers, the PyTorch model {len(ours)}")
        for group, layer in zip(theirs, ours, strict=True):
            names |= {parameter.name: _partner(leaf, layer, layers) for leaf, parameter in groups[group].items()}
    return names


def _axes(leaves: Mapping[str, Parameter]) -> int:
    """How many axes the weights of a layer have."""
    return max(len(parameter.shape) for parameter in leaves.values())


def _numbered(names: list[str]) -> list[str]:
    """Names of layers in the order of the numbers at their ends."""
    ends = [re.fullmatch(r"(.*?)(\d+)", name) for name in names]
    if len(names) > 1 and (None in ends or len({end[1] for end in ends if end}) > 1):
        raise _guess(f"the layers {_list(names)} of the server's model are not numbered")
    return [name for _, name in sorted(zip([int(end[2]) if end else 0 for end in ends], names, strict=True))]


def _partner(leaf: str, layer: Layer, layers: Sequence[Layer]) -> tuple[str, Layout]:
    """The parameter of a layer that an array of the server's belongs to."""
    name, layout = _LEAVES[leaf]
    if name == "weight" and layer.kind == "Conv2d":
        layout = CONVOLUTION
    before = layers[layers.index(layer) - 1] if layers.index(layer) else None
    flattens = layer.kind == "Linear" and before is not None and before.kind == "Conv2d"
    if name == "weight" and flattens and before is not None and layer.inputs != before.outputs:
        raise _guess(f"layer {layer.name!r} takes a flattened image, whose order of axes must be said")
    return f"{layer.name}.{name}".removeprefix("."), layout


def _guess(why: str) -> ConfigError:
    return ConfigError(f"torch_client: names must be given, because {why}; see fm.deploy.torch_layouts")
