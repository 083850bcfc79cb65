"""Clients whose examples lie in common arrays: nothing is copied for a round, and the numbers are the same."""

import jax
import numpy as np
import pytest

import fedmime as fm
from fedmime.engine.backends import local
from fedmime.engine.devices import mesh
from fedmime.engine.plan import Layout
from fedmime.engine.pool import Pool
from fedmime.engine.schedule import Schedule

SIZES = (7, 3, 12, 1, 9)
ENDS = np.cumsum(SIZES)
PROBLEM = fm.models.logistic(input_shape=(4, 4, 1), classes=3)
ALGORITHMS = {
    "fedavg": fm.algorithms.fedavg(0.1),
    "mime": fm.algorithms.mime(fm.optimizers.momentum(), 0.1),
    "split": fm.algorithms.mime_lite(fm.optimizers.momentum(), 0.1, split=True),
}


def _arrays() -> dict[str, np.ndarray]:
    random, rows = np.random.default_rng(0), sum(SIZES)
    x, y = random.random((rows, 4, 4, 1), dtype=np.float32), random.integers(0, 3, rows)
    return {"x": x, "y": y.astype(np.int32)}


def _stretches(arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    starts = ENDS - SIZES
    return [{name: a[i:j] for name, a in arrays.items()} for i, j in zip(starts, ENDS, strict=True)]


def _population(clients: list[dict[str, np.ndarray]]) -> fm.data.Population:
    return fm.data.from_arrays({f"client {i}": client for i, client in enumerate(clients)})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_numbers_are_those_of_copied_examples(algorithm, monkeypatch) -> None:
    clients = _stretches(_arrays())
    used = []

    def around(*args, **options):
        used.append(original(*args, **options))
        return used[-1]

    original = Pool.around
    monkeypatch.setattr(Pool, "around", around)
    runs = [
        fm.simulate(ALGORITHMS[algorithm], PROBLEM, _population(given), 4, 4, 4, epochs=2)
        for given in (clients, [{name: a.copy() for name, a in client.items()} for client in clients])
    ]
    assert [pool is not None for pool in used] == [True, False]
    ours, copied = ([np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.state.server)] for run in runs)
    assert ours == copied


@pytest.mark.parametrize(
    "layout",
    [Layout(1, 256), Layout(2, 8), Layout(2, 256, lanes=2), Layout(1, 256, lanes=3, masked=True)],
    ids=lambda layout: f"{layout.devices}x{layout.lanes}{'-masked' * layout.masked}-{layout.chunk}",
)
@pytest.mark.parametrize("name", ["mime", "scaffold", "mime_mvr"])
def test_any_layout_takes_it(name, layout) -> None:
    """Also if a cohort has a client that lies elsewhere: it is copied as a whole then."""
    algorithm = {**ALGORITHMS, "scaffold": fm.algorithms.scaffold(0.1), "mime_mvr": fm.algorithms.mime_mvr(0.1, 0.9)}[
        name
    ]
    problem, clients = PROBLEM, _stretches(_arrays())
    elsewhere = [{name: a.copy() for name, a in clients[0].items()}, *clients[1:]]
    schedule, states = Schedule(4, 4, 1, None, 0, "examples"), []
    for given, shared in ((clients, True), (clients, False), (elsewhere, True)):
        layout.pool = Pool.around(clients, mesh(layout.devices)) if shared else None
        state = algorithm.init(problem.init(jax.random.key(0)))
        for t in range(3):
            cohort = schedule.cohort(algorithm, _population(given), t)
            state, info = fm.run_round(algorithm, problem, state, cohort, layout=layout, devices=layout.devices)
            assert not info.abandoned
        states.append([np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state.server)])
    assert states[0] == states[1] == states[2]


def test_it_says_where_clients_begin() -> None:
    arrays = _arrays()
    pool = Pool.around(_stretches(arrays), mesh())
    assert pool is not None
    assert pool.starts(_stretches(arrays)) == (ENDS - SIZES).tolist()
    for name, column in pool.device.items():
        np.testing.assert_array_equal(column, arrays[name])


def _aligned(column: np.ndarray) -> np.ndarray:
    """A copy that begins where devices can take it; the system gives such memory now and then."""
    others = []
    while column.ctypes.data % 64:
        others.append(column)
        column = column.copy()
    return column


def test_the_memory_of_aligned_arrays_is_used_as_it_is() -> None:
    arrays = {name: _aligned(column) for name, column in _arrays().items()}
    pool = Pool.around(_stretches(arrays), mesh())
    assert pool is not None
    for name, column in pool.device.items():
        places = {shard.data.unsafe_buffer_pointer() for shard in column.addressable_shards}
        assert places == {arrays[name].ctypes.data}


OTHERS = {
    "of another array": lambda a: {name: column.copy() for name, column in a.items()},
    "that jump": lambda a: {name: column[::2] for name, column in a.items()},
    "of another type": lambda a: {"x": a["x"].view(np.int32), "y": a["y"]},
    "shifted against each other": lambda a: {"x": a["x"][1:], "y": a["y"][:-1]},
    "of another shape": lambda a: {"x": a["x"].reshape(-1, 2, 8, 1), "y": a["y"]},
    "with more columns": lambda a: {**a, "z": a["y"]},
}


@pytest.mark.parametrize("which", OTHERS)
def test_other_clients_are_copied(which) -> None:
    arrays = _arrays()
    clients = _stretches(arrays)
    assert Pool.around([clients[0], OTHERS[which](clients[2])], mesh()) is None


def test_too_much_is_not_copied_for_the_devices(monkeypatch) -> None:
    monkeypatch.setattr("fedmime.engine.pool.LARGEST", 100)
    arrays = {name: _aligned(column) for name, column in _arrays().items()}
    assert Pool.around(_stretches(arrays), mesh()) is not None  # no copy is needed
    others = []
    while arrays["x"].ctypes.data % 64 == 0:
        others.append(arrays["x"])
        arrays["x"] = arrays["x"].copy()
    assert Pool.around(_stretches(arrays), mesh()) is None


def test_what_is_read_once_is_not_worth_a_copy() -> None:
    arrays = _arrays()
    arrays["x"] = np.concatenate([arrays["x"]] * 2)[: len(arrays["x"])]
    while arrays["x"].ctypes.data % 64 == 0:
        arrays["x"] = np.concatenate([arrays["x"], arrays["x"][:1]])[:-1]
    clients = _stretches(arrays)
    assert Pool.around(clients, mesh(), worth=arrays["x"].base.nbytes + arrays["y"].nbytes) is not None
    assert Pool.around(clients, mesh(), worth=arrays["x"].nbytes / 2) is None


def test_partitions_are_stretches() -> None:
    dealt = fm.data.partition.iid(*_arrays().values(), clients=4)
    assert dealt.resident
    assert Pool.around([dealt.client_at(i) for i in range(4)], mesh()) is not None


def test_populations_that_do_not_say_so_are_copied(monkeypatch) -> None:
    """What a custom population reads may lie in memory that it uses again."""
    monkeypatch.setattr(Pool, "around", lambda *_, **__: pytest.fail("looked for"))
    known = _population(_stretches(_arrays()))
    own = fm.data.Population("own", known.ids, known.sizes, known.fields, known.client_at, identity="own")
    fm.simulate(ALGORITHMS["fedavg"], PROBLEM, own, 1, 4, 4)


def test_mapped_files_are_read_client_by_client(tmp_path) -> None:
    """What no client of a cohort needs is not even looked at."""
    _population(_stretches(_arrays())).save(tmp_path / "store")
    stored = fm.data.from_store(tmp_path / "store")
    assert Pool.around([stored.client_at(0), stored.client_at(4)], mesh()) is None


def test_cohorts_of_one_client_do_not_compile_again() -> None:
    clients = [{name: a.copy() for name, a in client.items()} for client in _stretches(_arrays())]
    before = local.traces().get("round", 0)
    fm.simulate(ALGORITHMS["fedavg"], PROBLEM, _population(clients), 8, 1, 4)
    assert local.traces()["round"] - before == 1
