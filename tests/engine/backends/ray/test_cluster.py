"""Joining Ray: only with a token, only one at a time, and in one line where nobody answers."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedmime as fm
from fedmime.engine.backends.ray import cluster
from fedmime.engine.backends.ray.cluster import Cluster, check

pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")

ADDRESS = "10.0.0.1:6379"


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)


def _refused() -> None:
    with pytest.raises(fm.ConfigError, match=f"^ray: joining '{ADDRESS}' needs the cluster's token") as refusal:
        check(ADDRESS)
    assert "\n" not in str(refusal.value)


def test_a_cluster_is_joined_only_with_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(None)  # a Ray of our own makes one
    _refused()
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "missing"))
    _refused()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "ab" * 32)
    check(ADDRESS)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    _refused()


def test_the_token_may_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("token")
    check(ADDRESS)
    (tmp_path / "other").write_text("token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "other"))
    check(ADDRESS)


def test_the_token_of_a_ray_of_our_own_is_not_that_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", cluster._own_token())
    _refused()


def test_a_process_uses_one_ray() -> None:
    joined = Cluster()
    joined._users, joined._address = 1, ADDRESS
    for other, named in (("10.0.0.2:6379", "'10.0.0.2:6379'"), (None, "None")):
        with pytest.raises(fm.ConfigError, match=f"this process uses '{ADDRESS}', not also {re.escape(named)}"):
            joined.take(other)
    joined.take(ADDRESS)
    assert joined._users == 2


def test_whether_the_head_answers() -> None:
    joined = Cluster()
    with socket.create_server(("127.0.0.1", 0)) as server:
        joined._head = server.getsockname()
        assert joined.alive()
    assert not joined.alive()
    with pytest.raises(fm.ClusterError, match=r"^ray: '127.0.0.1:\d+' cannot be joined: Connection refused$"):
        joined._connect(":".join(map(str, joined._head)))


def test_a_process_that_has_lost_its_head_does_not_join_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray cannot be shut down without its head, so it stays initialized."""
    import ray

    with socket.create_server(("127.0.0.1", 0)) as server:
        head = ":".join(map(str, server.getsockname()))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=head))
    monkeypatch.setattr(ray, "shutdown", lambda: pytest.fail("it would wait for the head"))
    monkeypatch.setattr(cluster, "_check_token", lambda: None)
    with pytest.raises(fm.ClusterError, match=r"^ray: the head .* connected to is lost; start a new process$"):
        Cluster().take(None)


def test_a_ray_that_does_not_start_in_time_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the processes that it has started."""
    file, started = tmp_path / "head.py", tmp_path / "started"
    file.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(started)!r}, 'w').write(f'{{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(cluster, "head", SimpleNamespace(__file__=str(file)))
    monkeypatch.setattr(cluster, "_START", 3.0)
    process, told = cluster._started("start")
    process.communicate(timeout=10)
    assert told == {"error": "it has not answered within 3 seconds"}
    until = time.monotonic() + 10
    while _runs(int(started.read_text())):
        assert time.monotonic() < until
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")  # a child of nobody may wait for its burial
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_what_a_signal_does_stays() -> None:
    def ours(number: int, frame: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGTERM, ours)
    try:
        with cluster._signals_kept():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)
