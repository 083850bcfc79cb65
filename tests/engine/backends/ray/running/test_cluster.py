"""The Ray that is started here is private, and no other is joined without a token."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedmime as fm
from engine.backends.ray.running.setting import all_ready, run, workers
from engine.setting import KINDS
from fedmime.engine.backends.ray import cluster
from fedmime.engine.backends.specification import Ray


def test_what_was_started_is_private(ray: Ray) -> None:
    import ray as library
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    assert is_token_auth_enabled()
    assert library.get_runtime_context().gcs_address.startswith("127.0.0.1:")
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_nobody_else_reaches_it(ray: Ray, fact: Any) -> None:
    """All processes listen on the loopback interface alone, the driver and the workers, too; none shows a dashboard."""
    psutil = pytest.importorskip("psutil", reason="finds the processes of Ray")
    all_ready()
    started = list(_of_session(cluster.CLUSTER._beside.pid))
    words = [process.cmdline() for process in started]
    for name in ("gcs_server", "raylet/raylet"):
        assert any(name in each[0] for each in words), name
    assert {seat.place.pid for seat in workers().seats} <= {process.pid for process in started}
    assert all("--disable-frontend" in each for each in words if any("dashboard/dashboard.py" in word for word in each))
    listening = [
        connection.laddr.ip.removeprefix("::ffff:")  # an address of IPv4
        for process in [psutil.Process(), *started]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"}
    for _ in listening:
        fact("sockets of Ray's processes, on the loopback interface")


def _of_session(session: int) -> Iterator[Any]:
    """The processes of a session."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session:
                yield process


def test_no_cluster_without_a_token(ray: Ray, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The token of the Ray that was started here does not count."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    joining = fm.backends.ray(address="10.0.0.1:6379")
    with pytest.raises(fm.ConfigError, match=r"joining '10.0.0.1:6379' needs the cluster's token"):
        run(KINDS["fedavg"], joining)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    with pytest.raises(fm.ConfigError, match=r"this process uses 'a Ray of its own', not also '10.0.0.1:6379'"):
        run(KINDS["fedavg"], joining)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(fm.ConfigError, match="RAY_AUTH_MODE=token"):
        run(KINDS["fedavg"], joining)
