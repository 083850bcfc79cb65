"""Whole secure runs: the numbers of a simulation, sums and nothing else on the server, and clients that leave."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedmime as fm
from deploy.fleets import CLIENTS, FEDAVG, FIRST, MIME, SETTINGS, Meddling, Reply, apart, deploy, frame, nodes
from deploy.fleets import simulate as simulated
from deploy.secure.runs import CLIPPED, SECURE, STEP, secure_run
from engine.setting import KINDS, PROBLEM, a, o
from fedmime.deploy import server
from fedmime.deploy.messages import Ask, Hello, Mask, Refusal, opened, packed
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import unpack
from fedmime.deploy.secure import masking
from fedmime.deploy.secure.fixed_point import Layout, Words
from fedmime.deploy.secure.options import SecureSum
from fedmime.deploy.secure.server import Exchange
from fedmime.deploy.transport import LoopTransport
from fedmime.errors import CheckpointError, ClusterError, ConfigError
from marking import fast

g = fm.aggregation
ADAM = o.adam(0.8, 0.9, eps=0.1)


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "fedavg": (FEDAVG, CLIPPED, {"drift": True}),
    "fedavg, uniform weights": (FEDAVG, CLIPPED, {"weights": "uniform"}),
    "mime": (MIME, CLIPPED, {}),
    "mime_lite, adam, primed, 8 bits down": (a.mime_lite(ADAM, 0.1), g.chain(CLIPPED, down=g.quantize(8)), {}),
    "scaffold": (a.scaffold(0.1), CLIPPED, {}),
    "feddyn, one array averaged and summed": (a.feddyn(0.1, 0.5), CLIPPED, {}),
    "mime_mvr, two points": (a.mime_mvr(0.1, 0.6), CLIPPED, {}),
    "server_only": (a.server_only(ADAM, 0.1), CLIPPED, {}),
    "nobody is clipped": (MIME, g.clip(3.0), {}),
    "local momentum": (KINDS["loc_mime"], CLIPPED, {}),
}


@pytest.mark.parametrize("case", fast(CASES, {"server_only", "local momentum", "mime_mvr, two points"}))
def test_a_secure_run_is_a_simulated_one_but_for_rounding(case: str) -> None:
    algorithm, aggregation, others = CASES[case]
    secure = SecureSum(bits=29)
    run = secure_run(algorithm, aggregation, secure=secure, rounds=2, **others)
    wanted = simulated(algorithm, aggregation, rounds=2, **others)
    assert apart(run, wanted) < 1e-7
    assert run.history.keys() == wanted.history.keys()
    for name in {"clients", "refused", "steps", "examples", "abandoned", "clipped"} & run.history.keys():
        np.testing.assert_array_equal(run.history[name], wanted.history[name], err_msg=name)
    for name in {"loss", "drift"} & run.history.keys():
        np.testing.assert_allclose(run.history[name], wanted.history[name], rtol=1e-5, err_msg=name)


def test_fewer_bits_cost_no_more_than_their_rounding() -> None:
    run, wanted = (one(FEDAVG, CLIPPED, rounds=1) for one in (secure_run, simulated))
    assert 1e-12 < apart(run, wanted) < 4 * STEP


def test_halves_of_a_cohort_are_two_sums() -> None:
    algorithm = a.mime_lite(o.momentum(0.6), 0.1, split=True)
    clients = fm.data.from_arrays(
        {f"c{i}": CLIENTS.client_at(i % 5) for i in range(7)}, test=CLIENTS.test
    )  # six of them a round
    transport = LoopTransport(nodes(algorithm, CLIPPED, clients, secure=SECURE))
    others = {**SETTINGS, "cohort_size": 6, "aggregation": CLIPPED, "rounds": 2}
    run = server.run(transport, algorithm, PROBLEM, secure=SECURE, waiting=server.Waiting(7, 5.0, 30.0), **others)
    assert not any(run.history["abandoned"])
    assert apart(run, fm.simulate(algorithm, PROBLEM, clients, backend="reference", **others)) < 1e-4


def test_the_server_gets_the_sum_of_the_rounded_messages_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Words] = []
    totals: list[tuple[np.ndarray, int]] = []
    inner, total = masking.words_of_parts, Exchange.total

    def noted_words(*arguments: Any) -> Words:
        rows.append(inner(*arguments))
        return rows[-1]

    def noted_total(exchange: Exchange) -> Any:
        found = total(exchange)
        totals.append((found.levels, len(found.clients)))
        return found

    monkeypatch.setattr(masking, "words_of_parts", noted_words)
    monkeypatch.setattr(Exchange, "total", noted_total)
    secure_run(MIME, rounds=2)
    assert [clients for _, clients in totals] == [4] * 4  # two rounds of two exchanges
    for number, (levels, _) in enumerate(totals):
        sent = [row.entries.view(np.int32).astype(np.int64) for row in rows[4 * number : 4 * number + 4]]
        np.testing.assert_array_equal(levels, np.sum(sent, axis=0))


@pytest.mark.parametrize("lie", [-1e9, 1e9])
def test_one_client_cannot_move_a_clipping_norm_anywhere(lie: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every sum one of four members claims to stand for very many clipped messages, or unclipped ones."""
    inner, calls = masking.words_of_parts, itertools.count()

    def lying(messages: Any, scalars: Sequence[float], *others: Any) -> Words:
        told = [*scalars[:2], lie, lie] if next(calls) % 4 == 0 else scalars
        return inner(messages, told, *others)

    monkeypatch.setattr(masking, "words_of_parts", lying)
    private = g.gaussian(0.1, 0.5, gradient_clip=0.5, quantile=0.5)
    run = secure_run(MIME, private, rounds=3, weights="uniform")
    np.testing.assert_array_equal(run.history["clipped"], 1.0 if lie < 0 else 0.0)
    assert np.abs(np.diff(np.log(run.history["clip_norm"]))).max() < 0.3


def _kinds(replies: Sequence[Reply]) -> set[str]:
    return {frame(reply).kind for _, reply in replies if isinstance(reply, bytes)}


def test_no_payload_of_a_secure_run_tells_of_a_single_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of Mime with 650 weights: what clients send is no answer, holds no scalars and looks like noise."""
    problem = fm.models.logistic(input_shape=(8, 8, 1), classes=10)
    population = fm.data.digits(clients=4, labels_per_client=5, seed=0)
    aggregation, own = g.clip(1.0, gradient=5.0), []
    inner = masking.words_of_parts

    def noted(messages: Any, *others: Any) -> Words:
        own.append((np.concatenate([np.ravel(array) for array in messages[0].arrays]), inner(messages, *others)))
        return own[-1][1]

    monkeypatch.setattr(masking, "words_of_parts", noted)
    made = {
        FIRST + i: JaxNode(
            problem, population.client_at(i), f"c{i}", algorithm=MIME, aggregation=aggregation, secure=SECURE
        )
        for i in range(4)
    }
    transport = Meddling(made)
    waiting = server.Waiting(4, 5.0, 30.0)
    server.run(transport, MIME, problem, 2, 4, secure=SECURE, aggregation=aggregation, waiting=waiting)

    assert _kinds(transport.replies) == {"profile", "masked"}
    assert {frame(request).kind for _, request in transport.requests} == {"hello", "mask"}
    sent = [frame(reply) for _, reply in transport.replies if isinstance(reply, bytes)]
    assert all(one.fields.keys() == {"run", "round", "nonce"} for one in sent if one.kind == "masked")
    layout = Layout(650, 4, SECURE.width(4))
    masked = [one.payload for one in sent if len(one.payload) == layout.nbytes]
    assert len(masked) == len(own) == 16
    for payload, (message, words) in zip(masked, own, strict=True):
        entries = Words.unpack(payload, layout).entries
        signed = (entries << np.uint32(32 - layout.width)).view(np.int32).astype(float)
        assert abs(np.corrcoef(signed, message)[0, 1]) < 5 / 650**0.5
        assert np.count_nonzero(entries == words.entries & np.uint32(2**layout.width - 1)) < 3
        for form in (message.astype(np.float32), message.astype(np.float64)):
            nonzero = form[np.flatnonzero(form)[:4]].tobytes()
            assert not any(nonzero in one.payload for one in sent)


def _node_of(secure: SecureSum | None) -> tuple[JaxNode, str]:
    """A node that has agreed on a run, and the run."""
    node = next(iter(nodes(FEDAVG, CLIPPED, secure=secure).values()))
    assert isinstance(node, JaxNode)
    found: list[bytes] = []

    class Spy:
        def answer(self, request: bytes) -> bytes:
            found.append(request)
            return node.answer(request)

    others = list(nodes(FEDAVG, CLIPPED, secure=secure).items())[1:]
    deploy(FEDAVG, CLIPPED, LoopTransport({FIRST: Spy(), **dict(others)}), secure=secure, rounds=1)
    return node, opened(frame(found[0]), Hello).run


def _words(reply: bytes) -> str:
    return opened(unpack(reply, 0), Refusal).words


def test_a_client_with_masks_sends_nothing_without_them() -> None:
    node, run = _node_of(SECURE)
    ask = Ask(run, 5, "f" * 32, 0, "nothing", True, -1, -1, 0)
    assert "sends nothing without masks" in _words(node.answer(packed(ask)))


def test_a_client_of_a_run_without_masks_says_so() -> None:
    node, run = _node_of(None)
    mask = Mask(run, 5, "f" * 32, "e" * 32, "keys", 0, "nothing", True, (0, 1, 2), (1.0, 1.0))
    assert "this run was begun without masks" in _words(node.answer(packed(mask)))


@pytest.mark.parametrize(
    ("theirs", "offered", "words"),
    [
        (SecureSum(), None, "this client sends nothing without masks, and the server asks for none"),
        (SecureSum(minimum=4), SECURE, "this client insists on minimum=4 or more, the server has 3"),
        (SecureSum(threshold=0.9), SECURE, "this client insists on threshold=0.9 or more, the server has 0.666667"),
    ],
)
def test_a_client_that_insists_on_masks_takes_part_with_no_less(
    theirs: SecureSum, offered: SecureSum | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    transport = Meddling(nodes(FEDAVG, CLIPPED, secure=theirs))
    with pytest.raises(ClusterError, match="0 of 5 nodes joined"):
        deploy(FEDAVG, CLIPPED, transport, secure=offered, waiting=server.Waiting(5, 0.3, 5.0))
    assert _kinds(transport.replies) == {"refusal"}
    assert f"secure: {words}" in caplog.text


@pytest.mark.parametrize("theirs", [None, SecureSum(bits=8), SecureSum(threshold=0.6)])
def test_a_client_that_insists_on_no_more_masks_as_the_server_asks(theirs: SecureSum | None) -> None:
    transport = Meddling(nodes(FEDAVG, CLIPPED, secure=theirs))
    run = deploy(FEDAVG, CLIPPED, transport, secure=SECURE, rounds=1)
    assert apart(run, secure_run(FEDAVG, rounds=1)) == 0
    assert _kinds(transport.replies) == {"profile", "masked"}


def test_a_server_cannot_offer_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "fields_of", lambda secure: {"bits": 20, "minimum": 1, "threshold": 0.5})
    transport = Meddling(nodes(FEDAVG, CLIPPED))
    with pytest.raises(ClusterError, match="0 of 5 nodes joined"):
        deploy(FEDAVG, CLIPPED, transport, secure=SECURE, waiting=server.Waiting(5, 0.3, 5.0))
    assert "minimum must be a whole number of at least 3, got 1" in _words(_last(transport))


def _last(transport: Meddling) -> bytes:
    reply = transport.replies[-1][1]
    assert isinstance(reply, bytes)
    return reply


@pytest.mark.parametrize(("first", "second"), [(SECURE, None), (None, SECURE), (SECURE, SecureSum(bits=16))])
def test_a_run_goes_on_with_the_masks_that_it_began_with(
    first: SecureSum | None, second: SecureSum | None, tmp_path: Path
) -> None:
    made = nodes(FEDAVG, CLIPPED)
    deploy(FEDAVG, CLIPPED, Meddling(made), secure=first, rounds=1, run_dir=tmp_path)
    layout = json.loads((tmp_path / "env.json").read_text())["layout"]
    assert ("masked sums" in layout) == (first is not None)
    transport = Meddling(made)
    words = f"holds a run with secure={first}, which cannot go on with secure={second}"
    with pytest.raises(CheckpointError, match=re.escape(words)):
        deploy(FEDAVG, CLIPPED, transport, secure=second, rounds=2, run_dir=tmp_path)
    assert not transport.requests


@pytest.mark.parametrize(
    ("algorithm", "aggregation", "secure", "words"),
    [
        (FEDAVG, None, SECURE, "secure: messages must have a finite norm before they are masked"),
        (FEDAVG, g.chain(CLIPPED, g.median()), SECURE, "secure: .* got Median"),
        (FEDAVG, g.chain(CLIPPED, g.quantize(8)), SECURE, "secure: .* got Quantize"),
        (a.mime_mvr(0.1, 0.6, output="random"), CLIPPED, SECURE, "draws the iterate of one client"),
        (FEDAVG, CLIPPED, SecureSum(minimum=5), "a group must have 5 to 128 clients .* got 4"),
        (FEDAVG, CLIPPED, True, "deploy: secure must be fm.deploy.SecureSum"),
    ],
)
def test_what_does_not_go_with_masks_is_refused_before_anybody_is_asked(
    algorithm: Any, aggregation: Any, secure: Any, words: str
) -> None:
    transport = Meddling({})
    with pytest.raises(ConfigError, match=words):
        deploy(algorithm, aggregation, transport, secure=secure)
    assert not transport.requests


def test_a_sampler_that_is_told_losses_is_refused() -> None:
    with pytest.raises(ConfigError, match="secure sums hide the losses of single clients"):
        secure_run(FEDAVG, participation=fm.Participation(sampler=fm.samplers.power_of_choice(4)))
