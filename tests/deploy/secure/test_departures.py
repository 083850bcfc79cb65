"""Secure runs in which clients leave, the server is killed, and somebody sends what does not belong there."""

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
from deploy.secure.runs import ALL, CLIPPED, SECURE, STEP, secure_run
from engine.setting import PROBLEM, a
from fedmime.deploy import server, session
from fedmime.deploy.messages import Answer, Ask, Hello, Mask, Masked, Profile, Refusal, Stage, is_a, opened, packed
from fedmime.deploy.node import JaxNode
from fedmime.deploy.secure import masking
from fedmime.deploy.secure.fixed_point import Words
from fedmime.deploy.transport import Failure, LoopTransport

g = fm.aggregation


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


@pytest.mark.parametrize(
    ("algorithm", "stage"),
    [(FEDAVG, Stage.KEYS), (MIME, Stage.KEYS), (MIME, Stage.SHARES), (MIME, Stage.INPUT)],
    ids=["fedavg-keys", "mime-keys", "mime-shares", "mime-input"],
)
def test_who_leaves_before_sending_is_left_out_as_in_any_run(algorithm: Any, stage: Stage) -> None:
    gone = FIRST + 1
    run = secure_run(algorithm, meddle=_silent(1, {gone: stage}), **ALL)
    plain = Meddling(nodes(algorithm, CLIPPED), _absent(1, [gone]))
    wanted = deploy(algorithm, CLIPPED, plain, **ALL)
    assert apart(run, wanted) < 20 * STEP
    assert list(run.history["abandoned"]) == [False] * 3
    assert run.history["refused"][1] == 1
    np.testing.assert_array_equal(run.history["refused"], wanted.history["refused"])


def test_who_leaves_after_sending_is_in_the_sum() -> None:
    run = secure_run(FEDAVG, meddle=_silent(2, {FIRST + 1: Stage.REVEAL}), **ALL)
    assert apart(run, secure_run(FEDAVG, **ALL)) == 0
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


def test_nodes_that_were_started_anew_without_a_word_are_greeted_before_the_next_round() -> None:
    """Nobody has said that they failed: they are late, and know of no run when they are back."""
    inner, gone = nodes(MIME, CLIPPED, secure=SECURE), (FIRST, FIRST + 2, FIRST + 3)

    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        mask = _mask(request)
        if mask is None or mask.round != 1 or node not in gone or mask.stage != Stage.INPUT:
            return [(node, reply)]
        transport._inner._nodes[node] = nodes(MIME, CLIPPED, secure=SECURE)[node]
        return []

    transport = Meddling(inner, meddle)
    run = deploy(MIME, CLIPPED, transport, 4, secure=SECURE, **ALL)
    assert list(run.history["abandoned"]) == [False, True, False, False]
    assert list(run.history["clients"])[2:] == [3, 5]  # as many as it needs are there, and it does not wait for more


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


def test_a_private_round_without_a_sum_is_abandoned() -> None:
    """A private run releases noise even where nobody's message counts, but not where too few clients report."""
    private = g.gaussian(0.1, 0.5, 1e-5, gradient_clip=0.5)
    gone = {FIRST + number: Stage.INPUT for number in range(5)}
    run = secure_run(MIME, private, _silent(0, gone), rounds=1, **{**ALL, "weights": "uniform"})
    assert list(run.history["abandoned"]) == [True]


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
    run, plain = secure_run(MIME, private, **options), deploy(MIME, private, **options)
    assert not any(run.history["abandoned"])
    np.testing.assert_array_equal(run.history["epsilon"], plain.history["epsilon"])
    assert apart(run, plain) > 1e-3  # every run has noise of its own


def test_a_server_that_was_killed_goes_on_with_the_same_clients(tmp_path: Path) -> None:
    """Round 1 is revealed twice, over the same clients, and the model is that of an unbroken run."""
    made, unbroken = nodes(a.scaffold(0.1), CLIPPED, secure=SECURE), secure_run(a.scaffold(0.1))

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

    run = secure_run(FEDAVG, meddle=meddle, **ALL)
    assert list(run.history["abandoned"]) == [False, True, False]


def test_a_message_that_is_longer_than_it_may_be_costs_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client that does not clip: the sum is longer than that of clipped messages can be."""
    inner, calls = masking.words_of_parts, []

    def unclipped(*arguments: Any) -> Words:
        calls.append(1)
        words = inner(*arguments)
        return words._replace(entries=words.entries + np.uint32(2**21)) if len(calls) == 6 else words

    monkeypatch.setattr(masking, "words_of_parts", unclipped)
    run = secure_run(FEDAVG, **ALL)
    assert list(run.history["abandoned"]) == [False, True, False]


def test_a_message_that_is_not_finite_stays_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = session.contribution_of

    def spoilt(*arguments: Any) -> Any:
        found = inner(*arguments)
        bad = arguments[-1] == 2
        return found._replace(send=[np.full_like(array, np.nan) for array in found.send]) if bad else found

    monkeypatch.setattr(session, "contribution_of", spoilt)
    run = secure_run(FEDAVG, rounds=1, **ALL)
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

    run = secure_run(FEDAVG, meddle=meddle, rounds=1, **ALL)
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
    secure_run(FEDAVG, meddle=meddle, rounds=1, on_round=lambda info, _: reasons.append(dict(info.reasons)), **ALL)
    assert reasons == [{"failed": 1}]
