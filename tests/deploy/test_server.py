"""A deployed run is a simulated one with its clients elsewhere: the same numbers, the same history, the same bytes."""

from __future__ import annotations

import json
import math
import shutil
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
    Meddling,
    apart,
    asked,
    deploy,
    frame,
    leaves,
    nodes,
    simulate,
)
from engine.backends.ray.losses import NOISY
from engine.setting import KINDS, PROBLEM, a, close, o
from fedmime.deploy import server
from fedmime.deploy.backend import DeployedBackend
from fedmime.deploy.messages import Hello, is_a
from fedmime.deploy.node import JaxNode
from fedmime.deploy.protocol import pack
from fedmime.deploy.secret import Secret
from fedmime.deploy.transport import Failure, LoopTransport
from fedmime.experiments import tasks, train
from fedmime.experiments.setting import Messages, Setting
from marking import fast

g = fm.aggregation
EIGHT = g.quantize(8)
ADAM = o.adam(0.8, 0.9, eps=0.1)

# the algorithm, what happens to messages, other arguments
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "fedavg": (FEDAVG, None, {}),
    "fedprox, schedules, uniform weights, two epochs": (KINDS["fedprox"], None, {"weights": "uniform", "epochs": 2}),
    "fedavg, three steps of everything": (FEDAVG, None, {"steps": 3, "batch_size": None}),
    "mime, momentum": (MIME, None, {"drift": True}),
    "mime_lite, adam, primed": (a.mime_lite(ADAM, 0.1), None, {}),
    "loc-mime": (KINDS["loc_mime"], None, {}),
    "scaffold": (a.scaffold(0.1), None, {}),
    "feddyn": (a.feddyn(0.1, 0.5), None, {}),
    "fedavg, clients run adamw": (a.fedavg(0.1, client=o.adamw(eps=0.1)), None, {}),
    "fednova, 8 bits both ways": (a.fednova(0.1), g.chain(EIGHT, down=EIGHT), {}),
    "fedvarp": (a.fedvarp(0.1), None, {}),
    "fedexp": (a.fedexp(0.1), None, {}),
    "fedcm": (a.fedcm(0.1, 0.5), None, {}),
    "ghbm": (a.ghbm(0.1, 0.9, 2), None, {}),
    "fedacg": (a.fedacg(0.1), None, {}),
    "mime_mvr, drawn": (a.mime_mvr(0.1, 0.6, output="random"), None, {}),
    "mime_lite, split, adam": (a.mime_lite(ADAM, 0.1, split=True), None, {}),
    "server_only": (a.server_only(ADAM, 0.1), None, {}),
    "mime, rotated, 8 bits both ways": (MIME, g.chain(g.quantize(4, True), down=g.quantize(8, True)), {}),
    "mime_lite, adam, 8 bits down": (a.mime_lite(ADAM, 0.1), g.chain(down=EIGHT), {}),
    "scaffold, error feedback": (a.scaffold(0.1), g.error_feedback(g.chain(g.top_k(0.5), g.quantize(4))), {}),
    "mime, clipped, median": (MIME, g.chain(g.clip(0.05, gradient=0.4), g.median()), {}),
    "mime_lite, trimmed mean, attacked": (
        a.mime_lite(ADAM, 0.1),
        g.chain(g.attack("sign_flip", 0.3, 10.0, seed=3), g.trimmed_mean(0.3)),
        {},
    ),
    "fedavg, krum": (FEDAVG, g.chain(EIGHT, g.krum(1)), {}),
    "fedavg, one sends NaN": (FEDAVG, g.attack("nan", 0.3, seed=3), {}),
}
# Relatives of FedAvg whose messages are those of others; quantizers both ways are shown for MimeLite and FedAvg, too.
ALIKE = {"fedexp", "fedcm", "ghbm", "fedacg", "fednova, 8 bits both ways", "mime, rotated, 8 bits both ways"}
PRIVATE: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mime, gaussian": (MIME, g.gaussian(0.1, 0.5, gradient_clip=0.5), {"weights": "uniform"}),
    "mime_mvr, gaussian, quantized": (
        a.mime_mvr(0.1, 0.6),
        g.chain(g.gaussian(0.1, 0.5), EIGHT, down=EIGHT),
        {"weights": "uniform"},
    ),
    "mime_lite, adaptive, poisson": (
        a.mime_lite(ADAM, 0.1),
        g.gaussian(0.05, 0.5, quantile=0.5, gradient_clip=0.3),
        {"weights": "uniform", "participation": fm.Participation("poisson", minimum=0), "cohort_size": 2, "seed": 19},
    ),
}


def _same(ours: fm.Run, theirs: fm.Run, tolerance: float, without: str = "seconds") -> None:
    """The same final state and the same history, one figure apart."""
    for p, q in zip(leaves(ours), leaves(theirs), strict=True):
        np.testing.assert_allclose(p, q, tolerance, tolerance)
    assert ours.history.keys() == theirs.history.keys()
    for figure in ours.history.keys() - {without}:
        np.testing.assert_allclose(ours.history[figure], theirs.history[figure], 1e-9, 1e-12, err_msg=figure)


@pytest.mark.parametrize("name", fast(CASES, ALIKE))
def test_a_deployed_run_equals_a_simulated_one(name: str, fact) -> None:
    """And the payloads of its requests and replies have the bytes that `communication.cost` counts."""
    algorithm, aggregation, others = CASES[name]
    transport = Meddling(nodes(algorithm, aggregation))
    ours, theirs = deploy(algorithm, aggregation, transport, **others), simulate(algorithm, aggregation, **others)
    # A rotation is compiled here and eager there; half of a split cohort has nothing to do in a gradient-only round.
    halves = algorithm.split and algorithm.gradient_rounds
    _same(ours, theirs, 1e-12 if "rotated" in name else 0.0, "clients" if halves else "seconds")
    assert not ours.history["abandoned"].any()
    down = sum(len(frame(request).payload) for _, request in transport.requests)
    up = sum(len(frame(reply).payload) for _, reply in transport.replies if not isinstance(reply, Failure))
    assert (down, up) == (ours.history["bytes_down"].sum(), ours.history["bytes_up"].sum())
    fact("deployed runs against the reference, error in float64", apart(ours, theirs))
    fact("deployed runs whose payloads have the bytes that cost counts")


@pytest.mark.parametrize("name", fast(["mime_lite, adam, primed", "scaffold", "mime, momentum"], {"mime, momentum"}))
def test_compiled_nodes_equal_a_compiled_simulation(name: str, fact) -> None:
    algorithm, aggregation, others = CASES[name]
    transport = LoopTransport(nodes(algorithm, aggregation, backend="local"))
    ours = deploy(algorithm, aggregation, transport, **others)
    theirs = simulate(algorithm, aggregation, backend="local", **others)
    _same(ours, theirs, 1e-12)
    fact("compiled nodes against a compiled simulation, error in float64", apart(ours, theirs))


@pytest.mark.parametrize("algorithm", [MIME, a.mime_lite(ADAM, 0.1)], ids=["mime", "mime_lite"])
def test_losses_that_draw_random_numbers(algorithm: Any) -> None:
    _same(deploy(algorithm, problem=NOISY), simulate(algorithm, problem=NOISY), 0.0)


@pytest.mark.parametrize("name", fast(PRIVATE, {"mime_mvr, gaussian, quantized"}))
def test_private_runs_differ_in_their_noise_and_cohorts_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, aggregation, others = PRIVATE[name]
    theirs, free = simulate(algorithm, aggregation, **others), deploy(algorithm, aggregation, **others)
    assert free.history["epsilon"] == pytest.approx(theirs.history["epsilon"])
    assert apart(free, theirs) > 1e-6
    monkeypatch.setattr(DeployedBackend, "noise_key", lambda self, key: key)
    monkeypatch.setattr(Secret, "sampling_seed", others.get("seed", 1))
    _same(deploy(algorithm, aggregation, **others), theirs, 0.0)


def test_the_noise_of_a_private_run_follows_from_its_secret(tmp_path: Path) -> None:
    algorithm, aggregation, others = PRIVATE["mime, gaussian"]
    first = deploy(algorithm, aggregation, run_dir=tmp_path / "a", **others)
    second = deploy(algorithm, aggregation, run_dir=tmp_path / "b", **others)
    assert apart(first, second) > 1e-6
    secret = (tmp_path / "a" / "secret").read_bytes()
    assert (tmp_path / "a" / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a" / "fleet.json").stat().st_mode & 0o777 == 0o600
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file() and path.name != "secret":
            assert secret not in path.read_bytes()
            assert str(Secret(secret).sampling_seed).encode() not in path.read_bytes()


def test_headers_are_small() -> None:
    transport = Meddling(nodes(MIME))
    deploy(MIME, None, transport)
    headers = [len(request) - len(frame(request).payload) for _, request in transport.requests]
    assert max(headers) < 600


def test_clients_are_called_by_pseudonyms(tmp_path: Path) -> None:
    broken = nodes(FEDAVG)
    broken[FIRST] = JaxNode(PROBLEM, {**CLIENTS.client_at(0), "x": np.full((4, 4), np.nan)}, "c0", algorithm=FEDAVG)
    run = deploy(FEDAVG, None, LoopTransport(broken), run_dir=tmp_path, cohort_size=5)
    assert run.history["refused_data"].tolist() == [1, 1, 1]
    lines = (tmp_path / "log.txt").read_text().splitlines()
    told = "\n".join(line for line in lines if " WARNING " not in line)  # a node's own, in this process
    name = Secret.read(tmp_path / "secret").pseudonym("c0")
    assert f"refuses {name} (data)" in told
    assert "c0" not in told.replace(name, "")
    assert [client[0] for client in json.loads((tmp_path / "fleet.json").read_text())["clients"]] == list(CLIENTS.ids)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": a.centralized(o.momentum(), 0.1)}, "pools the data"),
        ({"participation": fm.Participation("with_replacement")}, "with_replacement"),
        ({"waiting": server.Waiting(2)}, "nodes=2 is less than cohort_size=4"),
        ({"cohort_size": 0}, "cohort_size"),
        ({"rounds": 0}, "rounds"),
        ({"batch_size": 0}, "batch_size"),
        ({"epochs": 1, "steps": 1}, "epochs or steps"),
        ({"aggregation": g.gaussian(1.0, 1.0)}, "uniform"),
    ],
)
def test_arguments_are_refused_before_anybody_is_waited_for(changes: dict[str, Any], words: str) -> None:
    given = {"algorithm": FEDAVG, "rounds": 1, **changes}
    with pytest.raises(fm.ConfigError, match=words):
        deploy(transport=LoopTransport({}), **given)


@pytest.mark.parametrize("deadline", [0.0, -1.0, math.nan])
def test_waiting_is_checked(deadline: float) -> None:
    with pytest.raises(fm.ConfigError, match="deadline"):
        server.Waiting(deadline=deadline)


@pytest.mark.parametrize("most", [0, 2**28 + 1, 10.5])
def test_the_bound_on_examples_is_checked(most: Any) -> None:
    with pytest.raises(fm.ConfigError, match="most_examples"):
        server.Waiting(most_examples=most)


def test_who_claims_too_many_examples_takes_no_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run begins without it; nothing was written with a weight that the engine would refuse."""
    fleet = nodes(FEDAVG)
    liar = next(iter(fleet.values()))

    class Heavy:
        def answer(self, request: bytes) -> bytes:
            found = frame(liar.answer(request))
            return pack(found._replace(fields=found.fields | {"client": "liar", "examples": 2**31 - 1}))

    run = deploy(FEDAVG, None, LoopTransport({FIRST - 9: Heavy(), **fleet}), run_dir=tmp_path)
    assert apart(run, deploy(FEDAVG)) == 0.0
    assert "is refused: weight: it claims 2,147,483,647 examples" in caplog.text
    assert len(json.loads((tmp_path / "fleet.json").read_text())["clients"]) == 5


def test_too_few_nodes_end_a_run_before_it_begins() -> None:
    with pytest.raises(fm.ClusterError, match=r"5 of 6 nodes joined within 0\.5 s"):
        deploy(FEDAVG, waiting=server.Waiting(6, 0.5))


def test_a_signal_ends_the_wait_for_nodes() -> None:
    with pytest.raises(fm.errors.Stopped, match="while nodes were waited for"):
        deploy(FEDAVG, waiting=server.Waiting(6, 600.0), stop=lambda: 15)


TINY = Setting("digits-logistic", "mime", rounds=2, cohort=3, evaluate_every=1, aggregation=Messages(quantize=8))


def test_a_setting_is_built_on_both_sides(tmp_path: Path) -> None:
    """Nodes bring a problem and data; algorithm and aggregation come as names and numbers."""
    task, few = tasks.get(TINY.task), 4
    prepared = train.prepare(TINY)
    population = prepared.population
    some = fm.data.from_arrays({f"c{i}": population.client_at(i) for i in range(few)}, test=population.test)
    fleet = {i: JaxNode(task.problem(), some.client_at(i), f"c{i}") for i in range(few)}
    transport = Meddling(fleet)
    ours = server.run_setting(
        transport, TINY, test=some.test, waiting=server.Waiting(few, 5.0), run_dir=tmp_path / "deployed"
    )
    theirs = train.run(prepared.__class__(**{**vars(prepared), "population": some}), tmp_path / "simulated")
    assert apart(ours, theirs) < 1e-6
    assert ours.history["test_accuracy"] == pytest.approx(theirs.history["test_accuracy"])
    hello = next(frame(request) for _, request in transport.requests if is_a(frame(request), Hello))
    assert hello.fields["setting"]["aggregation"]["quantize"] == 8
    assert asked(transport.requests[-1][1]) is not None


def test_a_task_and_an_algorithm_of_ones_own(tmp_path: Path) -> None:
    """Both sides read their own copy of the file; the server's path stays with it."""
    source = Path(__file__).parent.parent / "cli" / "own_task.py"
    for side in ("server", "node"):
        (tmp_path / side).mkdir()
        shutil.copy(source, tmp_path / side / "own_task.py")
    here, there = (f"{tmp_path / side / 'own_task.py'}:" for side in ("server", "node"))
    setting = Setting(here + "mine", here + "swift", rounds=2, evaluate_every=1)
    prepared = train.prepare(setting)
    some, problem = prepared.population, tasks.problem(there + "mine")

    def fleet(**own: Any) -> dict[int, JaxNode]:
        return {i: JaxNode(problem, some.client_at(i), some.ids[i], **own) for i in range(len(some))}

    transport, waiting = Meddling(fleet(own={"algorithm": there + "swift"})), server.Waiting(len(some), 5.0)
    found = server.run_setting(transport, setting, test=some.test, waiting=waiting, run_dir=tmp_path / "run")
    assert apart(found, train.run(prepared)) < 1e-6
    assert set(json.loads((tmp_path / "run/identity.json").read_text())["sources"]) == {"task", "algorithm"}
    hello = next(frame(request) for _, request in transport.requests if is_a(frame(request), Hello))
    assert (hello.fields["setting"]["task"], hello.fields["setting"]["algorithm"]) == ("districts", "own_task.py:swift")
    with pytest.raises(fm.ClusterError, match="0 of 10 nodes"):
        server.run_setting(LoopTransport(fleet()), setting, waiting=server.Waiting(len(some), 0.1))


def test_what_needs_the_clients_data_is_no_setting_for_a_deployment() -> None:
    with pytest.raises(fm.ConfigError, match="target_gap"):
        server.run_setting(LoopTransport({}), Setting("annotators", "mime"))


def test_real_clients_tell_a_sampler_their_losses() -> None:
    taking = fm.Participation(sampler=fm.samplers.power_of_choice(4))
    ours, theirs = (each(FEDAVG, cohort_size=3, participation=taking) for each in (deploy, simulate))
    close(ours.state.server, theirs.state.server, 1e-10)
    np.testing.assert_allclose(ours.state.losses, theirs.state.losses, rtol=1e-6)
    assert np.isfinite(ours.state.losses).any()
