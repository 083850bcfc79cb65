"""The Ray that is started here is private, and no other is joined without a token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fedmime as fm
from engine.backends.ray.running.setting import run
from engine.setting import KINDS
from fedmime.engine.backends.specification import Ray


def test_what_was_started_is_private(ray: Ray) -> None:
    import ray as library
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    assert is_token_auth_enabled()
    assert library.get_runtime_context().gcs_address.startswith("127.0.0.1:")
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


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
