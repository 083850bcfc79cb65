"""Bytes at the sockets are those that `fm.communication.cost` counts, and little more."""

from pathlib import Path

import jax
import pytest

from benchmarks import deployment
from deploy.flower.machine import as_users_run_it, left_over

pytest.importorskip("flwr")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")]  # of flwr

NODES, ROUNDS, WARM = 2, 6, 2


@pytest.mark.parametrize("algorithm", ["mime", "fedavg"])
def test_the_sockets_carry_what_was_counted(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fact
) -> None:
    """A model of 1.1 MB: what TLS, HTTP, Flower's records and looks for messages add is within two percent."""
    as_users_run_it(monkeypatch, tmp_path)
    prepared = deployment.prepared_for("handwriting-mlp", algorithm, NODES, ROUNDS, steps=1)
    seen = deployment.learn(prepared, NODES, False, tmp_path)
    assert len(seen) == ROUNDS
    first, last = seen[WARM - 1].passed, seen[-1].passed
    with jax.enable_x64(False):  # as the nodes run
        counted = deployment.cost_of(prepared, NODES).bytes * NODES * (ROUNDS - WARM)
    beside = sum(last) - sum(first) - counted
    fact(f"bytes at the sockets beside those counted, {algorithm}, share", beside / counted)
    assert 0 <= beside <= 0.02 * counted
    assert left_over(tmp_path) == []
