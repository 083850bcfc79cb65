"""What clients keep between rounds: every client finds its own, and states stay usable."""

from pathlib import Path

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, columns, model, population, roomy, same

BLANK = {"w": np.zeros((2, 3)), "b": np.zeros((), np.float32)}
CLIENTS = population([4, 7, 2, 9, 5, 6])
KEEPERS = {"scaffold": a.scaffold(0.1), "feddyn": a.feddyn(0.1, 0.3), "fedvarp": a.fedvarp(0.1)}
every_keeper = pytest.mark.parametrize("algorithm", KEEPERS.values(), ids=KEEPERS)


def _value(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"w": rng.normal(size=(2, 3)), "b": np.float32(rng.normal())}


def _cohort(ids: list[int], seed: int = 0) -> fm.Cohort:
    rng = np.random.default_rng(seed)
    batches = [{name: column[None] for name, column in columns(rng, 3).items()} for _ in ids]
    return fm.Cohort.from_batches(batches, ids=ids, population=9)


def _round(algorithm, state: fm.State, cohort: fm.Cohort, **options) -> tuple[fm.State, fm.Info]:
    return fm.run_round(algorithm, PROBLEM, state, cohort, backend=roomy(), **options)


def _memory(kind: str, folder: Path) -> fm.RamMemory | fm.DiskMemory:
    return fm.RamMemory(BLANK) if kind == "ram" else fm.DiskMemory(BLANK, folder / "kept")


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_clients_find_what_they_kept(kind: str, tmp_path: Path) -> None:
    """Random writes of more clients than the first table holds, against a dictionary."""
    rng, memory, expected = np.random.default_rng(0), _memory(kind, tmp_path), {}
    for _ in range(30):
        clients = rng.choice(200, 8, replace=False).tolist()
        values = [_value(rng) for _ in clients]
        memory = memory.write(clients, values)
        expected |= dict(zip(clients, values, strict=True))
    assert len(memory) == len(expected) > 64
    assert same(memory.read(list(range(200))), [expected.get(i, BLANK) for i in range(200)])
    kinds = jax.tree.map(lambda leaf: np.asarray(leaf).dtype, memory.read([0, 199]))
    assert all(kind == jax.tree.map(lambda leaf: leaf.dtype, BLANK) for kind in kinds)


def test_writing_to_ram_leaves_the_old_memory_alone() -> None:
    rng = np.random.default_rng(0)
    old = fm.RamMemory(BLANK).write([1], [_value(rng)])
    before = old.read([1, 2])
    new = old.write([1, 2], [_value(rng), _value(rng)])
    assert same(old.read([1, 2]), before)
    assert not same(new.read([1, 2]), before)
    assert (len(old), len(new)) == (1, 2)


@every_keeper
def test_a_state_can_be_used_twice(algorithm) -> None:
    state = algorithm.init(model())
    state, _ = _round(algorithm, state, _cohort([0, 3]))
    ends = [_round(algorithm, state, _cohort([3, 5], seed=1))[0] for _ in range(2)]
    assert same(ends[0], ends[1])
    assert not same(ends[0].server, state.server)


@every_keeper
def test_clients_are_found_again_by_their_id(algorithm) -> None:
    """The second round moves otherwise for a client that was seen than for a new one with the same data."""
    state, _ = _round(algorithm, algorithm.init(model()), _cohort([0, 3]))
    known, unknown = (_round(algorithm, state, _cohort([i], seed=1))[0] for i in (3, 5))
    assert not same(known.server, unknown.server)
    assert (len(state.memory), len(known.memory), len(unknown.memory)) == (2, 2, 3)


@every_keeper
def test_both_memories_give_the_same_run(algorithm, tmp_path: Path) -> None:
    ram, disk = (fm.simulate(algorithm, PROBLEM, CLIENTS, 5, 3, 4, run_dir=where) for where in (None, tmp_path))
    assert isinstance(ram.state.memory, fm.RamMemory)
    assert isinstance(disk.state.memory, fm.DiskMemory)
    assert same(ram.state.server, disk.state.server)
    everyone = list(range(len(CLIENTS)))
    assert same(ram.state.memory.read(everyone), disk.state.memory.read(everyone))


def test_a_memory_that_is_still_empty_is_used(tmp_path: Path) -> None:
    algorithm = a.scaffold(0.1)
    state = algorithm.init(model())
    memory = fm.DiskMemory(jax.tree.map(np.asarray, algorithm.remember(state.server.x)), tmp_path / "kept")
    state, _ = _round(algorithm, state, _cohort([0, 3]), memory=memory)
    assert len(memory) == 2
    assert state.memory is memory


def test_algorithms_without_memory_keep_none() -> None:
    run = fm.simulate(a.fedavg(0.1), PROBLEM, CLIENTS, 1, 3, 4)
    assert run.state.memory is None
