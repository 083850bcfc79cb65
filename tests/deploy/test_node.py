"""Nodes: what they refuse, in words, and that nothing a server sends ends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmime as fm
from deploy.fleets import CLIENTS, FEDAVG, FIRST, MIME, Meddling, answered, asked, deploy, frame, nodes
from engine.backends.ray.losses import FAILING_LATER
from engine.setting import PROBLEM, a
from fedmime.deploy.messages import Answer, Ask, Hello, Profile, Refusal, is_a, opened, packed
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import Frame, pack
from fedmime.deploy.terms import terms_of
from fedmime.version import exact

g = fm.aggregation
RUN, NONCE = "1" * 32, "2" * 32
DATA = CLIENTS.client_at(0)


def _node(algorithm: Any = FEDAVG, data: Any = DATA, problem: Any = PROBLEM, **others: Any) -> JaxNode:
    return JaxNode(problem, data, "c0", algorithm=algorithm, backend="reference", **others)


def _hello(algorithm: Any = FEDAVG, aggregation: Any = None, problem: Any = PROBLEM, **changes: Any) -> Hello:
    configuration = terms_of(algorithm, aggregation, problem).configuration
    hello = Hello(RUN, NONCE, exact(), 1, 3, 1, None, False, configuration, None)
    return hello._replace(**changes)


def _x() -> bytes:
    return np.linspace(-1, 1, 15).tobytes()


ASK = Ask(RUN, 0, NONCE, 0, "nothing", True, -1, -1, 0, ((0, -1), (1, -1)))


def _said(node: JaxNode, message: Any, payload: bytes = b"") -> Any:
    found = frame(node.answer(packed(message, payload)))
    return next(opened(found, kind) for kind in (Profile, Answer, Refusal) if is_a(found, kind))


def test_a_node_introduces_itself() -> None:
    profile = _said(_node(), _hello())
    assert profile == Profile(
        RUN,
        NONCE,
        "c0",
        4,
        profile.data,
        exact(),
        "jax",
        _hello().configuration,
        terms_of(FEDAVG, None, PROBLEM).parameters,
    )
    assert _said(_node(data={**DATA, "x": DATA["x"] + 1}), _hello()).data != profile.data
    assert _said(_node(data=dict(reversed(DATA.items()))), _hello()).data == profile.data


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (_hello(version="0.0.0"), "version"),
        (_hello(configuration="b" * 64), "not the server's"),
        (_hello(a.fedavg(0.2)), "not the server's"),
        (_hello(epochs=None, steps=2**31 - 1), "examples; accepted are"),
    ],
)
def test_a_run_that_is_another_is_refused(hello: Hello, words: str) -> None:
    found = _said(_node(), hello)
    assert isinstance(found, Refusal)
    assert found.nonce == NONCE
    assert words in found.words


def test_a_node_without_an_algorithm_needs_a_setting() -> None:
    assert "names none" in _said(_node(None), _hello()).words
    assert "unknown field" in _said(_node(None), _hello(setting={"imports": "os"})).words


def test_a_hello_says_how_long_to_train() -> None:
    neither = frame(packed(_hello()))
    for epochs, steps in [(None, None), (1, 1)]:
        fields = {**neither.fields, "epochs": epochs, "steps": steps}
        told = frame(_node().answer(pack(Frame("hello", fields)))).fields
        assert (told["reason"], told["words"]) == (
            "structure",
            f"hello: it must say epochs or steps, got {epochs} and {steps}",
        )


def _known(node: JaxNode, **changes: Any) -> JaxNode:
    assert isinstance(_said(node, _hello(**changes)), Profile)
    return node


def test_a_request_is_answered() -> None:
    found = _said(_known(_node()), ASK, _x())
    assert (found.run, found.round, found.nonce, found.examples, found.steps) == (RUN, 0, NONCE, 4, 2)
    assert found.loss > 0


@pytest.mark.parametrize(
    ("ask", "payload", "reason", "words"),
    [
        (ASK._replace(run="3" * 32), _x(), "failed", "say hello first"),
        (ASK, b"", "structure", "120 bytes, got 0"),
        (ASK, _x()[:-1], "structure", "120 bytes, got 119"),
        (ASK, _x() + b"x", "structure", "accepted are at most 120"),
        (ASK._replace(arrays=((0, -1),)), _x()[:24], "failed", "have not been sent"),
        (ASK._replace(arrays=((0, -1), (7, -1))), _x(), "structure", "slots"),
        (ASK._replace(arrays=((0, -1), (-1, -1))), _x(), "structure", "slots"),
        (ASK._replace(train=False, gradients="points"), _x(), None, ""),  # FedAvg has no points: an empty answer
    ],
)
def test_requests_that_are_refused(ask: Ask, payload: bytes, reason: str | None, words: str) -> None:
    node = _known(_node())
    found = _said(node, ask, payload)
    assert (found.reason if isinstance(found, Refusal) else None) == reason
    if isinstance(found, Refusal):
        assert words in found.words
    assert isinstance(_said(node, ASK, _x()), Answer)  # it goes on


def test_what_is_not_finite_is_not_sent() -> None:
    node = _known(_node())
    assert _said(node, ASK, np.full(15, np.nan).tobytes()).reason == "not_finite"
    assert _said(node, ASK, np.full(15, 1e300).tobytes()).reason in ("not_finite", "norm", "failed")


def test_bad_examples_are_a_reason_of_their_own() -> None:
    node = _known(_node(data={**DATA, "x": np.full_like(DATA["x"], np.inf)}))
    assert _said(node, ASK, _x()).reason == "data"


def test_a_loss_that_fails_costs_the_reply(caplog: pytest.LogCaptureFixture) -> None:
    """What went wrong may quote data, so that it stays with the node."""
    node = _node(problem=FAILING_LATER)
    assert isinstance(_said(node, _hello(problem=FAILING_LATER)), Profile)
    found = _said(node, ASK, _x())
    assert found.reason == "failed"
    assert found.words == "a ClientFailed, of which the node's own log says more"
    assert "no such number" in caplog.text


def test_a_round_that_is_over_stays_over() -> None:
    """A request that was delayed or replayed cannot take a client back; a server that says hello can."""
    node = _known(_node())
    assert isinstance(_said(node, ASK._replace(round=3), _x()), Answer)
    assert _said(node, ASK._replace(round=2), _x()).reason == "round"
    _known(node)
    assert isinstance(_said(node, ASK._replace(round=2), _x()), Answer)


@pytest.mark.parametrize(("ask", "payload"), [(ASK, b""), (ASK._replace(arrays=((0, -1),)), _x()[:24])])
def test_a_request_that_is_refused_takes_a_client_to_no_other_round(ask: Ask, payload: bytes) -> None:
    node = _known(_node())
    assert isinstance(_said(node, ask._replace(round=2**31 - 1), payload), Refusal)
    assert isinstance(_said(node, ASK, _x()), Answer)


def test_the_second_exchange_needs_the_first() -> None:
    transport = Meddling(nodes(MIME))
    deploy(MIME, None, transport, rounds=1, cohort_size=5)
    hello, *asks = [request for node, request in transport.requests if node == FIRST]
    second = next(request for request in asks if (ask := asked(request)) is not None and ask.train)
    node = _node(MIME)
    node.answer(hello)
    refusal = opened(frame(node.answer(second)), Refusal)
    assert "have not been sent" in refusal.words
    replies = [node.answer(request) for request in asks]
    assert [answered(reply) is not None for reply in replies] == [True, True]


def test_what_a_client_kept_is_asked_for_by_its_round(tmp_path: Path) -> None:
    scaffold = a.scaffold(0.1)
    ask = ASK._replace(arrays=((0, -1), (1, -1), (2, -1), (3, -1)))
    payload = _x() + bytes(120)
    node = _node(scaffold, state=tmp_path)
    assert isinstance(_said(node, _hello(scaffold)), Profile)
    first = node.answer(packed(ask, payload))
    assert answered(first) is not None
    missing = _said(node, ask._replace(round=1, kept_from=5), payload)
    assert "kept in round 5" in missing.words
    second = ask._replace(round=2, kept_from=0)
    reply = node.answer(packed(second, payload))
    assert answered(reply) is not None
    anew = _node(scaffold, state=tmp_path)  # the process was started again, and so was the server
    _said(anew, _hello(scaffold))
    assert anew.answer(packed(second, payload)) == reply
    assert isinstance(_said(anew, ask._replace(round=3, kept_from=2, since=3), payload), Answer)
    assert sorted(path.name for path in (tmp_path / RUN).iterdir()) == ["2.kept", "3.kept"]
    assert "kept in round 0" in _said(anew, ask._replace(round=4, kept_from=0), payload).words


def test_norms_that_adapt_are_part_of_the_request() -> None:
    aggregation = g.gaussian(0.1, 0.5, quantile=0.5)
    node = _node(aggregation=aggregation)
    assert isinstance(_said(node, _hello(aggregation=aggregation)), Profile)
    assert "norms must be given" in _said(node, ASK, _x()).words
    assert isinstance(_said(node, ASK._replace(norms=(0.1, 0.1)), _x()), Answer)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": 7}, "name"),
        ({"algorithm": None, "aggregation": g.median()}, "goes with an algorithm"),
        ({"backend": "cloud"}, "backend"),
        ({"problem": None}, "problem"),
        ({"data": [1]}, "data"),
    ],
)
def test_arguments_are_checked(changes: dict[str, Any], words: str) -> None:
    given = {"problem": PROBLEM, "data": DATA, "name": "c0", "algorithm": FEDAVG, **changes}
    with pytest.raises(fm.ConfigError, match=words):
        JaxNode(given.pop("problem"), given.pop("data"), given.pop("name"), **given)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"x": np.zeros((0, 4))},
        {"x": np.zeros((3, 4)), "y": np.zeros(2)},
        {"x": np.zeros(())},
        {"x": np.array([[1], [2, 3]], object)},
    ],
)
def test_data_is_checked(data: dict[str, Any]) -> None:
    with pytest.raises(fm.DataError, match="node"):
        _node(data=data)
