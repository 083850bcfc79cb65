"""Where the numbers of a run come from."""

import datetime
import importlib.metadata
import json
import platform
import subprocess

import jax
import pytest

from fedmime.runs.provenance import environment


def test_the_environment_is_told_in_plain_facts() -> None:
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert (found["jax"], found["numpy"]) == tuple(importlib.metadata.version(name) for name in ("jax", "numpy"))
    assert found["python"] == platform.python_version()
    assert len(found["devices"]) == jax.device_count()
    assert found["float64"] is True
    assert isinstance(found["native"], bool)
    assert datetime.datetime.fromisoformat(found["time"]).utcoffset() == datetime.timedelta()


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 5)])
def test_no_commit_is_told_without_git(error: Exception, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert environment()["git"] is None


def test_a_package_that_is_not_installed_has_no_version(monkeypatch) -> None:
    """The source can be run from a checkout; the other versions are told nevertheless."""
    known = importlib.metadata.version

    def version(name: str) -> str:
        if name == "fedmime":
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr("fedmime.runs.provenance.version", version)
    found = environment()
    assert found["fedmime"] is None
    assert found["jax"] == known("jax")
