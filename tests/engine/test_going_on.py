"""`run_round` returns before the devices are done: what happened is there for whoever looks."""

import copy
import pickle
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedmime as fm
from fedmime.engine import ahead

PROBLEM = fm.models.logistic(input_shape=(4,), classes=3)
FEDAVG = fm.algorithms.fedavg(0.1)
MIME = fm.algorithms.mime(fm.optimizers.momentum(), 0.1)  # hands the memory of its factors on
both = pytest.mark.parametrize("algorithm", [FEDAVG, MIME], ids=["fedavg", "mime"])


def _cohort(seed: int = 0) -> fm.Cohort:
    random = np.random.default_rng(seed)
    return fm.Cohort.from_batches(
        [{"x": random.random((3, 5, 4), np.float32), "y": random.integers(0, 3, (3, 5))} for _ in range(4)]
    )


def _start(algorithm=FEDAVG) -> fm.State:
    return algorithm.init(PROBLEM.init(jax.random.key(0)))


def _ended(info: fm.Info) -> bool:
    """Whether the devices have computed the round."""
    (figures,) = vars(info)["_until_then"].args[1:]
    return figures.is_ready()


@both
def test_what_happened_is_the_same_whenever_it_is_looked_at(algorithm) -> None:
    cohorts = [_cohort(seed) for seed in range(5)]
    state, at_once = _start(algorithm), []
    for cohort in cohorts:
        state, info = fm.run_round(algorithm, PROBLEM, state, cohort)
        at_once.append(info._asdict())
    late, infos = _start(algorithm), []
    for cohort in cohorts:
        late, info = fm.run_round(algorithm, PROBLEM, late, cohort)
        infos.append(info)
    np.testing.assert_array_equal(fm.params(late)["dense0"]["w"], fm.params(state)["dense0"]["w"])
    for early, info in zip(at_once, reversed([info._asdict() for info in reversed(infos)]), strict=True):
        np.testing.assert_equal(info, early)
    assert [info.round for info in infos] == list(range(5))


@both
def test_at_most_one_round_goes_on(algorithm) -> None:
    state, infos = _start(algorithm), []
    for seed in range(4):
        state, info = fm.run_round(algorithm, PROBLEM, state, _cohort(seed))
        infos.append(info)
        assert list(ahead._going_on) == [info]
        assert all(_ended(before) for before in infos[:-1])
    ahead.wait_for_all_but(0)
    assert not ahead._going_on
    assert _ended(infos[-1])


def test_states_in_turn_and_what_is_made_of_them_between_rounds() -> None:
    """Other programs on the same devices do not get in each other's way, looked at or not."""
    prox = fm.algorithms.fedprox(0.1, mu=0.5)
    one, other, cohort = _start(), _start(prox), _cohort()
    average = jax.tree.map(lambda leaf: [leaf] * 20, fm.params(one))
    for _ in range(30):
        one, _ = fm.run_round(FEDAVG, PROBLEM, one, cohort)
        other, _ = fm.run_round(prox, PROBLEM, other, cohort)
        average = jax.tree.map(_moved, average, fm.params(one), is_leaf=lambda leaf: isinstance(leaf, list))
    alone = _start()
    for _ in range(30):
        alone, info = fm.run_round(FEDAVG, PROBLEM, alone, cohort)
        assert np.isfinite(info.loss)
    np.testing.assert_array_equal(fm.params(one)["dense0"]["w"], fm.params(alone)["dense0"]["w"])
    assert np.isfinite(average["dense0"]["w"][-1]).all()


PROGRAMS_BETWEEN_ROUNDS = """
import time

import jax
import numpy as np

import fedmime as fm

problem = fm.models.logistic(input_shape=(4,), classes=3)
algorithms = fm.algorithms.fedavg(0.1), fm.algorithms.fedprox(0.1, mu=0.5)
random = np.random.default_rng(0)
batches = [{"x": random.random((3, 5, 4), np.float32), "y": random.integers(0, 3, (3, 5))} for _ in range(4)]
cohort = fm.Cohort.from_batches(batches)
states, end = [algorithm.init(problem.init(jax.random.key(0))) for algorithm in algorithms], time.monotonic() + 6
averages = jax.tree.map(lambda leaf: [leaf] * 20, fm.params(states[0]))
while time.monotonic() < end:
    states = [fm.run_round(a, problem, state, cohort)[0] for a, state in zip(algorithms, states, strict=True)]
    averages = jax.tree.map(
        lambda all_, leaf: [0.9 * each + 0.1 * leaf for each in all_],
        averages,
        fm.params(states[0]),
        is_leaf=lambda leaf: isinstance(leaf, list),
    )
assert np.isfinite(averages["dense0"]["w"][-1]).all()
"""


def test_many_programs_between_rounds_on_busy_cores_keep_no_device_from_its_round() -> None:
    """More than XLA lets wait for their turn: where a device had not begun yet, the other waited for it for ever."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        subprocess.run([sys.executable, "-c", PROGRAMS_BETWEEN_ROUNDS], check=True, timeout=90)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _moved(averages, leaf):
    return [0.9 * each + 0.1 * leaf for each in averages]


def test_several_threads_at_once() -> None:
    ends: dict[int, np.ndarray] = {}

    def run(seed: int) -> None:
        state, cohort = _start(), _cohort(seed)
        for _ in range(20):
            state, _ = fm.run_round(FEDAVG, PROBLEM, state, cohort)
        ends[seed] = np.asarray(fm.params(state)["dense0"]["w"])

    for seed in range(3):
        run(seed)
    alone, threads = dict(ends), [threading.Thread(target=run, args=(seed,), daemon=True) for seed in range(3)]
    ends.clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert ends.keys() == alone.keys(), "a thread did not end"
    for seed, end in ends.items():
        np.testing.assert_array_equal(end, alone[seed])


def test_an_error_that_nobody_saw_is_raised_by_the_next_round_and_once() -> None:
    def fails() -> dict[str, float]:
        raise RuntimeError("out of memory")

    failed = type(fm.run_round(FEDAVG, PROBLEM, _start(), _cohort())[1])(fails, fails, round=0)
    ahead.wait_for_all_but(0)
    ahead._going_on.append(failed)
    with pytest.raises(RuntimeError, match="out of memory"):
        fm.run_round(FEDAVG, PROBLEM, _start(), _cohort())
    ahead._going_on.append(failed)
    assert np.isfinite(fm.run_round(FEDAVG, PROBLEM, _start(), _cohort())[1].loss)
    with pytest.raises(RuntimeError, match="out of memory"):
        _ = failed.loss


def test_rounds_with_something_to_do_at_their_end_are_waited_for() -> None:
    scaffold = fm.algorithms.scaffold(0.1)
    ahead.wait_for_all_but(0)
    state, _ = fm.run_round(scaffold, PROBLEM, _start(scaffold), _cohort())
    assert not ahead._going_on
    assert state.memory is not None


def test_who_was_refused_is_told_late() -> None:
    batches = [{"x": np.full((1, 2, 4), size, np.float32), "y": np.asarray([[0, 1]])} for size in (1.0, 1e30)]
    cohort = fm.Cohort.from_batches(batches)
    _, info = fm.run_round(FEDAVG, PROBLEM, _start(), cohort)
    assert info.refused == (1,)
    assert not info.abandoned
    assert np.isfinite(info.update_norm)


def test_it_can_be_copied_kept_and_shown_but_not_changed() -> None:
    _, info = fm.run_round(FEDAVG, PROBLEM, _start(), _cohort())
    kept = pickle.loads(pickle.dumps(info))
    np.testing.assert_equal(kept._asdict(), info._asdict())
    np.testing.assert_equal(copy.copy(info)._asdict(), info._asdict())
    assert f"loss={info.loss!r}" in repr(info)
    with pytest.raises(AttributeError, match="loss cannot be set"):
        info.loss = 1.0
    with pytest.raises(AttributeError, match="'luss'"):
        _ = info.luss


def test_an_error_of_the_devices_belongs_to_its_round_alone() -> None:
    def loss(params, batch, key):
        def fail(x):
            if np.asarray(x).max() > 1:
                raise ValueError("this client cannot be computed")
            return np.zeros((), np.float32)

        error = jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.float32), batch["x"])
        return (params["w"] * batch["x"] - 1) ** 2 + jax.lax.stop_gradient(error).astype(params["w"].dtype)

    problem = fm.models.from_functions(lambda key: {"w": jnp.zeros(())}, loss)
    state = FEDAVG.init({"w": jnp.zeros(())})
    bad, good = (fm.Cohort.from_batches([{"x": np.full((2, 3), size, np.float32)}]) for size in (2.0, 1.0))
    with pytest.raises(Exception, match="cannot be computed"):  # at once or later, as JAX sees fit
        _ = fm.run_round(FEDAVG, problem, state, bad, devices=1)[1].loss
    assert np.isfinite(fm.run_round(FEDAVG, problem, state, good, devices=1)[1].loss)


def test_a_process_may_end_while_a_round_goes_on() -> None:
    code = """
import jax, numpy as np, fedmime as fm
problem, fedavg = fm.models.mlp(input_shape=(50,), classes=10), fm.algorithms.fedavg(0.1)
batches = [{"x": np.ones((400, 10, 50), np.float32), "y": np.zeros((400, 10), int)} for _ in range(4)]
fm.run_round(fedavg, problem, fedavg.init(problem.init(jax.random.key(0))), fm.Cohort.from_batches(batches))
print("the end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["the", "end"], "")
