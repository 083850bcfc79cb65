"""The models of the benchmark as numbers: parameter shapes in fedmime's layout, and the matrix products of a step."""

from __future__ import annotations

import math
from typing import NamedTuple

IMAGE, CLASSES = (28, 28, 1), 62
VOCABULARY, EMBEDDING, HIDDEN, LAYERS, LENGTH = 90, 8, 256, 2, 80
MODELS = ("logistic", "mlp", "cnn", "char_lstm")

_WIDTHS = {"logistic": (784, CLASSES), "mlp": (784, 300, 100, CLASSES)}

Shapes = dict[str, tuple[int, ...]]


class Product(NamedTuple):
    """A product [m, k] x [k, n] that one local step takes `times` times."""

    layer: str
    m: int
    k: int
    n: int
    times: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n * self.times


def parameters(model: str) -> Shapes:
    """Name and shape of every array of a model; dense weights are [out, in], kernels [h, w, in, out]."""
    if model in _WIDTHS:
        widths = _WIDTHS[model]
        return _dense({f"dense{i}": pair for i, pair in enumerate(zip(widths[1:], widths[:-1], strict=True))})
    if model == "cnn":
        kernels: Shapes = {"conv0/w": (3, 3, 1, 32), "conv0/b": (32,), "conv1/w": (3, 3, 32, 64), "conv1/b": (64,)}
        return kernels | _dense({"dense0": (128, 12 * 12 * 64), "dense1": (CLASSES, 128)})
    if model == "char_lstm":
        shapes: Shapes = {"embedding": (VOCABULARY, EMBEDDING)}
        for i in range(LAYERS):
            inputs = HIDDEN if i else EMBEDDING
            shapes[f"lstm{i}/w"] = (inputs, 4 * HIDDEN)
            shapes[f"lstm{i}/u"] = (HIDDEN, 4 * HIDDEN)
            shapes[f"lstm{i}/b"] = (4 * HIDDEN,)
        return shapes | _dense({"dense": (VOCABULARY, HIDDEN)})
    raise ValueError(f"unknown model {model!r}; known are {', '.join(MODELS)}")


def size(model: str) -> int:
    """How many numbers a model has."""
    return sum(math.prod(shape) for shape in parameters(model).values())


def products(model: str, batch: int) -> list[Product]:
    """Forward, weight-gradient and input-gradient products of one step; data needs no gradient, so layer 0 has two."""
    if model in _WIDTHS:
        widths = _WIDTHS[model]
        layers = [_layer(f"dense{i}", batch, widths[i], widths[i + 1], first=i == 0) for i in range(len(widths) - 1)]
    elif model == "cnn":
        layers = [
            _convolution("conv0", batch, 28, 1, 32, first=True),
            _convolution("conv1", batch, 26, 32, 64),
            _layer("dense0", batch, 12 * 12 * 64, 128),
            _layer("dense1", batch, 128, CLASSES),
        ]
    elif model == "char_lstm":
        rows = batch * LENGTH
        layers = [_recurrence(i, batch) for i in range(LAYERS)] + [_layer("dense", rows, HIDDEN, VOCABULARY)]
    else:
        raise ValueError(f"unknown model {model!r}; known are {', '.join(MODELS)}")
    return [product for layer in layers for product in layer]


def step_flops(model: str, batch: int) -> int:
    """Floating-point operations of the matrix products of one local step."""
    return sum(product.flops for product in products(model, batch))


def step_bytes(model: str) -> int:
    """Bytes that y ← y − ηg moves at least: y and g read, g and y written, in float32."""
    return 4 * 4 * size(model)


def _dense(layers: dict[str, tuple[int, int]]) -> Shapes:
    shapes: Shapes = {}
    for name, (outputs, inputs) in layers.items():
        shapes[f"{name}/w"], shapes[f"{name}/b"] = (outputs, inputs), (outputs,)
    return shapes


def _layer(name: str, rows: int, inputs: int, outputs: int, first: bool = False) -> list[Product]:
    both = [Product(name, rows, inputs, outputs), Product(name, outputs, rows, inputs)]
    return both if first else [*both, Product(name, rows, outputs, inputs)]


def _convolution(name: str, batch: int, side: int, inputs: int, outputs: int, first: bool = False) -> list[Product]:
    """A 3 x 3 convolution without padding as the products of its patches."""
    pixels, before = batch * (side - 2) ** 2, batch * side**2
    both = [Product(name, pixels, 9 * inputs, outputs), Product(name, 9 * inputs, pixels, outputs)]
    return both if first else [*both, Product(name, before, 9 * outputs, inputs)]


def _recurrence(i: int, batch: int) -> list[Product]:
    """Products with the input for all times at once, with the state one time after another."""
    name, inputs, rows = f"lstm{i}", HIDDEN if i else EMBEDDING, batch * LENGTH
    along = [Product(name, batch, HIDDEN, 4 * HIDDEN, LENGTH), Product(name, batch, 4 * HIDDEN, HIDDEN, LENGTH)]
    return [*_layer(name, rows, inputs, 4 * HIDDEN), *along, Product(name, HIDDEN, rows, 4 * HIDDEN)]
