"""Whole secure runs: the numbers of a simulation, sums and nothing else on the server, and clients that leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

import fedmime as fm
from deploy.fleets import CLIENTS, FEDAVG, FIRST, MIME, SETTINGS, Meddling, Reply, apart, deploy, frame, leaves, nodes
from deploy.fleets import simulate as simulated
from engine.setting import KINDS, PROBLEM, a, o
from fedmime.deploy import server, session
from fedmime.deploy.messages import Answer, Ask, Hello, Mask, Masked, Profile, Refusal, Stage, is_a, opened, packed
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import unpack
from fedmime.deploy.secure import masking
from fedmime.deploy.secure.fixed_point import Layout, Words
from fedmime.deploy.secure.options import SecureSum
from fedmime.deploy.secure.server import Exchange
from fedmime.deploy.transport import Failure, LoopTransport
from fedmime.errors import ClusterError, ConfigError

g = fm.aggregation
SECURE, CLIPPED = SecureSum(), g.clip(0.05, gradient=0.4)
ADAM = o.adam(0.8, 0.9, eps=0.1)
STEP = 0.4 / (2**19 - 1)  # of the coarser one of the two kinds of message


def _secure(algorithm: Any, aggregation: Any = CLIPPED, meddle: Any = None, **others: Any) -> fm.Run:
    """A secure run of four clients a round, of whom three must stay."""
    secure = others.pop("secure", SECURE)
    transport = Meddling(nodes(algorithm, aggregation, secure=secure), meddle)
    return deploy(algorithm, aggregation, transport, secure=secure, **others)


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


@pytest.mark.parametrize("case", CASES)
def test_a_secure_run_is_a_simulated_one_but_for_rounding(case: str) -> None:
    algorithm, aggregation, others = CASES[case]
    secure = SecureSum(bits=29)
    run = _secure(algorithm, aggregation, secure=secure, rounds=2, **others)
    wanted = simulated(algorithm, aggregation, rounds=2, **others)
    assert apart(run, wanted) < 1e-7
    assert run.history.keys() == wanted.history.keys()
    for name in {"clients", "refused", "steps", "examples", "abandoned", "clipped"} & run.history.keys():
        np.testing.assert_array_equal(run.history[name], wanted.history[name], err_msg=name)
    for name in {"loss", "drift"} & run.history.keys():
        np.testing.assert_allclose(run.history[name], wanted.history[name], rtol=1e-5, err_msg=name)


def test_fewer_bits_cost_no_more_than_their_rounding() -> None:
    run, wanted = (one(FEDAVG, CLIPPED, rounds=1) for one in (_secure, simulated))
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
    _secure(MIME, rounds=2)
    assert [clients for _, clients in totals] == [4] * 4  # two rounds of two exchanges
    for number, (levels, _) in enumerate(totals):
        sent = [row.entries.view(np.int32).astype(np.int64) for row in rows[4 * number : 4 * number + 4]]
        np.testing.assert_array_equal(levels, np.sum(sent, axis=0))


def _kinds(replies: Sequence[Reply]) -> set[str]:
    return {frame(reply).kind for _, reply in replies if isinstance(reply, bytes)}


def test_no_payload_of_a_secure_run_tells_of_a_single_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of Mime with 650 weights: what clients send is no answer, holds no figures and looks like noise."""
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


def test_a_client_without_masks_says_so() -> None:
    node, run = _node_of(None)
    mask = Mask(run, 5, "f" * 32, "e" * 32, "keys", 0, "nothing", True, (0, 1, 2), (1.0, 1.0))
    assert "was started without masks" in _words(node.answer(packed(mask)))


@pytest.mark.parametrize("theirs", [None, SecureSum(minimum=4), SecureSum(threshold=0.9), SecureSum(bits=16)])
def test_nodes_with_other_numbers_do_not_take_part(theirs: SecureSum | None) -> None:
    transport = LoopTransport(nodes(FEDAVG, CLIPPED, secure=theirs))
    with pytest.raises(ClusterError, match="0 of 5 nodes joined"):
        deploy(FEDAVG, CLIPPED, transport, secure=SECURE, waiting=server.Waiting(5, 0.0, 5.0))


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


def _mask(request: bytes) -> Mask | None:
    return opened(frame(request), Mask) if is_a(frame(request), Mask) else None


def _silent(round_number: int, first: dict[int, Stage]) -> Callable[..., Sequence[Reply]]:
    """Let nodes say nothing from a stage of a round on, until the round is over."""
    stages = list(Stage)

    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        mask = _mask(request)
        if mask is None or mask.round != round_number or node not in first:
            return [(node, reply)]
        gone = stages.index(Stage(mask.stage)) >= stages.index(first[node])
        return [(node, Failure("it is gone"))] if gone else [(node, reply)]

    return meddle


def _absent(round_number: int, gone: Sequence[int]) -> Callable[..., Sequence[Reply]]:
    """The same for a run without masks."""

    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        hello = is_a(frame(request), Hello)
        missing = not hello and node in gone and opened(frame(request), Ask).round == round_number
        return [(node, Failure("it is gone") if missing else reply)]

    return meddle


ALL = {**SETTINGS, "cohort_size": 5}  # of whom four must stay


@pytest.mark.parametrize("stage", [Stage.KEYS, Stage.SHARES, Stage.INPUT])
@pytest.mark.parametrize("algorithm", [FEDAVG, MIME], ids=["fedavg", "mime"])
def test_who_leaves_before_sending_is_left_out_as_in_any_run(algorithm: Any, stage: Stage) -> None:
    gone = FIRST + 1
    run = _secure(algorithm, meddle=_silent(1, {gone: stage}), **ALL)
    plain = Meddling(nodes(algorithm, CLIPPED), _absent(1, [gone]))
    wanted = deploy(algorithm, CLIPPED, plain, **ALL)
    assert apart(run, wanted) < 20 * STEP
    assert list(run.history["abandoned"]) == [False] * 3
    assert run.history["refused"][1] == 1
    np.testing.assert_array_equal(run.history["refused"], wanted.history["refused"])


def test_who_leaves_after_sending_is_in_the_sum() -> None:
    run = _secure(FEDAVG, meddle=_silent(2, {FIRST + 1: Stage.REVEAL}), **ALL)
    assert apart(run, _secure(FEDAVG, **ALL)) == 0
    assert list(run.history["refused"]) == [0, 0, 0]


@pytest.mark.parametrize("stage", list(Stage))
def test_below_the_threshold_a_round_is_abandoned_and_the_next_one_runs(stage: Stage) -> None:
    states: list[list[np.ndarray]] = []
    gone = {FIRST + number: stage for number in (0, 2, 3)}
    transport = Meddling(nodes(MIME, CLIPPED, secure=SECURE), _silent(1, gone))
    for rounds in (1, 2, 3):
        run = deploy(MIME, CLIPPED, transport, rounds, secure=SECURE, **ALL)
        states.append(leaves(run))
    assert list(run.history["abandoned"]) == [False, True, False]
    assert all(np.array_equal(one, other) for one, other in zip(states[0], states[1], strict=True))
    assert not all(np.array_equal(one, other) for one, other in zip(states[1], states[2], strict=True))


def test_a_cohort_of_which_too_few_are_connected_reveals_nothing() -> None:
    inner = nodes(FEDAVG, CLIPPED, secure=SECURE)

    class Leaving(Meddling):
        """Three of five nodes are away in round 1."""

        def nodes(self) -> Sequence[int]:
            rounds = [mask.round for _, request in self.requests if (mask := _mask(request))]
            away = rounds and rounds[-1] == 0 and len(run_rounds) == 1
            return list(inner)[:2] if away else list(inner)

    run_rounds: list[int] = []
    transport = Leaving(inner)
    participation = fm.Participation(minimum=0.1)
    run = deploy(
        FEDAVG,
        CLIPPED,
        transport,
        secure=SECURE,
        participation=participation,
        waiting=server.Waiting(5, 5.0, 1.0),
        on_round=lambda info, _: run_rounds.append(info.round),
        **ALL,
    )
    assert list(run.history["abandoned"]) == [False, True, False]
    in_round_1 = [node for node, request in transport.requests if (mask := _mask(request)) and mask.round == 1]
    assert not in_round_1


def test_with_over_selection_who_is_slow_is_left_out() -> None:
    transport = Meddling(nodes(FEDAVG, CLIPPED, secure=SECURE), last=[FIRST])
    options = {**SETTINGS, "participation": fm.Participation(over_selection=1.25)}
    run = deploy(FEDAVG, CLIPPED, transport, 1, secure=SECURE, **options)
    plain = deploy(FEDAVG, CLIPPED, Meddling(nodes(FEDAVG, CLIPPED), last=[FIRST]), 1, **options)
    assert apart(run, plain) < 4 * STEP
    assert list(run.history["abandoned"]) == [False]


def test_noise_is_added_to_the_sum_and_its_ledger_is_that_of_a_plain_run() -> None:
    private = g.gaussian(0.1, 0.5, 1e-5, gradient_clip=0.5, quantile=0.5)
    options = {"weights": "uniform", "rounds": 2}
    run, plain = _secure(MIME, private, **options), deploy(MIME, private, **options)
    assert not any(run.history["abandoned"])
    np.testing.assert_array_equal(run.history["epsilon"], plain.history["epsilon"])
    assert apart(run, plain) > 1e-3  # every run has noise of its own


def test_a_server_that_was_killed_goes_on_with_the_same_clients(tmp_path: Path) -> None:
    """Round 1 is revealed twice, over the same clients, and the model is that of an unbroken run."""
    made, unbroken = nodes(a.scaffold(0.1), CLIPPED, secure=SECURE), _secure(a.scaffold(0.1))

    options = {"secure": SECURE, "run_dir": tmp_path / "run", "saving": fm.Saving(every=1)}
    with pytest.raises(KeyboardInterrupt):
        deploy(a.scaffold(0.1), CLIPPED, _Killing(made, 1), **options)
    run = deploy(a.scaffold(0.1), CLIPPED, LoopTransport(made), **options)
    assert not any(run.history["abandoned"])
    assert apart(run, unbroken) == 0


class _Killing(LoopTransport):
    """The server dies when a round has been revealed, before it can be saved."""

    def __init__(self, inner: Any, round_number: int) -> None:
        super().__init__(inner)
        self._round = round_number

    def exchange(self, requests: Any, deadline: float) -> Any:
        replies = list(super().exchange(requests, deadline))
        mask = _mask(next(iter(requests.values())))
        if mask is not None and (mask.round, mask.stage) == (self._round, "reveal"):
            raise KeyboardInterrupt
        return iter(replies)


def test_a_repeated_round_with_other_clients_is_not_revealed(tmp_path: Path) -> None:
    """The difference of the two sums would be the message of the client that is missing in one of them."""
    made = nodes(FEDAVG, CLIPPED, secure=SECURE)
    options = {"secure": SECURE, "run_dir": tmp_path / "run", **ALL}
    with pytest.raises(KeyboardInterrupt):
        deploy(FEDAVG, CLIPPED, _Killing(made, 1), **options)
    run = deploy(FEDAVG, CLIPPED, Meddling(made, _silent(1, {FIRST: Stage.INPUT})), **options)
    assert list(run.history["abandoned"]) == [False, True, False]


def test_a_node_that_is_started_again_still_does_not_reveal_it(tmp_path: Path) -> None:
    def started() -> dict[int, Any]:
        return {
            FIRST + i: JaxNode(
                PROBLEM,
                CLIENTS.client_at(i),
                name,
                algorithm=FEDAVG,
                aggregation=CLIPPED,
                secure=SECURE,
                backend="reference",
                state=tmp_path / name,
            )
            for i, name in enumerate(CLIENTS.ids or ())
        }

    options = {"secure": SECURE, "run_dir": tmp_path / "run", **ALL}
    with pytest.raises(KeyboardInterrupt):
        deploy(FEDAVG, CLIPPED, _Killing(started(), 1), **options)
    run = deploy(FEDAVG, CLIPPED, Meddling(started(), _silent(1, {FIRST: Stage.INPUT})), **options)
    assert list(run.history["abandoned"]) == [False, True, False]


def test_wrong_shares_cost_the_round() -> None:
    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        mask = _mask(request)
        if mask is None or (node, mask.round, mask.stage) != (FIRST, 1, "reveal") or isinstance(reply, Failure):
            return [(node, reply)]
        payload = frame(reply).payload
        changed = payload[:4] + bytes([payload[4] ^ 1]) + payload[5:]
        return [(node, packed(opened(frame(reply), Masked), changed))]

    run = _secure(FEDAVG, meddle=meddle, **ALL)
    assert list(run.history["abandoned"]) == [False, True, False]


def test_a_message_that_is_longer_than_it_may_be_costs_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client that does not clip: the sum is longer than that of clipped messages can be."""
    inner, calls = masking.words_of_parts, []

    def unclipped(*arguments: Any) -> Words:
        calls.append(1)
        words = inner(*arguments)
        return words._replace(entries=words.entries + np.uint32(2**21)) if len(calls) == 6 else words

    monkeypatch.setattr(masking, "words_of_parts", unclipped)
    run = _secure(FEDAVG, **ALL)
    assert list(run.history["abandoned"]) == [False, True, False]


def test_a_message_that_is_not_finite_stays_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = session.contribution_of

    def spoilt(*arguments: Any) -> Any:
        found = inner(*arguments)
        bad = arguments[-1] == 2
        return found._replace(send=[np.full_like(array, np.nan) for array in found.send]) if bad else found

    monkeypatch.setattr(session, "contribution_of", spoilt)
    run = _secure(FEDAVG, rounds=1, **ALL)
    assert list(run.history["abandoned"]) == [False]
    assert run.history["refused"][0] == 1
    assert all(np.isfinite(leaf).all() for leaf in leaves(run))


@settings(max_examples=15)
@given(
    st.sampled_from(list(Stage)), st.integers(0, 400), st.binary(min_size=1, max_size=30), st.sampled_from([0, 1, 2])
)
def test_hostile_replies_never_end_a_run(stage: Stage, place: int, data: bytes, how: int) -> None:
    """Bytes of one node's reply are overwritten, inserted or cut off, at every stage of a round."""

    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        mask = _mask(request)
        if mask is None or node != FIRST or mask.stage != stage or isinstance(reply, Failure):
            return [(node, reply)]
        start = place % len(reply)
        end = [start + len(data), start, len(reply)][how]
        return [(node, reply[:start] + (b"" if how == 2 else data) + reply[end:])]

    run = _secure(FEDAVG, meddle=meddle, rounds=1, **ALL)
    assert all(np.isfinite(leaf).all() for leaf in leaves(run))


@settings(max_examples=25)
@given(st.binary(max_size=60), st.integers(0, 300))
def test_hostile_requests_never_end_a_node(data: bytes, place: int) -> None:
    node, requests = _asked_node()
    for request in requests:
        start = place % len(request)
        reply = frame(node.answer(request[:start] + data + request[start + len(data) :]))
        assert any(is_a(reply, kind) for kind in (Refusal, Masked, Profile))
        assert not is_a(reply, Answer)


def _asked_node() -> tuple[JaxNode, list[bytes]]:
    """A node in a secure run, and the requests that it was sent."""
    if not _ASKED:
        node = next(iter(nodes(FEDAVG, CLIPPED, secure=SECURE).values()))
        others = dict(list(nodes(FEDAVG, CLIPPED, secure=SECURE).items())[1:])
        transport = Meddling({FIRST: node, **others})
        deploy(FEDAVG, CLIPPED, transport, 1, secure=SECURE, **ALL)
        _ASKED.append((node, [request for sender, request in transport.requests if sender == FIRST]))
    return _ASKED[0]


_ASKED: list[Any] = []


def test_the_gate_has_a_reason_for_every_client_that_left() -> None:
    reasons: list[dict[str, int]] = []
    meddle = _silent(0, {FIRST: Stage.INPUT})
    _secure(FEDAVG, meddle=meddle, rounds=1, on_round=lambda info, _: reasons.append(dict(info.reasons)), **ALL)
    assert reasons == [{"failed": 1}]
