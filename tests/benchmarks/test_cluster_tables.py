"""Tables and the figure of the cluster benchmark are made from recorded results alone."""

import pytest
from benchmarks.cluster_figure import draw
from benchmarks.cluster_model import FEDAVG, Constants
from benchmarks.cluster_tables import crossovers, dense, networks, tables


@pytest.fixture
def section() -> dict:
    """Costs of a machine that is easy to compute with: a step takes a nanosecond for each parameter and 0.1 ms."""

    def model(name: str, parameters: float) -> dict:
        step = 1e-4 + 1e-9 * parameters
        return {
            "name": name,
            "parameters": parameters,
            "steps": {"FedAvg": step, "Mime": 2 * step},
            "example": step / 10,
        }

    side = {"wall": 0.05, "cpu": 0.1, "examples": 3600.0, "compiled": 0, "load": 0.5}
    carried = {f"{way}_{unit}": 1e6 for way in ("put", "get") for unit in ("bytes", "seconds")}
    return {
        "rounds": [
            {"task": "handwriting-mlp", "algorithm": name, "local": side, "ray": side | carried | {"wall": 0.07}}
            for name in ("FedAvg", "Mime")
        ],
        "constants": {
            "constants": Constants(*[1e-3] * 7, *[1e-9] * 6)._asdict(),
            "models": [model("dense-50", 4.5e4), model("dense-9600", 1e8), model("handwriting-mlp", 2.7e5)],
            "link": {"latency": 1e-3, "bandwidth": 5e8},
            "load": 0.5,
            "store": {"calls": {"trip": 1e-3, "call": 1e-4}},
        },
    }


def test_all_tables_say_what_was_measured_and_what_was_simulated(section):
    found = tables(section)
    assert [len(table.rows) for table in found] == [2, 19, 2, 10, 10]
    assert found[0].rows[0][3] == "1.40 (MISSED: ≤ 1.3)"
    assert found[0].rows[1][6] == "1.00 (kept: ≤ 1.2)"
    assert all("Simulated" in table.note for table in found[3:])
    assert all(len(row) == len(table.header) for table in found for row in table.rows)


def test_an_assumed_network_is_no_faster_than_loopback(section):
    slow, fast = networks(section["constants"])
    assert (slow.bandwidth, fast.bandwidth) == (1.25e8, 5e8)
    assert slow.latency == pytest.approx(1.5e-3)


def test_sizes_that_were_not_measured_are_left_out(section):
    known = section["constants"]
    assert dense(known, 1e6) is not None
    known["models"] = known["models"][:1]
    assert dense(known, 1e6) is None
    assert crossovers(known, FEDAVG).rows == []


def test_figure(section, tmp_path):
    draw(section, tmp_path / "cluster.png")
    assert (tmp_path / "cluster.png").read_bytes().startswith(b"\x89PNG")
