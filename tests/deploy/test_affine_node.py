"""A node without JAX: what it keeps, what it refuses, and that nothing ends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmime as fm
from deploy.affine_setting import MOST, NONCE, RUN, asks, by_messages, error, greeting, shelve
from deploy.quadratic import Quadratic, before
from fedmime.deploy import affine_node
from fedmime.deploy.affine_node import AffineNode
from fedmime.deploy.kept import DiskShelf
from fedmime.deploy.messages import Ask, Hello, Profile, opened, packed, parameters_digest
from fedmime.deploy.protocol import Frame, unpack

a, o = fm.algorithms, fm.optimizers
MIME, SCAFFOLD = before(a.mime(o.adam(), 0.05)), before(a.scaffold(0.05))


def _node(state: Path | None = None, joined: bool = True) -> AffineNode:
    node = AffineNode(Quadratic(MIME.columns), "hospital 7", state)
    if joined:
        node.answer(greeting(MIME))
    return node


def _asked(node: AffineNode, request: bytes, **changes: Any) -> Frame:
    """The reply to a request of which some fields are changed."""
    frame = unpack(request, MOST)
    ask = opened(frame, Hello if frame.kind == "hello" else Ask)._replace(**changes)
    return unpack(node.answer(packed(ask, frame.payload)), MOST)


def test_it_says_who_it_is() -> None:
    frame = unpack(_node(joined=False).answer(greeting(MIME)), 0)
    told = opened(frame, Profile)
    assert told[:5] == (RUN, NONCE, "hospital 7", 5, "d" * 64)
    assert (told.dialect, told.configuration) == ("affine", "c" * 64)
    assert told.parameters == parameters_digest({"b": "float64[2]", "w": "float64[3, 2]"})


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_the_full_gradient_does_not_depend_on_its_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = by_messages(MIME, _node())
    monkeypatch.setattr(affine_node, "CHUNK", chunk)
    assert error(by_messages(MIME, _node()), whole) <= 1e-15


def test_a_request_that_is_repeated_has_the_same_reply(tmp_path: Path) -> None:
    shelve(SCAFFOLD, tmp_path)
    node, (request,) = _node(tmp_path), asks(SCAFFOLD)
    assert node.answer(request) == node.answer(request)


def test_kept_values_are_those_of_the_round_that_the_server_names(tmp_path: Path) -> None:
    shelve(SCAFFOLD, tmp_path)
    shelf, (request,) = DiskShelf(tmp_path / RUN), asks(SCAFFOLD)
    assert _asked(_node(tmp_path), request).kind == "answer"
    assert sorted(shelf.rounds()) == [1, 3]
    _asked(_node(tmp_path), request, round=5, kept_from=1)  # round 3 was abandoned, and the node started again
    assert sorted(shelf.rounds()) == [1, 5]
    _asked(_node(tmp_path), request, round=6, kept_from=5, since=4)  # the server may go back to round 4
    assert sorted(shelf.rounds()) == [1, 5, 6]
    _asked(_node(tmp_path), request, round=9, kept_from=6, since=7)
    assert sorted(shelf.rounds()) == [6, 9]


def test_a_value_that_is_missing_is_not_replaced_by_zeros(tmp_path: Path) -> None:
    reply = _asked(_node(tmp_path), asks(SCAFFOLD)[0], kept_from=1)
    assert (reply.kind, reply.fields["reason"]) == ("refusal", "failed")
    assert "this client no longer has what it kept in round 1" in reply.fields["words"]


def test_a_client_that_was_never_seen_starts_from_zeros() -> None:
    assert _asked(_node(), asks(SCAFFOLD)[0], kept_from=-1).kind == "answer"


TRAIN = asks(MIME)[1]


@pytest.mark.parametrize(
    ("node", "request_", "changes", "reason", "words"),
    [
        (_node(joined=False), TRAIN, {}, "failed", "this client does not know run aaaa"),
        (_node(), TRAIN, {"run": "9" * 32}, "failed", "this client does not know run 9999"),
        (_node(), TRAIN, {}, "failed", "the model of round 3 has not been sent to this client"),
        (_node(), asks(MIME)[0], {"train": True}, "structure", "a rule has the fields eta"),
        (_node(), asks(MIME)[0], {"affine": None}, "structure", "takes affine rules only"),
        (_node(), asks(MIME)[0], {"affine": {"model": False}}, "structure", "must have 0 bytes for 0 models, got 64"),
        (_node(), greeting(MIME), {"version": "9.9"}, "failed", "of fedmime, the server 9.9; they must be the same"),
        (_node(), greeting(MIME), {"arrays": None}, "failed", "got no arrays"),
        (
            _node(),
            greeting(MIME),
            {"arrays": {"z": "float64[2]"}},
            "failed",
            "a AssertionError, of which the node's own log says",
        ),
    ],
)
def test_refusals(node: AffineNode, request_: bytes, changes: Any, reason: str, words: str) -> None:
    reply = _asked(node, request_, **changes)
    assert (reply.kind, reply.fields["nonce"], reply.fields["reason"]) == ("refusal", NONCE, reason)
    assert words in reply.fields["words"]


@pytest.mark.parametrize(
    ("kind", "reason"), [(fm.DataError, "data"), (fm.ConfigError, "failed"), (FloatingPointError, "failed")]
)
def test_what_went_wrong_with_the_data_stays_with_the_node(
    kind: type[Exception], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Quoting(Quadratic):
        def gradient(self, y: Any, rows: Any) -> Any:
            raise kind("patient 4711 has the label 99")

    node = AffineNode(Quoting(MIME.columns), "hospital 7")
    node.answer(greeting(MIME))
    reply = _asked(node, asks(MIME)[0])
    assert (reply.kind, reply.fields["reason"]) == ("refusal", reason)
    assert reply.fields["words"] == f"a {kind.__name__}, of which the node's own log says more"
    assert "patient 4711" in caplog.text


def test_a_round_that_is_over_stays_over_and_keeps_what_is_newer(tmp_path: Path) -> None:
    """A request that was delayed or replayed changes nothing; a server that says hello can go back."""
    shelve(SCAFFOLD, tmp_path)
    node, (request,), shelf = _node(tmp_path), asks(SCAFFOLD), DiskShelf(tmp_path / RUN)
    assert _asked(node, request, round=5).kind == "answer"
    assert sorted(shelf.rounds()) == [1, 5]
    late = _asked(node, request, round=4, kept_from=-1)
    assert (late.kind, late.fields["reason"]) == ("refusal", "round")
    assert "round 4 is over; this client is in round 5" in late.fields["words"]
    assert sorted(shelf.rounds()) == [1, 5]
    assert _asked(node, request, round=6, kept_from=2).kind == "refusal"  # of which there is none
    assert sorted(shelf.rounds()) == [1, 5]
    node.answer(greeting(SCAFFOLD))
    assert _asked(node, request, round=4).kind == "answer"


def test_a_model_that_explodes_is_no_answer() -> None:
    far = before(a.fedavg(1e200), steps=3, epochs=None)
    with np.errstate(all="ignore"):
        reply = _asked(_node(), asks(far)[0])
    assert (reply.kind, reply.fields["reason"]) == ("refusal", "not_finite")


@given(st.binary(max_size=300), st.integers(0, 600))
def test_no_bytes_end_a_node(noise: bytes, cut: int) -> None:
    node = _node()
    for request in (noise, TRAIN[:cut], TRAIN[:cut] + noise, TRAIN + noise * 100):
        assert unpack(node.answer(request), 0).kind == "refusal"
