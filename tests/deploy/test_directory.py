"""The directory of a deployed run: one start at a time, and nothing of another kind of run is touched."""

from __future__ import annotations

import threading
from pathlib import Path

import filelock
import pytest

import fedmime as fm
from deploy.fleets import CLIENTS, FEDAVG, FIRST, Meddling, deploy, nodes, simulate
from fedmime.deploy import directory
from fedmime.deploy.fleet import Registered, Registry
from fedmime.deploy.secret import Secret
from fedmime.deploy.secure.options import SecureSum
from fedmime.deploy.server import Waiting
from fedmime.deploy.transport import LoopTransport
from fedmime.engine import Saving
from fedmime.runs.directory import LOCK

SAVING = Saving(every=1)
REGISTRY = Registry("a" * 32, (Registered("c", 3, "d" * 64),))


def _files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file() and file.suffix != ".lock"}


def test_what_was_written_is_known(tmp_path: Path) -> None:
    secret = Secret.fresh()
    assert directory.known(tmp_path, SAVING, None) is None
    directory.write(tmp_path, SAVING, secret, REGISTRY)
    found = directory.known(tmp_path, SAVING, None)
    assert found is not None
    assert (found[0].pseudonym("c"), found[1]) == (secret.pseudonym("c"), REGISTRY)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir() if file.suffix != ".lock"} == {0o600}
    with pytest.raises(fm.CheckpointError, match="which cannot go on with secure=SecureSum"):
        directory.known(tmp_path, SAVING, SecureSum())
    assert directory.known(tmp_path, Saving(fresh=True), None) is None
    assert _files(tmp_path) == {}


def test_a_simulations_directory_is_left_alone(tmp_path: Path) -> None:
    simulate(FEDAVG, rounds=1, run_dir=tmp_path)
    before = _files(tmp_path)
    with pytest.raises(fm.CheckpointError, match="holds a run without deployed clients"):
        directory.known(tmp_path, SAVING, None)
    with pytest.raises(fm.CheckpointError, match="holds a run without deployed clients"):
        directory.write(tmp_path, SAVING, Secret.fresh(), REGISTRY)
    assert _files(tmp_path) == before


@pytest.mark.parametrize("call", [lambda path: directory.known(path, SAVING, None),
                                  lambda path: directory.write(path, SAVING, Secret.fresh(), REGISTRY)])  # fmt: skip
def test_nothing_is_touched_while_another_process_works_there(call, tmp_path: Path) -> None:
    with filelock.FileLock(tmp_path / LOCK), pytest.raises(fm.errors.LockError, match="in use by another process"):
        call(tmp_path)
    assert _files(tmp_path) == {}


def test_a_second_start_ends_before_it_writes_anything(tmp_path: Path) -> None:
    """The first one still waits for its clients, and the second one has all that it needs."""
    clients = nodes(FEDAVG)
    last = max(clients)
    arriving = Meddling({node: each for node, each in clients.items() if node != last})
    done: list[fm.Run] = []

    def first() -> None:
        done.append(deploy(FEDAVG, None, arriving, run_dir=tmp_path, waiting=Waiting(5, 60.0, 30.0)))

    thread = threading.Thread(target=first)
    thread.start()
    while not arriving.replies:
        thread.join(0.01)
    with pytest.raises(fm.errors.LockError, match="in use by another process"):
        deploy(FEDAVG, None, LoopTransport(nodes(FEDAVG)), run_dir=tmp_path)
    assert _files(tmp_path) == {}
    arriving._inner._nodes[last] = clients[last]
    thread.join(120)
    assert [len(run.history["loss"]) for run in done] == [3]
    assert FIRST + len(CLIENTS.ids) - 1 == last
    assert (tmp_path / directory.FLEET).exists()
