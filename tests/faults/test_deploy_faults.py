"""What may go wrong between a server and its nodes: faults 34 to 41, 43 and 47, and a server that is killed.

In every case the round goes on without the node, the history says why, and the model is that of a run in which the node
was not there; or, where too few are left, the round is abandoned and the model stays as it was.
"""

from __future__ import annotations

import itertools
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmime as fm
from deploy.fleets import (
    CLIENTS,
    FEDAVG,
    FIRST,
    MIME,
    Meddle,
    Meddling,
    Reply,
    apart,
    asked,
    deploy,
    frame,
    nodes,
    only_in,
    rewritten,
)
from engine.setting import PROBLEM, a, population
from fedmime.aggregation.gate import Reason
from fedmime.deploy import server
from fedmime.deploy.messages import Hello, Profile, is_a
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import Frame, pack
from fedmime.deploy.transport import Failure, LoopTransport
from marking import fast

g = fm.aggregation
EVERYBODY = {"cohort_size": 5}
BAD = FIRST + 2
SIZE = 8 * 15  # bytes of the model


class Clock:
    """Time that passes only when somebody sleeps or works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.pauses = 0.0, 0
        for module in ("backend", "roster", "transport"):
            monkeypatch.setattr(f"fedmime.deploy.{module}.time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.pauses += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def _without(round_number: int, *gone: int) -> Meddle:
    """Nodes that do not reply in one round."""

    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        ask = asked(request)
        missing = ask is not None and ask.round == round_number and node in gone
        return [] if missing else [(node, reply)]

    return meddle


def _run(meddle: Meddle | None, algorithm: Any = FEDAVG, aggregation: Any = None, **others: Any) -> fm.Run:
    transport = Meddling(nodes(algorithm, aggregation), meddle)
    return deploy(algorithm, aggregation, transport, **EVERYBODY, **others)


def _as_if_absent(run: fm.Run, round_number: int, node: int, algorithm: Any = FEDAVG) -> None:
    """The model is that of a run in which a node was not there in one round."""
    assert apart(run, _run(_without(round_number, node), algorithm)) == 0.0


def _told(run: fm.Run, reason: str) -> list[int]:
    """How many messages were refused for a reason in each round."""
    found = run.history.get(f"refused_{reason}", np.zeros(len(run.history["round"])))
    return np.nan_to_num(found).astype(int).tolist()


# Fault 34: clients that are slow or crash.


@pytest.mark.parametrize("algorithm", [FEDAVG, MIME], ids=["fedavg", "mime"])
def test_a_client_that_crashes_costs_its_reply(algorithm: Any) -> None:
    run = _run(only_in(1, BAD, lambda reply: [(BAD, Failure("out of memory"))]), algorithm)
    assert _told(run, "failed")[:2] == [0, 1]
    assert run.history["clients"].tolist()[:2] == [5, 4]
    assert not run.history["abandoned"].any()


def test_a_client_that_fails_is_greeted_again_before_it_is_asked() -> None:
    """Its node may have been started anew, without knowing the run."""
    fleet = nodes(FEDAVG)
    anew = JaxNode(PROBLEM, CLIENTS.client_at(2), "c2", algorithm=FEDAVG, backend="reference")

    class Restarted:
        def __init__(self) -> None:
            self.node = fleet[BAD]

        def answer(self, request: bytes) -> bytes:
            ask = asked(request)
            if ask is not None and ask.round == 1:
                self.node = anew
            return self.node.answer(request)

    run = deploy(FEDAVG, None, Meddling({**fleet, BAD: Restarted()}), rounds=4, **EVERYBODY)
    assert _told(run, "failed") == [0, 1, 0, 0]
    assert _told(run, "late") == [0, 0, 1, 0]
    assert run.history["clients"].tolist() == [5, 4, 4, 5]


def test_whoever_has_not_replied_at_the_deadline_is_left_out(clock: Clock) -> None:
    class Slow:
        def __init__(self, node: Any) -> None:
            self._node = node

        def answer(self, request: bytes) -> bytes:
            clock.now += 100.0 if asked(request) is not None else 0.0
            return self._node.answer(request)

    fleet = nodes(FEDAVG)
    order = {**{node: each for node, each in fleet.items() if node != BAD}, BAD: fleet[BAD]}
    slow = {**order, FIRST + 4: Slow(fleet[FIRST + 4])}
    run = deploy(FEDAVG, None, Meddling(slow, last=[BAD]), **EVERYBODY)
    assert _told(run, "late") == [1, 1, 1]  # who was to be asked after the slow one
    assert run.history["clients"].tolist() == [4, 4, 4]
    absent = Meddling(nodes(FEDAVG), lambda node, request, reply: [(node, reply)] if node != BAD else [])
    absent_run = deploy(FEDAVG, None, _Greeted(absent), **EVERYBODY)
    assert apart(run, absent_run) == 0.0


class _Greeted:
    """A transport whose replies to greetings all come through."""

    def __init__(self, inner: Meddling) -> None:
        self._inner, self.nodes = inner, inner.nodes

    def exchange(self, requests: Mapping[int, bytes], deadline: float) -> Iterator[Reply]:
        greeted = {node for node, request in requests.items() if is_a(frame(request), Hello)}
        direct = self._inner._inner.exchange({node: requests[node] for node in greeted}, deadline)
        return itertools.chain(
            direct, self._inner.exchange({node: r for node, r in requests.items() if node not in greeted}, deadline)
        )


def test_a_client_that_misses_the_first_exchange_misses_the_second() -> None:
    transport = Meddling(nodes(MIME), _without(1, BAD))
    run = deploy(MIME, None, transport, **EVERYBODY)
    in_round = [node for node, request in transport.requests if (ask := asked(request)) and ask.round == 1]
    assert in_round.count(BAD) == 1
    assert in_round.count(FIRST) == 2
    assert _told(run, "late") == [0, 1, 0]


# Fault 35: drop-out.


@pytest.mark.parametrize(("gone", "abandoned"), [(0, False), (1, False), (2, False), (3, True), (5, True)])
def test_rounds_go_on_as_long_as_enough_report(gone: int, abandoned: bool) -> None:
    run = _run(_without(1, *range(FIRST, FIRST + gone)), participation=fm.Participation(minimum=0.5))
    assert run.history["abandoned"].tolist() == [False, abandoned, False]
    assert run.history["clients"][1] == (0 if abandoned else 5 - gone)
    assert _told(run, "late") == [0, gone, 0]


@pytest.mark.parametrize("algorithm", [FEDAVG, MIME, a.scaffold(0.1)], ids=["fedavg", "mime", "scaffold"])
def test_an_abandoned_round_changes_nothing(algorithm: Any) -> None:
    """Nor do clients move on that have trained in it."""
    others = {"participation": fm.Participation(minimum=1.0)}
    broken = _run(_without(2, FIRST), algorithm, **others)
    assert broken.history["abandoned"].tolist() == [False, False, True]
    assert apart(broken, _run(None, algorithm, rounds=2, **others)) == 0.0


def test_too_few_reports_are_no_divergence() -> None:
    gone = lambda node, request, reply: [(node, reply)] if asked(request) is None else []
    run = _run(gone, rounds=5)
    assert run.history["abandoned"].all()
    assert run.history["clients"].tolist() == [0] * 5


def test_the_first_of_more_clients_than_needed_are_taken() -> None:
    taking = fm.Participation(over_selection=1.25)
    late = Meddling(nodes(MIME), last=[BAD])
    run = deploy(MIME, None, late, participation=taking)
    assert run.history["clients"].tolist() == [4, 4, 4]
    assert run.history["refused"].tolist() == [0, 0, 0]
    absent = Meddling(nodes(MIME), lambda node, request, reply: [(node, reply)] if node != BAD else [])
    waiting = server.Waiting(5, 5.0, 30.0)
    without = deploy(MIME, None, _Greeted(absent), participation=taking, waiting=waiting)
    assert apart(run, without) == 0.0
    seconds = [ask.round for node, r in late.requests if node == BAD and (ask := asked(r)) and ask.train]
    assert seconds == []  # who was not needed for gradients is not asked to train


def test_over_selection_meets_the_target_with_one_in_five_gone() -> None:
    taking = fm.Participation(over_selection=1.25)
    run = deploy(FEDAVG, None, Meddling(nodes(FEDAVG), _without(1, BAD)), participation=taking)
    assert run.history["clients"].tolist() == [4, 4, 4]
    assert run.history["refused"].tolist() == [0, 0, 0]  # nobody was missing


@pytest.mark.parametrize(("share", "clients"), [(0.1, 10), (0.3, 9), (1.0, 0)])
def test_thirteen_asked_for_ten_make_up_for_a_tenth_that_drops_out(share: float, clients: int) -> None:
    """Selecting 130 % meets the target at 10 %, falls short at 30 %, and without any reply the model stays as it is."""
    crowd = population((2,) * 13)
    gone = range(FIRST, FIRST + round(13 * share))
    taking = fm.Participation(over_selection=1.3, minimum=0.5)
    given = {"cohort_size": 10, "participation": taking, "waiting": server.Waiting(13, 5.0, 30.0)}
    fleet = lambda meddle: Meddling(nodes(FEDAVG, clients=crowd), meddle)
    run = deploy(FEDAVG, None, fleet(_without(1, *gone)), rounds=2, **given)
    assert run.history["clients"].tolist() == [10, clients]
    assert run.history["abandoned"].tolist() == [False, clients == 0]
    before = deploy(FEDAVG, None, fleet(None), rounds=1, **given)
    assert (apart(run, before) == 0.0) == (clients == 0)


def test_simulated_drop_out_stays_possible() -> None:
    taking = fm.Participation(drop_out=0.5, minimum=0.0)
    run = deploy(FEDAVG, participation=taking, rounds=6, seed=3)
    assert len(set(run.history["clients"])) > 1


# Faults 36 and 43: replays, duplicates, many names for one node.


def test_replies_of_an_earlier_round_are_refused_and_do_not_disqualify() -> None:
    seen: dict[tuple[int, int], bytes] = {}

    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        ask = asked(request)
        if ask is None or isinstance(reply, Failure):
            return [(node, reply)]
        seen[node, ask.round] = reply
        old = seen.get((node, ask.round - 1))
        return [(node, reply)] if old is None else [(node, old), (node, reply)]

    run = _run(meddle)
    assert _told(run, "round") == [0, 5, 5]
    assert run.history["clients"].tolist() == [5, 5, 5]
    assert apart(run, _run(None)) == 0.0


def test_a_reply_to_the_first_exchange_is_none_to_the_second() -> None:
    first: dict[int, bytes] = {}

    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        ask = asked(request)
        if ask is None or isinstance(reply, Failure) or node != BAD:
            return [(node, reply)]
        if not ask.train:
            first[ask.round] = reply
            return [(node, reply)]
        return [(node, first[ask.round])]

    run = _run(meddle, MIME)
    assert _told(run, "round") == [1, 1, 1]
    assert _told(run, "late") == [1, 1, 1]


def test_a_second_reply_does_not_count() -> None:
    run = _run(only_in(1, BAD, lambda reply: [(BAD, reply), (BAD, reply), (BAD, b"")]))
    assert _told(run, "duplicate") == [0, 2, 0]
    assert apart(run, _run(None)) == 0.0


def test_a_reply_in_the_name_of_another_node_does_not_count() -> None:
    """The first reply of a node that was asked counts; what others send in a round they are not asked in, does not."""
    stranger = FIRST + 77
    run = _run(only_in(1, BAD, lambda reply: [(stranger, reply), (BAD, reply)]))
    assert _told(run, "unasked") == [0, 1, 0]
    assert apart(run, _run(None)) == 0.0
    swapped = _run(only_in(1, BAD, lambda reply: [(FIRST + 3, reply), (BAD, reply)]))
    assert _told(swapped, "round") == [0, 1, 0]  # its nonce is another node's
    assert apart(swapped, _run(None)) == 0.0


def test_two_nodes_cannot_speak_for_one_client() -> None:
    fleet = nodes(FEDAVG)
    twin = JaxNode(PROBLEM, CLIENTS.client_at(0), "c0", algorithm=FEDAVG, backend="reference")
    transport = Meddling({**fleet, FIRST + 9: twin})
    run = deploy(FEDAVG, None, transport, waiting=server.Waiting(5, 5.0), **EVERYBODY)
    assert apart(run, _run(None)) == 0.0
    asks = [node for node, request in transport.requests if asked(request) is not None]
    assert FIRST + 9 not in asks


def test_a_node_cannot_speak_for_two_clients() -> None:
    """When it has to introduce itself again, it must be the same client."""
    fleet = nodes(FEDAVG)

    class Turncoat:
        def __init__(self) -> None:
            self.hellos = 0

        def answer(self, request: bytes) -> bytes:
            self.hellos += is_a(frame(request), Hello)
            if asked(request) is not None and self.hellos == 1:
                raise RuntimeError("started anew")
            return fleet[BAD if self.hellos == 1 else FIRST].answer(request)

    run = deploy(FEDAVG, None, Meddling({**fleet, BAD: Turncoat()}), rounds=4, **EVERYBODY)
    assert run.history["clients"].tolist() == [4, 4, 4, 4]
    assert _told(run, "failed") == [1, 0, 0, 0]
    assert _told(run, "late") == [0, 1, 1, 1]


# Faults 37 to 41: what a reply may hold.


class Canary:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def _poisoned(reply: bytes, *values: float) -> bytes:
    numbers = np.frombuffer(frame(reply).payload, np.float64).copy()
    numbers[: len(values)] = values
    return rewritten(reply, numbers.tobytes())


CHANGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "an array too few": ("shape", lambda reply: rewritten(reply, frame(reply).payload[:-24])),
    "a shape that would broadcast": ("shape", lambda reply: rewritten(reply, bytes(8))),
    "no arrays": ("shape", lambda reply: rewritten(reply, b"")),
    "half precision": ("shape", lambda reply: rewritten(reply, frame(reply).payload[: SIZE // 2])),
    "an array too many": ("size", lambda reply: rewritten(reply, frame(reply).payload + bytes(24))),
    "a hundred times as much": ("size", lambda reply: rewritten(reply, frame(reply).payload * 100)),
    "a compressed bomb": ("size", lambda reply: rewritten(reply, zlib.compress(bytes(1 << 25)))),
    "NaN": ("not_finite", lambda reply: _poisoned(reply, np.nan)),
    "infinity": ("not_finite", lambda reply: _poisoned(reply, -np.inf)),
    "a loss that overflows": ("not_finite", lambda reply: rewritten(reply, loss=1.7e308)),
    "a drift that overflows in a sum": ("not_finite", lambda reply: rewritten(reply, drift=-3e38)),
    "1e30": ("norm", lambda reply: _poisoned(reply, 1e30)),
    "a square that overflows": ("norm", lambda reply: _poisoned(reply, 1e200)),
    "a larger weight": ("weight", lambda reply: rewritten(reply, examples=2**31 - 1)),
    "a smaller weight": ("weight", lambda reply: rewritten(reply, examples=1)),
    "more steps": ("weight", lambda reply: rewritten(reply, steps=10**6)),
    "no bytes": ("structure", lambda reply: b""),
    "other bytes": ("structure", lambda reply: bytes(range(256)) * 4),
    "the end cut off": ("structure", lambda reply: reply[:50]),
    "another version": ("structure", lambda reply: reply[:4] + b"\xff" + reply[5:]),
    "another kind": ("structure", lambda reply: pack(frame(reply)._replace(kind="ask"))),
    "another field": ("structure", lambda reply: pack(_with(reply, {"module": "os"}))),
    "a negative weight": ("structure", lambda reply: pack(_with(reply, {"examples": -3}))),
    "a weight of nothing": ("structure", lambda reply: pack(_with(reply, {"examples": 0}))),
    "a weight of 1e12": ("structure", lambda reply: pack(_with(reply, {"examples": 10**12}))),
    "a weight that is no number": (
        "structure",
        lambda reply: pack(_with(reply, {"examples": "@@@"})).replace(b'"@@@"', b"NaN  "),
    ),
}


def _with(reply: bytes, fields: dict[str, Any]) -> Frame:
    found = frame(reply)
    return found._replace(fields={**found.fields, **fields})


def test_whatever_a_reply_holds_costs_no_more_than_the_reply(fact) -> None:
    """All of these in one run, one in every round."""
    seen: dict[int, bytes] = {}
    kinds = list(CHANGES.values())

    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        ask = asked(request)
        if node != BAD or ask is None or isinstance(reply, Failure):
            return [(node, reply)]
        seen[ask.round] = reply
        return [(node, kinds[ask.round][1](reply))]

    run = _run(meddle, rounds=len(kinds), gate=fm.Gate(largest=100.0))
    for t, (name, (reason, _)) in enumerate(CHANGES.items()):
        assert {each for each in Reason if _told(run, each.label)[t]} == {Reason[reason.upper()]}, name
        fact("replies that cost no more than themselves")
    assert run.history["refused"].tolist() == [1] * len(kinds)
    assert not run.history["abandoned"].any()
    gone = lambda node, request, reply: [] if node == BAD and asked(request) is not None else [(node, reply)]
    assert apart(run, _run(gone, rounds=len(kinds))) == 0.0


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    bad = pickle.dumps(Canary(canary))
    assert not canary.exists()
    objects = np.array([Canary(canary)], object)
    for payload in (bad, objects.dumps(), b"\x93NUMPY" + bad):
        run = _run(only_in(0, BAD, lambda reply, payload=payload: [(BAD, payload)]), rounds=1)
        assert _told(run, "structure") == [1]
        run = _run(only_in(0, BAD, lambda reply, payload=payload: [(BAD, rewritten(reply, payload))]), rounds=1)
        assert run.history["refused"].tolist() == [1]
    assert not canary.exists()


# Fault 47: a fleet that cannot be reached.


def test_a_server_waits_for_its_fleet_without_a_busy_loop(clock: Clock) -> None:
    class Flaky(Meddling):
        def nodes(self) -> Sequence[int]:
            there = super().nodes()
            return there if clock.now < 1 or clock.now > 70 else []

    moved = []

    def on_round(info: fm.Info, measured: Any) -> None:
        moved.append(clock.now)
        clock.now += 2.0

    others = {"participation": fm.Participation(minimum=1.0), "on_round": on_round, **EVERYBODY}
    run = deploy(FEDAVG, None, Flaky(nodes(FEDAVG)), rounds=5, **others)
    assert run.history["abandoned"].tolist() == [False, True, True, False, False]
    assert moved[1] - moved[0] == pytest.approx(32.0)  # the deadline, and two seconds between rounds
    assert clock.pauses < 400
    assert _told(run, "late") == [0, 5, 5, 0, 0]


# A server that is killed.


class Killed(BaseException):
    """The server's process ends here."""


def _killing(round_number: int, after: int) -> Meddle:
    """End the server in a round, after so many replies of it have arrived."""
    arrived = itertools.count()

    def meddle(node: int, request: bytes, reply: bytes | Failure) -> Sequence[Reply]:
        ask = asked(request)
        if ask is not None and ask.round == round_number and next(arrived) == after:
            raise Killed
        return [(node, reply)]

    return meddle


KEEPING: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mime": (MIME, None, {}),
    "scaffold": (a.scaffold(0.1), None, {}),
    "error feedback": (FEDAVG, g.error_feedback(g.top_k(0.3)), {}),
    "saved rarely": (a.scaffold(0.1), None, {"saving": fm.Saving(every=3, keep=1)}),
    "private": (MIME, g.gaussian(0.1, 0.5, gradient_clip=0.5), {"weights": "uniform"}),
}


@pytest.mark.parametrize("name", fast(KEEPING, {"error feedback"}))
def test_a_server_that_is_killed_goes_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    """In the first or the second exchange of a round, after so many of its replies."""
    algorithm, aggregation, others = KEEPING[name]
    after = 6 if name == "mime" else 3
    rounds, killed = 6, 4
    fleet = nodes(algorithm, aggregation)
    given = {"rounds": rounds, "run_dir": tmp_path / "run", **others}
    before = Meddling(fleet, _killing(killed, after))
    with pytest.raises(Killed):
        deploy(algorithm, aggregation, before, **given)
    # What was on its way when the server ended arrives now: it belongs to no request of the new server.
    old = {node: reply for node, reply in before.replies if not is_a(frame(reply), Profile)}  # type: ignore[arg-type]
    late = lambda node, request, reply: (
        [(node, reply)] if asked(request) is None else [(node, old.pop(node, b"") or reply), (node, reply)]
    )
    resumed = deploy(algorithm, aggregation, Meddling(fleet, late), **given)
    unbroken_dir = tmp_path / "unbroken"
    unbroken_dir.mkdir()
    (unbroken_dir / "secret").write_bytes((tmp_path / "run" / "secret").read_bytes())
    (unbroken_dir / "fleet.json").write_bytes((tmp_path / "run" / "fleet.json").read_bytes())
    unbroken = deploy(algorithm, aggregation, **{**given, "run_dir": unbroken_dir})
    assert apart(resumed, unbroken) == 0.0
    np.testing.assert_array_equal(resumed.history["round"], np.arange(rounds))
    np.testing.assert_array_equal(resumed.history["loss"], unbroken.history["loss"])
    if "epsilon" in unbroken.history:
        np.testing.assert_array_equal(resumed.history["epsilon"], unbroken.history["epsilon"])


def test_nodes_and_server_may_all_be_started_anew(tmp_path: Path) -> None:
    """What clients keep is on their disks; a client whose disk was lost is left out, and says so."""
    algorithm = a.scaffold(0.1)
    given = {"rounds": 4, "run_dir": tmp_path / "run", **EVERYBODY}
    anew = lambda: {
        FIRST + i: JaxNode(
            PROBLEM,
            CLIENTS.client_at(i),
            name,
            algorithm=algorithm,
            backend="reference",
            state=tmp_path / name,
        )
        for i, name in enumerate(CLIENTS.ids)
    }
    with pytest.raises(Killed):
        deploy(algorithm, None, Meddling(anew(), _killing(2, 3)), **given)
    resumed = deploy(algorithm, None, Meddling(anew()), **given)
    assert apart(resumed, deploy(algorithm, rounds=4, **EVERYBODY)) == 0.0
    for kept in (tmp_path / "c1").rglob("*.kept"):
        kept.unlink()
    more = deploy(algorithm, None, Meddling(anew()), **{**given, "rounds": 5})
    assert _told(more, "failed") == [0, 0, 0, 0, 1]


def test_a_resumed_run_has_the_clients_it_began_with(tmp_path: Path) -> None:
    """Whoever comes later, or comes with other data, takes no part."""
    given = {"run_dir": tmp_path, **EVERYBODY, "rounds": 2}
    deploy(FEDAVG, **given)
    fleet = nodes(FEDAVG)
    changed = {**CLIENTS.client_at(1), "x": CLIENTS.client_at(1)["x"] + 1}
    fleet[FIRST + 1] = JaxNode(PROBLEM, changed, "c1", algorithm=FEDAVG, backend="reference")
    fleet[FIRST + 6] = JaxNode(PROBLEM, CLIENTS.client_at(0), "newcomer", algorithm=FEDAVG, backend="reference")
    with pytest.raises(fm.ClusterError, match="4 of 5"):
        deploy(FEDAVG, None, Meddling(fleet), **{**given, "rounds": 3, "waiting": server.Waiting(5, 0.3)})
    fleet[FIRST + 7] = nodes(FEDAVG)[FIRST + 1]
    more = deploy(FEDAVG, None, Meddling(fleet), **{**given, "rounds": 3})
    assert apart(more, deploy(FEDAVG, rounds=3, **EVERYBODY)) == 0.0


def test_a_directory_of_a_simulation_is_not_taken_over(tmp_path: Path) -> None:
    fm.simulate(FEDAVG, PROBLEM, CLIENTS, 1, 2, run_dir=tmp_path, backend="reference")
    with pytest.raises(fm.CheckpointError, match="without deployed clients"):
        deploy(FEDAVG, run_dir=tmp_path)
    assert not deploy(FEDAVG, run_dir=tmp_path, saving=fm.Saving(fresh=True)).history["abandoned"].any()


def test_the_loop_transport_is_enough_to_debug_with() -> None:
    assert apart(deploy(FEDAVG, None, LoopTransport(nodes(FEDAVG)), **EVERYBODY), _run(None)) == 0.0
