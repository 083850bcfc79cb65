"""Clients that are left to whichever device is done first: the same bits, whoever trains them."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import fedmime as fm
from fedmime import native
from fedmime.algorithms.algorithm import Algorithm
from fedmime.engine import laid, plan
from fedmime.engine.backends import local
from fedmime.engine.plan import MOST_COMMON, Layout

pytestmark = pytest.mark.skipif(not native.usable(), reason=f"no kernels here: {native.status()}")
STEPS = [9, 1, 4, 2, 7, 1, 6, 3, 5, 8, 1, 2]


LONGEST = (0, 9)  # the first clients of the first two devices


def _batches(scale=1.0):
    random = np.random.default_rng(0)
    each = [{"x": random.normal(size=(k, 3, 20)), "y": random.integers(0, 17, (k, 3))} for k in STEPS]
    each[5]["x"] = scale * each[5]["x"]  # a client with one step
    for i, fields in enumerate(each):
        fields["x"][..., 0] = i
    return each


class Slow:
    """A logistic model with a client whose steps wait for those of others."""

    def __init__(self) -> None:
        self.late, self.others, self.seen = -1, [], []
        plain = fm.models.logistic(input_shape=(20,), classes=17)

        def pause(client) -> np.float32:
            end = time.monotonic() + 60
            while int(client) == self.late and not {*self.others} <= {*self.seen} and time.monotonic() < end:
                time.sleep(0.001)
            self.seen.append(int(client))
            return np.float32(0)

        def loss(params, batch, key):
            waited = jax.pure_callback(pause, jax.ShapeDtypeStruct((), jnp.float32), batch["x"][0, 0])
            return plain.loss(params, batch, key) + lax.stop_gradient(waited).astype(params["dense0"]["w"].dtype)

        self.problem = fm.models.from_functions(plain.init, loss)


def _left(cohort: fm.Cohort) -> list[int]:
    """The clients of a cohort that ran which belonged to no device."""
    (kept,) = cohort.laid_out.values()
    return [client for client, (device, _) in kept.plans[0].places.slots.items() if isinstance(device, slice)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bits_do_not_depend_on_who_was_faster(dtype) -> None:
    slow, algorithm, cohort = Slow(), fm.algorithms.fedavg(0.1), fm.Cohort.from_batches(_batches())
    start = jax.tree.map(lambda leaf: leaf.astype(dtype), slow.problem.init(jax.random.key(0)))
    ends = []
    for late in (-1, *LONGEST):
        slow.late, slow.seen = late, []
        state, info = fm.run_round(algorithm, slow.problem, algorithm.init(start), cohort, drift=True)
        ends.append([np.asarray(leaf) for leaf in jax.tree.leaves(state.server)] + [info.loss, info.drift])
        slow.others = _left(cohort)  # from now on all of them go to another device
        assert late < 0 or {*slow.others} <= {*slow.seen[: slow.seen.index(late)]}
    assert len(_left(cohort)) > 1
    for other in ends[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(ends[0], other, strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("totals", [True, False], ids=["kernels add up", "XLA does"])
def test_the_result_is_that_of_one_device(dtype, totals, monkeypatch) -> None:
    problem, algorithm = fm.models.logistic(input_shape=(20,), classes=17), fm.algorithms.fedavg(0.1)
    start = jax.tree.map(lambda leaf: leaf.astype(dtype), problem.init(jax.random.key(0)))
    one, _ = fm.run_round(algorithm, problem, algorithm.init(start), fm.Cohort.from_batches(_batches()), devices=1)
    if not totals:  # as for replies of other kinds of numbers than the kernels know
        monkeypatch.setattr(local.native, "totals", lambda *arrays: not arrays or len(arrays) == 2)
        jax.clear_caches()
    cohort = fm.Cohort.from_batches(_batches())
    all_, info = fm.run_round(algorithm, problem, algorithm.init(start), cohort)
    monkeypatch.undo()
    jax.clear_caches()
    assert len(_left(cohort)) > 1
    assert info.steps == sum(STEPS)
    for a, b in zip(jax.tree.leaves(one.server), jax.tree.leaves(all_.server), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-14 if dtype == np.float64 else 1e-6)


def test_a_reply_that_explodes_is_left_out_and_named() -> None:
    problem, algorithm = fm.models.logistic(input_shape=(20,), classes=17), fm.algorithms.fedavg(0.1)
    ends = []
    for devices in (1, None):
        cohort = fm.Cohort.from_batches(_batches(scale=1e8))
        state, info = fm.run_round(
            algorithm, problem, algorithm.init(problem.init(jax.random.key(0))), cohort, devices=devices
        )
        ends.append([np.asarray(leaf) for leaf in jax.tree.leaves(state.server)])
        assert info.refused == (5,)
        assert devices == 1 or 5 in _left(cohort)
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "layout", "some"),
    [
        (fm.algorithms.fedavg(0.1), Layout(2, 256), True),
        (fm.algorithms.fedprox(0.1, 0.5), Layout(2, 256), True),
        (fm.algorithms.fedavg(0.1), Layout(1, 256), False),
        (fm.algorithms.fedavg(0.1), Layout(2, 256, lanes=2), False),
        (fm.algorithms.fedavg(0.1), Layout(2, 256, masked=True), False),
        (fm.algorithms.scaffold(0.1), Layout(2, 256), False),  # a device has what its clients kept
        (fm.algorithms.mime(fm.optimizers.sgd(), 0.1), Layout(2, 256), False),  # and what it computed of them
    ],
    ids=["fedavg", "fedprox", "one device", "lanes", "masked", "scaffold", "mime"],
)
def test_who_leaves_clients_to_others(algorithm: Algorithm, layout: Layout, some: bool) -> None:
    assert laid.leaves_some(algorithm, layout) == some


def test_copies_of_their_examples_are_bounded(monkeypatch) -> None:
    cohort, asked = fm.Cohort.from_batches(_batches()), {"split": False, "by_client": False, "common": MOST_COMMON}
    for limit, count in ((2 * cohort.members[1].nbytes, 2), (0, 0)):
        monkeypatch.setattr(plan, "COMMON_BYTES", limit)
        slots = plan.make_plan(cohort, cohort.members, Layout(2, 256), **asked).places.slots
        assert sum(isinstance(device, slice) for device, _ in slots.values()) == count


def test_every_piece_of_work_is_done_once() -> None:
    """With any number of own and common pieces, none among them."""
    mesh = Mesh(np.asarray(jax.local_devices()), ("device",))

    def inside(own, common):
        def piece(carry):
            trip, i, done = carry
            done = done.at[i].add(1)
            return trip + 1, native.next_piece(trip + 1, own[0], MOST_COMMON, common, mesh.size, done), done

        done = jnp.zeros(MOST_COMMON + 5, jnp.int32)
        start = (jnp.int32(0), native.next_piece(jnp.int32(0), own[0], MOST_COMMON, common, mesh.size, done), done)
        return lax.while_loop(lambda carry: carry[1] >= 0, piece, start)[2][None]

    spread, everywhere = PartitionSpec("device"), PartitionSpec()
    specs = {"mesh": mesh, "in_specs": (spread, everywhere), "out_specs": spread, "check_vma": False}
    run = jax.jit(jax.shard_map(inside, **specs))
    for own, common in ((3, 8), (0, 5), (4, 0), (0, 0)):
        counts = np.arange(mesh.size, dtype=np.int32) % 2 + own
        for _ in range(20):
            done = np.asarray(run(counts, np.int32(common)))
            assert done[:, :MOST_COMMON].sum(0).tolist() == [1] * common + [0] * (MOST_COMMON - common)
            assert [row[MOST_COMMON:].tolist() for row in done] == [[1] * n + [0] * (5 - n) for n in counts]
