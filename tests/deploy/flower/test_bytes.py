"""Bytes at the sockets are those that `fm.communication.cost` counts, and little more."""

from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks import deployment
from deploy.flower.machine import as_users_run_it, left_over
from fedmime.deploy.secure.options import SecureSum
from fedmime.experiments.setting import Messages

pytest.importorskip("flwr")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # of flwr
]

ROUNDS, WARM = 6, 2
SMALL = 1_500_000
"""Bytes of a request and its reply; below, what every message costs is more than two percent."""
EACH = 30_000
"""Bytes that a message may cost beside what it carries, whatever that is."""
SETTINGS: dict[str, dict[str, Any]] = {
    "mime": {"algorithm": "mime"},
    "fedavg": {"algorithm": "fedavg"},
    "scaffold": {"algorithm": "scaffold"},
    "mime_lite-adam": {"algorithm": "mime_lite", "base": "adam"},
    "fedavg-8-bits": {"algorithm": "fedavg", "messages": Messages(quantize=8)},
    "mime-masked": {"algorithm": "mime", "messages": Messages(clip=1.0), "secure": SecureSum()},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_sockets_carry_what_was_counted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fact) -> None:
    """A model of 1.1 MB: what TLS, HTTP, Flower's records and looks for messages add is within two percent.

    It is so many bytes for every message, and masked sums exchange four times as many messages, each of them smaller.
    """
    as_users_run_it(monkeypatch, tmp_path)
    given = dict(SETTINGS[name])
    secure = given.pop("secure", None)
    nodes, exchanges = (2, 1) if secure is None else (3, 4)
    prepared = deployment.prepared_for("handwriting-mlp", given.pop("algorithm"), nodes, ROUNDS, 1, **given)
    seen = deployment.learn(prepared, nodes, False, tmp_path, secure)
    assert len(seen) == ROUNDS
    first, last = seen[WARM - 1].passed, seen[-1].passed
    with jax.enable_x64(False):  # as the nodes run
        counted = deployment.cost_of(prepared, nodes, secure).bytes * nodes * (ROUNDS - WARM)
    messages = nodes * (ROUNDS - WARM) * exchanges * (2 if prepared.algorithm.waits else 1)
    assert len(deployment.answered(tmp_path, seen[WARM - 1], seen[-1])) == messages
    beside = sum(last) - sum(first) - counted
    fact(f"bytes at the sockets beside those counted, {name}, share", beside / counted)
    fact(f"bytes at the sockets beside those counted, {name}, of a message", beside / messages)
    assert 0 <= beside <= EACH * messages
    if counted / messages >= SMALL:
        assert beside <= 0.02 * counted
    else:
        assert name in ("fedavg-8-bits", "mime-masked")
    assert left_over(tmp_path) == []
