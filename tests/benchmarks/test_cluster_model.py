"""The model of a round on workers of Ray: its laws, and rounds that can be computed by hand."""

import math

import pytest
from benchmarks.cluster_model import (
    BATCH,
    FEDAVG,
    HERE,
    METHODS,
    MIME,
    Constants,
    Model,
    Network,
    Setup,
    crossover,
    deal,
    interpolated,
    lengths,
    line,
    on_one_machine,
    with_ray,
)
from hypothesis import given
from hypothesis import strategies as st

FREE = Constants(*[0.0] * len(Constants._fields))
MODEL = Model("small", 1e6, {"FedAvg": 0.01, "Mime": 0.02}, 0.001)
COSTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=40)


@given(COSTS, st.integers(1, 12))
def test_dealing_loses_nothing_and_is_near_the_best(costs, parts):
    loads = deal(costs, parts)
    assert len(loads) == parts
    assert sum(loads) == pytest.approx(sum(costs))
    mean, longest = sum(costs) / parts, max(costs)
    assert max(mean, longest) - 1e-9 <= max(loads) <= mean + longest + 1e-9


def test_dealing_by_hand():
    assert sorted(deal([3, 3, 2, 2, 2], 2)) == [5, 7]
    assert deal([1.0, 2.0], 1) == [3.0]


def test_without_overheads_two_workers_are_two_cores():
    for method in METHODS:
        setup = Setup(method, MODEL, lengths(30).tolist())
        assert with_ray(setup, FREE, 2, HERE).total == pytest.approx(on_one_machine(setup, FREE).total)


def test_a_round_by_hand():
    constants = FREE._replace(round=1, trip=2, call=0.5, client=0.1, worker_client=0.25, server=1e-6)
    constants = constants._replace(put=1e-6, get=2e-6, give=3e-6, fetch=1e-7, add=2e-7)
    network = Network("slow", 1e6, 0.5)
    found = with_ray(Setup(MIME, MODEL, [20, 5, 10]), constants, 3, network)
    size, small = 4e6, 1e-9
    assert found.dispatch == pytest.approx(1 + 2 * (2 + 3 * 0.5) + 3 * 0.1)
    assert found.broadcast == pytest.approx(3 * size * 3e-6 + 2 * 0.5 + 3 * size / 1e6, rel=small)  # one machine more
    assert found.compute == pytest.approx(0.25 + 2 * 0.02 + 20 * 0.001)  # a client for each worker
    assert found.gather == pytest.approx(2 * size * (3e-6 + 3e-7) + 2 * 0.5 + 2 * size / 1e6, rel=small)
    assert found.sum == pytest.approx(3 * 2 * size * 2e-7)
    assert found.server == pytest.approx(1.0)
    assert found.total == pytest.approx(sum(found))


def test_workers_of_the_drivers_machine_need_no_network():
    setup, slow = Setup(FEDAVG, MODEL, [50] * 4), Network("slow", 1.0, 100.0)
    assert with_ray(setup, FREE, 2, slow) == with_ray(setup, FREE, 2, HERE)
    assert with_ray(setup, FREE, 3, slow).total > 100


@given(st.integers(1, 63), st.integers(1, 100))
def test_more_workers_compute_less_and_carry_more(workers, clients):
    constants, network = FREE._replace(call=1e-4, put=1e-9, fetch=1e-9, add=1e-9), Network("n", 1e8, 1e-3)
    setup = Setup(FEDAVG, MODEL, lengths(clients).tolist())
    fewer, more = (with_ray(setup, constants, w, network) for w in (workers, 2 * workers))
    assert more.compute <= fewer.compute + 1e-12
    assert more.dispatch > fewer.dispatch
    assert more.broadcast >= fewer.broadcast
    assert more.gather > fewer.gather
    assert more.sum > fewer.sum


def test_the_crossover_is_the_first_number_that_is_faster():
    setup, constants = Setup(FEDAVG, MODEL, [100] * 64), FREE._replace(trip=0.9)  # local: 32 * 0.1 = 3.2 s
    found = crossover(setup, constants, HERE)
    assert found.workers == 3  # 22 * 0.1 + 0.9 = 3.1 s
    assert found.best == 64
    assert found.speedup == pytest.approx(3.2 / 1.0)
    never = crossover(setup, FREE._replace(trip=10), HERE)
    assert never.workers is None
    assert never.speedup < 1


def test_interpolation_keeps_what_was_measured_and_power_laws():
    family = [Model("", p, {"FedAvg": 1e-9 * p, "Mime": 2e-9 * p}, 1e-6 * math.sqrt(p)) for p in (1e4, 1e6, 1e8)]
    for parameters in (1e4, 1e5, 1e6, 3e7):
        model = interpolated(family, parameters)
        assert model.steps == {"FedAvg": pytest.approx(1e-9 * parameters), "Mime": pytest.approx(2e-9 * parameters)}
        assert model.example == pytest.approx(1e-6 * math.sqrt(parameters))


@given(st.floats(1e-5, 1e-2), st.floats(1e-11, 1e-8))
def test_a_line_through_exact_costs(fixed, each):
    sizes = [2e5, 2e6, 2e7, 4e8]
    assert line(sizes, [fixed + each * size for size in sizes]) == pytest.approx((fixed, each), rel=1e-4)


def test_lines_never_have_negative_parts():
    assert line([1, 2, 4], [1, 3, 9])[0] == 0
    assert line([1, 2, 4], [3, 2, 1])[1] == 0


def test_clients_are_drawn_the_same_way_every_time():
    assert lengths(50).tolist() == lengths(50).tolist()
    assert lengths(1000).min() >= 2 * BATCH
