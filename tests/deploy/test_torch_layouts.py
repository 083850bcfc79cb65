"""Pairing arrays: layouts undo themselves, and nothing is paired by a guess."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmime as fm
from fedmime.deploy.rule import Parameter, Signature
from fedmime.deploy.torch_layouts import CONVOLUTION, SAME, TRANSPOSED, Layer, Layout, bind, by_order, flattened
from fedmime.runs.identity import shapes

CNN = Signature.of(shapes(fm.models.cnn((6, 8, 1), 5, 0.0).init(jax.random.key(0))))
MLP = Signature.of(shapes(fm.models.mlp((6, 8, 1), 5, (6,) * 11).init(jax.random.key(0))))


def _model(**shaped: tuple[int, ...]) -> Signature:
    return Signature("float32", tuple(Parameter(name.replace("__", "."), shape) for name, shape in shaped.items()))


@given(st.sampled_from([SAME, TRANSPOSED, CONVOLUTION, flattened(3)]), st.integers(1, 4), st.integers(1, 4))
def test_a_layout_is_undone(layout: Layout, height: int, outputs: int) -> None:
    shape = (height, 2, 5, outputs) if layout is CONVOLUTION else (outputs, 3 * height)
    array = np.arange(np.prod(shape)).reshape(shape)
    there = layout.to_torch(array)
    np.testing.assert_array_equal(layout.to_server(there), array)
    assert layout.server_shape(there.shape) == shape


def test_flattened_images_have_their_channels_moved() -> None:
    images = np.arange(24).reshape(2, 3, 4)  # height, width, channels
    weights = images.reshape(1, -1)
    np.testing.assert_array_equal(flattened(4).to_torch(weights)[0], images.transpose(2, 0, 1).ravel())


def test_numbered_layers_are_paired_in_the_order_of_their_numbers() -> None:
    layers = [Layer(f"l{i}", "Linear", 0, 0) for i in range(12)]
    names = by_order(MLP, layers)
    assert names["dense2.w"] == ("l2.weight", SAME)
    assert names["dense10.w"] == ("l10.weight", SAME)
    assert names["dense10.b"] == ("l10.bias", SAME)


def test_flaxs_layers_are_transposed() -> None:
    model = _model(Conv_0__kernel=(3, 3, 1, 8), Dense_0__bias=(2,), Dense_0__kernel=(8, 2))
    names = by_order(model, [Layer("conv", "Conv2d", 1, 8), Layer("fc", "Linear", 8, 2)])
    assert names["Conv_0.kernel"] == ("conv.weight", CONVOLUTION)
    assert names["Dense_0.kernel"] == ("fc.weight", TRANSPOSED)


CONVS = [Layer("a", "Conv2d", 1, 32), Layer("b", "Conv2d", 32, 64)]


@pytest.mark.parametrize(
    ("model", "layers", "words"),
    [
        (CNN, [*CONVS, Layer("c", "Linear", 128, 128), Layer("d", "Linear", 128, 5)], "'c' takes a flattened image"),
        (CNN, [Layer("c", "Linear", 128, 128)], "has 2 Linear layers, the PyTorch model 1"),
        (CNN, [Layer("c", "LSTM", 0, 0)], "'c' is neither Linear nor Conv2d"),
        (_model(dense__gamma=(2,)), [], "'dense.gamma' of the server's model ends in none of 'w'"),
        (
            _model(hidden__w=(2, 2), out__w=(2, 2)),
            [Layer("c", "Linear", 2, 2), Layer("d", "Linear", 2, 2)],
            "the layers 'hidden', 'out' of the server's model are not numbered",
        ),
    ],
)
def test_what_would_be_a_guess_is_refused(model: Signature, layers: Any, words: str) -> None:
    with pytest.raises(fm.ConfigError, match=f"names must be given, because .*{words}"):
        by_order(model, layers)


SQUARE = _model(w=(2, 2), b=(2,))
OWN = {"fc.weight": (2, 2), "fc.bias": (2,)}
NAMES: dict[str, Any] = {"w": "fc.weight", "b": "fc.bias"}


def test_pairs_are_in_the_servers_order() -> None:
    found = bind(SQUARE, OWN, "float32", {"b": "fc.bias", "w": ("fc.weight", TRANSPOSED)})
    assert found == [("fc.weight", TRANSPOSED), ("fc.bias", SAME)]


@pytest.mark.parametrize(
    ("own", "names", "words"),
    [
        (
            OWN,
            NAMES | {"w": "fc.wieght"},
            "trainable parameters, got 'fc.wieght'; the model has 'fc.weight'",
        ),
        (OWN, {"w": "fc.weight"}, "names must have a parameter for 'b' of the server's model"),
        (OWN, NAMES | {"b": "fc.weight"}, "names must name every parameter once, got 'fc.weight' more than once"),
        (OWN | {"extra": (1,)}, NAMES, "the server's model has nothing for 'extra' of the PyTorch model"),
        (OWN | {"fc.bias": (3,)}, NAMES, r"the server's model has b \[2\] where the client's has b \[3\]"),
        (OWN, NAMES | {"w": 3}, r"names must hold names or pairs \(name, layout\), got 3"),
        (OWN, NAMES | {"w": ("fc.weight", "transpose")}, "names must hold names or pairs"),
        (OWN, NAMES | {"b": ("fc.bias", TRANSPOSED)}, r"give 'b' a layout that fits, 'fc.bias' of shape \[2\]"),
        (OWN, NAMES | {"w": ("fc.weight", flattened(3))}, "give 'w' a layout that fits"),
    ],
)
def test_wrong_pairs_are_refused(own: Any, names: Any, words: str) -> None:
    with pytest.raises(fm.ConfigError, match=words):
        bind(SQUARE, own, "float32", names)


def test_another_precision_is_refused() -> None:
    with pytest.raises(fm.ConfigError, match=r"the server's model is float32, this one float64; use model.float\(\)"):
        bind(SQUARE, OWN, "float64", NAMES)
