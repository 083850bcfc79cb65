"""Sums over devices: exact, in the devices' order, however late one comes, and whatever else runs."""

import os
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import fedmime as fm
from fedmime import native

pytestmark = pytest.mark.skipif(not native.usable(), reason=f"no kernels here: {native.status()}")
AXIS, SPREAD = "device", PartitionSpec("device")


def _mesh() -> Mesh:
    return Mesh(np.asarray(jax.local_devices()), (AXIS,))


def _total(inside, mesh):
    """`inside(place, total, *arrays)` on every device, `total` with arrays of others that it comes after."""

    def on_device(*arrays):
        place = lax.axis_index(AXIS)

        def total(*arrays, after=()):
            return native.total(place, mesh.size, list(arrays), list(after))

        return jax.tree.map(lambda a: a[None], inside(place, total, *(a[0] for a in arrays)))

    return jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=SPREAD, out_specs=SPREAD, check_vma=False))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize(
    "shapes", [[()], [(1,)], [(17,), (), (3, 5)], [(8192,), (8193,)], [(300, 301), (62,)]], ids=str
)
def test_every_device_has_the_sum_of_all(shapes, dtype) -> None:
    mesh, random = _mesh(), np.random.default_rng(0)
    given = [(100 * random.normal(size=(mesh.size, *shape))).astype(dtype) for shape in shapes]
    sums = _total(lambda place, total, *arrays: total(*arrays), mesh)(*given)
    for ours, each in zip(sums, given, strict=True):
        assert ours.dtype == dtype
        expected = each[0]
        for other in each[1:]:
            expected = expected + other
        np.testing.assert_array_equal(ours, np.broadcast_to(expected, each.shape))


def test_what_is_added_up_may_still_be_read() -> None:
    """The sum takes the memory of what is added up only where nobody needs that."""
    mesh = _mesh()
    given = np.arange(mesh.size * 40, dtype=np.float32).reshape(mesh.size, 40)
    before, summed = _total(lambda place, total, a: (a + a, total(a + a)[0]), mesh)(given)
    np.testing.assert_array_equal(before, 2 * given)
    np.testing.assert_array_equal(summed, np.broadcast_to(2 * given.sum(0), given.shape))


@pytest.mark.parametrize("late", [0, 1])
def test_devices_wait_for_the_late_one(late) -> None:
    """Longer than they stay awake; and one sum after another."""
    mesh = _mesh()

    def pause(place) -> np.int32:
        if np.asarray(place) == late:
            time.sleep(0.05)
        return np.int32(0)

    def inside(place, total, a):
        waited = jax.pure_callback(pause, jax.ShapeDtypeStruct((), jnp.int32), place)
        (first,) = total(a + waited)
        (second,) = total(a * a, after=(first,))
        return first, second

    given = np.arange(mesh.size * 9, dtype=np.float32).reshape(mesh.size, 9)
    first, second = _total(inside, mesh)(given)
    np.testing.assert_array_equal(first, np.broadcast_to(given.sum(0), given.shape))
    np.testing.assert_array_equal(second, np.broadcast_to((given * given).sum(0), given.shape))


_LOST = """
import ctypes, sys
import jax, jax.numpy as jnp, numpy as np
import fedmime as fm
from fedmime.native import library

ctypes.c_int.in_dll(library._load().library, "fedmime_patience").value = 1
client = int(sys.argv[1])

def seen(x):
    if np.asarray(x).max() > 1:
        raise ValueError("this client cannot be computed")
    return np.zeros((), np.float32)

def loss(params, batch, key):
    error = jax.pure_callback(seen, jax.ShapeDtypeStruct((), jnp.float32), batch["x"])
    return (params["w"] * batch["x"] - 1) ** 2 + jax.lax.stop_gradient(error)

problem = fm.models.from_functions(lambda key: {"w": jnp.zeros(())}, loss)
batches = [{"x": np.full((2, 3), 2.0 if i == client else 1.0, np.float32)} for i in range(2)]
algorithm = fm.algorithms.fedavg(0.1)
try:
    fm.run_round(algorithm, problem, algorithm.init({"w": jnp.zeros(())}), fm.Cohort.from_batches(batches))[1].loss
except Exception as error:
    print("cannot be computed" in str(error) or "did not come" in str(error))
"""


@pytest.mark.parametrize("client", [0, 1])
def test_a_device_that_fails_does_not_leave_the_others_waiting(client) -> None:
    """Whoever looks at what happened gets the error, and the process ends."""
    done = subprocess.run(
        [sys.executable, "-c", _LOST, str(client)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["True"]


def _runs(seeds) -> list[list[np.ndarray]]:
    """The models of short runs, in float32, so that the kernels add up."""
    random = np.random.default_rng(0)
    clients = {
        f"{i}": {"x": random.random((9 + i, 6), np.float32), "y": random.integers(0, 3, 9 + i)} for i in range(8)
    }
    population, problem = fm.data.from_arrays(clients), fm.models.logistic(input_shape=(6,), classes=3)
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), problem.init(jax.random.key(0)))
    kinds = [fm.algorithms.mime_lite(fm.optimizers.momentum(), 0.1), fm.algorithms.mime_mvr(0.1, 0.5)]
    ends: dict[int, list[np.ndarray]] = {}

    def run(seed: int) -> None:
        done = fm.simulate(kinds[seed % 2], problem, population, 40, 6, 4, seed=seed, initial=start)
        ends[seed] = [np.asarray(leaf) for leaf in jax.tree.leaves(done.params)]

    threads = [threading.Thread(target=run, args=(seed,), daemon=True) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(ends) == len(seeds), "a run did not end"
    return [ends[seed] for seed in seeds]


def test_runs_in_several_threads_neither_mix_nor_wait_for_one_another() -> None:
    alone = [_runs([seed])[0] for seed in range(4)]
    together = _runs(range(4))
    for one, other in zip(alone, together, strict=True):
        assert one[0].dtype == np.float32
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_more_devices_than_cores() -> None:
    """They share cores, so the one that is waited for may not even run."""
    code = "import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', sys.argv[1], '-k', sys.argv[2]]))"
    wanted = [sys.executable, "-c", code, __file__, "sum_of_all or late_one or threads"]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "5", "PYTEST_ADDOPTS": "--import-mode=importlib"}
    done = subprocess.run(wanted, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
