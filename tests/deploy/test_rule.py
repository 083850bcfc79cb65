"""Signatures and rules: what is packed comes back, what is none is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmime as fm
from fedmime.deploy.protocol import FrameError
from fedmime.deploy.rule import Parameter, Rule, Signature

MODEL = Signature("float32", (Parameter("b", (2,)), Parameter("s", ()), Parameter("w", (3, 2))))
JSON = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4) | st.lists(st.none())
)


def _models(count: int, dtype: str = "float32") -> list[list[np.ndarray]]:
    rng = np.random.default_rng(0)
    return [[np.asarray(rng.normal(size=each.shape), dtype) for each in MODEL.parameters] for _ in range(count)]


def test_a_description_gives_its_signature_back() -> None:
    assert MODEL.arrays == {"b": "float32[2]", "s": "float32[]", "w": "float32[3, 2]"}
    assert Signature.of(MODEL.arrays) == MODEL
    assert MODEL.nbytes == 4 * 9


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "got no arrays"),
        ({"w": "float32[2]", "b": "float64[2]"}, "got float32, float64"),
        ({"w": "bfloat16[2]"}, "got bfloat16"),
        ({"w": "float32"}, "got 'float32' for 'w'"),
        ({"w": "float32[-1]"}, "must read like"),
        ({"w": "float32[2]; import os"}, "must read like"),
        ({"w": 7}, "must read like"),
    ],
)
def test_what_describes_no_model_is_refused(arrays: Any, words: str) -> None:
    with pytest.raises(fm.ConfigError, match=words):
        Signature.of(arrays)


def test_the_first_difference_is_named() -> None:
    other = MODEL._replace(parameters=(*MODEL.parameters[:2], Parameter("w", (2, 3))))
    assert MODEL.difference(MODEL) is None
    assert MODEL.difference(other) == "the server's model has w [3, 2] where the client's has w [2, 3]"
    assert MODEL.difference(MODEL._replace(parameters=MODEL.parameters[:2])) == (
        "the server's model has w [3, 2] where the client's has nothing"
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_models_travel_as_little_endian_numbers(dtype: str) -> None:
    model, sent = MODEL._replace(dtype=dtype), _models(2, dtype)
    data = model.pack(*sent)
    size = model.nbytes // 9
    assert data[: 2 * size] == sent[0][0].astype(f"<f{size}").tobytes()
    received = model.unpack(data, 2)
    for ours, theirs in zip(received, sent, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == dtype
            np.testing.assert_array_equal(one, other, strict=True)


@pytest.mark.parametrize("models", [0, 1, 3])
def test_another_number_of_bytes_is_refused(models: int) -> None:
    with pytest.raises(FrameError, match=f"must have {models * 36} bytes for {models} models, got 72"):
        MODEL.unpack(MODEL.pack(*_models(2)), models)


RULES = [
    Rule(0.1),
    Rule(0.1, mu=0.3),
    Rule(0.1, correction=True, scale=0.5, offset=_models(1)[0]),
    Rule(0.1, keeps=True, offset=_models(1)[0]),
    Rule(1, correction=True, scale=_models(2)[1], offset=_models(2)[0]),
]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_comes_back(rule: Rule) -> None:
    found, count = Rule.read(json.loads(json.dumps(rule.fields)))
    assert count == len(rule.arrays)
    whole = found.with_arrays(MODEL.unpack(MODEL.pack(*rule.arrays), count))
    assert whole.fields == rule.fields
    for ours, theirs in zip(whole.arrays, rule.arrays, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


@given(st.sampled_from([*RULES[0].fields]), JSON)
def test_other_fields_are_refused_or_harmless(name: str, value: Any) -> None:
    fields = RULES[0].fields | {name: value}
    try:
        rule, count = Rule.read(fields)
    except FrameError:
        return
    assert rule.fields == fields
    assert count <= 2


@pytest.mark.parametrize("fields", [None, [], {}, RULES[0].fields | {"code": "x"}, {"eta": 0.1}])
def test_what_is_no_rule_is_refused(fields: Any) -> None:
    with pytest.raises(FrameError, match="a rule has the fields eta, mu, correction, keeps, scale, offset"):
        Rule.read(fields)
