"""`doctor`: whether everything is here that a run needs, without starting any of it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedmime as fm
from faults.program import said
from fedmime.cli import doctor
from fedmime.devices import cores

ADDRESS = "10.0.0.1:6379"


def test_doctor_finds_everything_here(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FEDMIME_CACHE", str(tmp_path))
    ended = said(["doctor", "--json"], capsys)
    found = {row["check"]: row for row in json.loads(ended.out)}
    assert ended.code == 0
    assert all(row["ok"] for row in found.values())
    assert "4 rounds" in found["a run, saved and resumed"]["found"]


def test_a_doctor_who_finds_nothing_wrong_says_nothing_else(tmp_path) -> None:
    """In a process of its own: JAX has not started, and the warnings of libraries have nobody who hides them."""
    program = (
        "import logging, sys; from fedmime.cli import doctor, main; trial = doctor._trial\n"
        "doctor._trial = lambda: (logging.getLogger('absl').warning('a log line'), trial())[1]\n"
        "sys.exit(main.main(['doctor', '--json']))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    environment |= {"FEDMIME_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    found = {row["check"]: row["found"] for row in json.loads(ended.stdout)}
    assert found["devices"].startswith(f"{cores()} x cpu on ")


def test_doctor_says_what_is_wrong(capsys, monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("FEDMIME_CACHE", str(tmp_path / "file" / "cache"))
    ended = said(["doctor", "--json"], capsys)
    assert ended.code == 1
    assert [row["check"] for row in json.loads(ended.out) if not row["ok"]] == ["cache"]


@pytest.fixture
def no_token(monkeypatch, tmp_path) -> None:
    """No token is anywhere that Ray looks for it."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "version", lambda name: "2.60.0")


@pytest.mark.usefixtures("no_token")
def test_ray_with_and_without_a_cluster_to_join(monkeypatch) -> None:
    pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")
    alone = doctor._ray(None)
    assert alone.startswith(f"ray 2.60.0, {cores()} cores here")
    assert "Ray of their own" in alone
    with pytest.raises(fm.ConfigError, match=f"joining '{ADDRESS}' needs the cluster's token"):
        doctor._ray(ADDRESS)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    assert doctor._ray(ADDRESS).endswith(f"there is a token to join {ADDRESS}")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(fm.ConfigError, match="RAY_AUTH_MODE=token"):
        doctor._ray(ADDRESS)


@pytest.mark.usefixtures("no_token")
@pytest.mark.parametrize("words", [["--ray-address", ADDRESS], []])
def test_an_address_without_a_token_is_wrong(words, capsys, monkeypatch) -> None:
    pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")
    monkeypatch.setenv("RAY_ADDRESS", "" if words else ADDRESS)
    for check in ("_trial", "_kernels", "_devices"):
        monkeypatch.setattr(doctor, check, lambda: "left out of this test")
    ended = said(["doctor", "--json", *words], capsys)
    assert ended.code == 1
    assert [row["check"] for row in json.loads(ended.out) if not row["ok"]] == ["ray"]


@pytest.mark.parametrize(
    ("package", "versions"),
    [("ray", {"2.55.1": False, "2.56.0": True, "3.0.0.dev0": True}), ("flwr", {"1.40.0": False, "1.41.0rc1": True})],
)
def test_packages_that_are_too_old_are_wrong(package, versions, monkeypatch) -> None:
    for found, accepted in versions.items():
        monkeypatch.setattr(doctor, "version", lambda name, found=found: found)
        if accepted:
            assert doctor._installed(package) == f"{package} {found}"
        else:
            with pytest.raises(fm.ConfigError, match=f"^{package}: needs .* or later, got '{found}'$"):
                doctor._installed(package)


def test_extras_may_be_missing(monkeypatch) -> None:
    def missing(name: str) -> str:
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    assert "pip install 'fedmime[ray]'" in doctor._ray(ADDRESS)
    assert "not installed" in doctor._flower()


def test_the_oldest_versions_are_those_that_the_extras_ask_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    asked = [wanted for extra in project["optional-dependencies"].values() for wanted in extra]
    found = dict(re.fullmatch(r"([\w.-]+)>=([\d.]+).*", wanted).groups() for wanted in asked if ">=" in wanted)
    for package in doctor.OLDEST.keys() & found.keys():
        assert doctor.OLDEST[package] == tuple(map(int, found[package].split(".")[:2]))
    assert "ray" in found
