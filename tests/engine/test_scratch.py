"""Memory that rounds hand on: it is one piece of memory, and what it held does not count."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from fedmime import native
from fedmime.engine import ahead, scratch

needed = pytest.mark.skipif(not native.usable(), reason=f"no kernels here: {native.status()}")
MIME = fm.algorithms.mime(fm.optimizers.momentum(), 0.1)
PROBLEMS = {  # a model for each way to find a step's gradient at the anchor
    "factors": lambda: fm.models.mlp(hidden=(20,)),
    "step factors": lambda: fm.models.cnn(dropout=0.0),
    "cache": lambda: dataclasses.replace(fm.models.mlp(hidden=(20,)), factors=None),
}


@pytest.fixture(autouse=True)
def _nothing_held():
    scratch.release()
    yield
    scratch.release()


def _cohort(clients=3, steps=2):
    random = np.random.default_rng(0)
    batches = [
        {"x": random.random((steps, 5, 28, 28, 1), np.float32), "y": random.integers(0, 62, (steps, 5))}
        for _ in range(clients)
    ]
    return fm.Cohort.from_batches(batches)


def _held():
    return [leaf for tables in scratch._held.values() for leaf in jax.tree.leaves(tables)]


def _bits(state):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state.server)]


@needed
@pytest.mark.parametrize("kind", PROBLEMS)
def test_what_the_memory_held_does_not_count(kind, monkeypatch) -> None:
    problem = PROBLEMS[kind]()
    start = MIME.init(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), problem.init(jax.random.key(0))))
    first, _ = fm.run_round(MIME, problem, start, _cohort(), jax.random.key(1))
    assert _held()
    for name, tables in list(scratch._held.items()):
        scratch._held[name] = jax.tree.map(lambda leaf: leaf.at[:].set(jnp.nan), tables)
    again, _ = fm.run_round(MIME, problem, start, _cohort(), jax.random.key(1))
    monkeypatch.setattr(scratch, "LARGEST", 0)
    without, _ = fm.run_round(MIME, problem, start, _cohort(), jax.random.key(1))
    assert _bits(first) == _bits(again) == _bits(without)


@needed
def test_the_next_round_takes_the_same_memory() -> None:
    problem = PROBLEMS["factors"]()
    state = MIME.init(problem.init(jax.random.key(0)))
    places = []
    for _ in range(3):
        state, _ = fm.run_round(MIME, problem, state, _cohort())
        large = [leaf for leaf in _held() if leaf.nbytes > 1 << 12]
        places.append([shard.data.unsafe_buffer_pointer() for leaf in large for shard in leaf.addressable_shards])
    assert places[0]
    assert places[0] == places[1] == places[2]


@needed
def test_only_rounds_that_keep_something_take_any() -> None:
    problem = PROBLEMS["factors"]()
    for algorithm in (fm.algorithms.fedavg(0.1), fm.algorithms.mime_lite(fm.optimizers.momentum(), 0.1)):
        fm.run_round(algorithm, problem, algorithm.init(problem.init(jax.random.key(0))), _cohort())
        assert not scratch._held


@needed
@pytest.mark.parametrize("asked", ["_told", "_ended"])
def test_a_round_that_fails_on_the_devices_leaves_nothing_behind(asked, monkeypatch) -> None:
    """That it failed shows only when somebody looks or waits; what it was lent is then of no use."""
    problem = PROBLEMS["factors"]()
    state = MIME.init(problem.init(jax.random.key(0)))
    fm.run_round(MIME, problem, state, _cohort())

    def fails(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(f"fedmime.engine.round.{asked}", fails)
        _, info = fm.run_round(MIME, problem, state, _cohort())
        with pytest.raises(RuntimeError, match="out of memory"):
            ahead.wait_for_all_but(0) if asked == "_ended" else info.loss
    ahead._going_on.clear()
    assert not scratch._held
    assert not fm.run_round(MIME, problem, state, _cohort())[1].abandoned
    assert scratch._held


@needed
def test_the_oldest_goes_when_too_much_is_held(monkeypatch) -> None:
    problem = PROBLEMS["factors"]()
    state = MIME.init(problem.init(jax.random.key(0)))
    fm.run_round(MIME, problem, state, _cohort(steps=2))
    first = list(scratch._held)
    fm.run_round(MIME, problem, state, _cohort(steps=9))
    assert list(scratch._held)[:1] == first
    monkeypatch.setattr(scratch, "LARGEST", sum(leaf.nbytes for leaf in _held()) - 1)
    fm.run_round(MIME, problem, state, _cohort(steps=9))
    assert len(scratch._held) == 1
    assert list(scratch._held) != first
