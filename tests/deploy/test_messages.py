"""Messages: every field is checked on both sides, whatever a peer has put into a header."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmime.deploy.messages import (
    NEVER,
    Answer,
    Ask,
    Hello,
    Mask,
    Masked,
    Message,
    Profile,
    Refusal,
    is_a,
    opened,
    packed,
    parameters_digest,
    refusal,
)
from fedmime.deploy.protocol import Frame, FrameError, pack, unpack

RUN, NONCE, DIGEST = "0" * 32, "f" * 32, "a" * 64
EXAMPLES: list[Message] = [
    Hello(RUN, NONCE, "0.1.0", 7, 10, 1, None, True, DIGEST, {"task": "digits-logistic", "optimizer": {"beta": 0.9}}),
    Hello(RUN, NONCE, "0.1.0", 2**63 - 1, None, None, 3, False, DIGEST, None),
    Profile(RUN, NONCE, "hospital 7", 120, DIGEST, "0.1.0", "jax", DIGEST, DIGEST),
    Ask(RUN, 3, NONCE, 4, "points", True, -1, NEVER, 0, ((0, -1), (5, 3)), (1.0, 0.5), {"eta": 0.1}),
    Ask(RUN, 0, NONCE, 0, "prime", False, 2, 1, 1),
    Answer(RUN, 3, NONCE, 120, 12, 8.25, 0.0, True, False),
    Mask(RUN, 3, NONCE, DIGEST[:32], "input", 4, "points", True, (2, 4, 5), (1.0, 0.25)),
    Masked(RUN, 3, NONCE),
    Refusal(NONCE, "data", "client 7: field 'x' is missing"),
    Refusal("", "structure", ""),
]
KINDS = (Hello, Profile, Ask, Answer, Mask, Masked, Refusal)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _arrived(message: Message, payload: bytes = b"") -> Frame:
    return unpack(packed(message, payload), 1000)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_what_is_packed_is_opened(message: Message) -> None:
    frame = _arrived(message, b"arrays")
    assert opened(frame, type(message)) == message
    assert frame.payload == b"arrays"
    assert [kind for kind in KINDS if is_a(frame, kind)] == [type(message)]


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (EXAMPLES[0], {"run": "../../etc"}),
        (EXAMPLES[0], {"seed": -1}),
        (EXAMPLES[0], {"batch_size": 0}),
        (EXAMPLES[0], {"drift": 1}),
        (EXAMPLES[2], {"client": ""}),
        (EXAMPLES[2], {"client": "a\nb"}),
        (EXAMPLES[2], {"client": "\ud800"}),
        (EXAMPLES[2], {"client": "x" * 65}),
        (EXAMPLES[2], {"examples": 0}),
        (EXAMPLES[2], {"examples": 10**12}),
        (EXAMPLES[2], {"examples": True}),
        (EXAMPLES[2], {"examples": 12.0}),
        (EXAMPLES[2], {"dialect": "pickle"}),
        (EXAMPLES[3], {"arrays": [[0, 1, 2]]}),
        (EXAMPLES[3], {"arrays": [[0, True]]}),
        (EXAMPLES[3], {"arrays": [[0, -1]] * 5000}),
        (EXAMPLES[3], {"norms": [1.0]}),
        (EXAMPLES[3], {"kept_from": -2}),
        (EXAMPLES[5], {"round": 2**31}),
        (EXAMPLES[5], {"loss": 10**400}),
        (EXAMPLES[5], {"loss": "0.1"}),
        (EXAMPLES[5], {"steps": None}),
        (EXAMPLES[5], {"class": "os.system"}),
        (EXAMPLES[6], {"stage": "unmask"}),
        (EXAMPLES[6], {"clients": []}),
        (EXAMPLES[6], {"clients": list(range(129))}),
        (EXAMPLES[6], {"clients": [1, 2.0]}),
        (EXAMPLES[6], {"weights": [1.0, 1.5]}),
        (EXAMPLES[6], {"weights": [1.0]}),
        (EXAMPLES[8], {"words": "x" * 501}),
    ],
)
def test_fields_that_are_not_accepted(message: Message, changes: dict[str, Any]) -> None:
    fields = {**_arrived(message).fields, **changes}
    with pytest.raises(FrameError, match=next(iter(changes))):
        opened(_arrived(message)._replace(fields=fields), type(message))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_every_field_must_be_there(message: Message) -> None:
    frame = _arrived(message)
    for name in frame.fields:
        fields = {other: value for other, value in frame.fields.items() if other != name}
        with pytest.raises(FrameError, match=name):
            opened(frame._replace(fields=fields), type(message))


def test_a_message_of_another_kind_is_refused() -> None:
    with pytest.raises(FrameError, match="must be of kind 'ask'"):
        opened(_arrived(EXAMPLES[5]), Ask)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_what_receivers_refuse_is_not_sent(loss: float) -> None:
    assert isinstance(EXAMPLES[5], Answer)
    with pytest.raises(FrameError, match="loss"):
        packed(EXAMPLES[5]._replace(loss=loss))


def test_a_refusal_takes_any_words() -> None:
    found = opened(unpack(refusal(NONCE, "data", "two\nlines\x1b[31m and \ud800" + "x" * 1000), 0), Refusal)
    assert found.words.startswith("two lines [31m and  xxx")


@given(st.sampled_from(EXAMPLES), st.data())
def test_any_json_in_any_field_is_accepted_or_refused(message: Message, data: st.DataObject) -> None:
    frame = _arrived(message)
    name = data.draw(st.sampled_from(sorted(frame.fields)))
    changed = unpack(pack(frame._replace(fields={**frame.fields, name: data.draw(JSON)})), 0)
    try:
        found = opened(changed, type(message))
    except FrameError:
        return
    assert opened(unpack(packed(found), 0), type(message)) == found


def test_the_digest_of_parameters_does_not_depend_on_their_order() -> None:
    arrays = {"dense0.w": "float32[62, 784]", "dense0.b": "float32[62]"}
    assert parameters_digest(arrays) == parameters_digest(dict(reversed(arrays.items())))
    assert parameters_digest(arrays) != parameters_digest({**arrays, "dense0.b": "float64[62]"})
