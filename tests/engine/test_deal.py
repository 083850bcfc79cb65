"""How clients are dealt to devices: nobody waits long for the others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedmime.engine.cohort import Cohort, Member
from fedmime.engine.plan import Layout, make_plan
from fedmime.engine.sampling import mini_batches


def _steps(sizes, devices: int) -> np.ndarray:
    """The local steps of each device."""
    random = np.random.default_rng(0)
    members = []
    for i, n in enumerate(sizes):
        rows, counts = mini_batches(n, 10, 1, None, random)
        members.append(Member(i, {"x": np.zeros((n, 1), np.float32)}, n, rows, counts))
    cohort = Cohort(tuple(members), len(members))
    tables = make_plan(cohort, members, Layout(devices, 128), split=False, by_client=False).tables.opened()
    assert sorted(tables.clients.index[d, i] for d in range(devices) for i in range(tables.client_count[d])) == [
        *range(len(sizes))
    ]
    return np.asarray([tables.clients.steps[d, : tables.client_count[d]].sum() for d in range(devices)])


def test_devices_get_the_same_work() -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        steps = _steps(np.clip(random.lognormal(5, 0.7, 20), 20, 500).astype(int), 2)
        assert np.ptp(steps) <= 2, steps


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(1, 4))
def test_everybody_is_dealt_out_once(sizes, devices) -> None:
    assert _steps(sizes, devices).sum() == sum(-(-n // 10) for n in sizes)
