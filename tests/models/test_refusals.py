"""What the factories and the data checks refuse, in one line that names field, value and what is accepted."""

import re

import numpy as np
import pytest

import fedmime.models as fm_models
from fedmime.errors import ConfigError, DataError

X, Y = np.zeros((3, 28, 28, 1), np.float32), np.array([0, 61, 5])
TOKENS = np.array([[1, 2], [3, 0]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fm_models.logistic(classes=1), "logistic: classes must be a whole number of at least 2, got 1"),
        (lambda: fm_models.logistic(classes=2.5), "classes must be a whole number of at least 2, got 2.5"),
        (lambda: fm_models.logistic(classes=True), "classes .* got True"),
        (lambda: fm_models.logistic(classes=None), "classes .* got None"),
        (lambda: fm_models.logistic(input_shape=()), r"input_shape must have at least one axis, got \(\)"),
        (lambda: fm_models.logistic(input_shape=(28, 0)), r"input_shape\[1\] must be .* at least 1, got 0"),
        (lambda: fm_models.logistic(input_shape="28"), "input_shape must be a tuple of whole numbers, got '28'"),
        (lambda: fm_models.mlp(hidden=(300, -1)), r"mlp: hidden\[1\] must be a whole number of at least 1, got -1"),
        (lambda: fm_models.mlp(hidden=(float("nan"),)), r"hidden\[0\] .* got nan"),
        (lambda: fm_models.mlp(hidden=None), "hidden must be a tuple of whole numbers, got None"),
        (lambda: fm_models.cnn(input_shape=(28, 28)), r"cnn: input_shape must be \(height.*got \(28, 28\)"),
        (lambda: fm_models.cnn(input_shape=(28, 5, 1)), "at least 6, got"),
        (lambda: fm_models.cnn(dropout=1.0), r"cnn: dropout\[0\] must lie in \[0, 1\), got 1.0"),
        (lambda: fm_models.cnn(dropout=(0.1, float("nan"))), r"dropout\[1\] must lie in \[0, 1\), got nan"),
        (lambda: fm_models.cnn(dropout=(0.1, -0.1)), r"dropout\[1\] .* got -0.1"),
        (lambda: fm_models.cnn(dropout=(0.1,)), r"dropout must be one rate or two, got \(0.1,\)"),
        (lambda: fm_models.cnn(dropout="x"), r"dropout\[0\] must lie in \[0, 1\), got 'x'"),
        (lambda: fm_models.char_lstm(vocabulary=0), "char_lstm: vocabulary .* got 0"),
        (lambda: fm_models.char_lstm(layers=0), "layers must be a whole number of at least 1, got 0"),
        (lambda: fm_models.char_lstm(hidden=-4), "hidden .* got -4"),
        (lambda: fm_models.word_lstm(embedding=1.0), "word_lstm: embedding .* got 1.0"),
        (lambda: fm_models.word_lstm(vocabulary=3), "vocabulary must be a whole number of at least 5, got 3"),
        (lambda: fm_models.word_lstm(ignore=(-1,)), r"ignore\[0\] .* at least 0, got -1"),
        (lambda: fm_models.word_lstm(ignore=(10004,)), r"ignore must hold token ids below vocabulary=10004, got"),
    ],
)
def test_arguments(call, words):
    with pytest.raises(ConfigError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"x": X}, r"mlp: field 'y' is missing, got \['x'\]"),
        ({}, r"field 'x' is missing, got \[\]"),
        ({"x": X[:0], "y": Y[:0]}, "field 'x' is empty"),
        ({"x": X, "y": Y[:0]}, "field 'y' is empty"),
        ({"x": X[..., 0], "y": Y}, r"field 'x' must have shape \[examples, 28, 28, 1\], got \[3, 28, 28\]"),
        ({"x": X, "y": Y[:2]}, "field 'y' must have as many examples as 'x', got 2 for 3"),
        ({"x": X, "y": Y[:, None]}, r"field 'y' must have shape \[examples\], got \[3, 1\]"),
        ({"x": X, "y": Y + 1}, r"field 'y' must hold labels in \[0, 61\], got 62"),
        ({"x": X, "y": Y - 1}, r"field 'y' must hold labels in \[0, 61\], got -1"),
        ({"x": X, "y": Y.astype(float)}, "field 'y' must hold integer labels, got float64"),
        ({"x": (X + 255).astype(np.uint8), "y": Y}, r"floats in \[0, 1\], got uint8 up to 255; divide by 255"),
        ({"x": X.astype(int), "y": Y}, "field 'x' must hold floats, got int64"),
    ],
)
@pytest.mark.parametrize("problem", [fm_models.logistic(), fm_models.mlp(), fm_models.cnn()], ids=lambda p: p.name)
def test_image_data(problem, fields, words):
    with pytest.raises(DataError, match=words.replace("mlp:", f"{problem.name}:")) as caught:
        problem.check(fields)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(problem.name + ":")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"x": TOKENS}, "field 'y' is missing"),
        ({"x": TOKENS, "y": TOKENS[:, :1]}, "field 'y' must have the shape [2, 2] of 'x', got [2, 1]"),
        ({"x": TOKENS[0], "y": TOKENS}, "field 'x' must have shape [examples, length], got [2]"),
        ({"x": TOKENS, "y": TOKENS + 87}, "field 'y' must hold tokens in [0, 89], got 90"),
        ({"x": TOKENS - 1, "y": TOKENS}, "field 'x' must hold tokens in [0, 89], got -1"),
        ({"x": TOKENS.astype(np.float32), "y": TOKENS}, "field 'x' must hold integer tokens, got float32"),
        ({"x": TOKENS[:0], "y": TOKENS[:0]}, "field 'x' is empty"),
    ],
)
def test_token_data(fields, words):
    with pytest.raises(DataError, match="char_lstm: " + re.escape(words)):
        fm_models.char_lstm().check(fields)


def test_what_is_accepted():
    fm_models.mlp().check({"x": X.astype(np.float64), "y": Y.astype(np.uint8), "other": np.zeros(1)})
    fm_models.char_lstm().check({"x": TOKENS, "y": TOKENS.astype(np.int16)})
