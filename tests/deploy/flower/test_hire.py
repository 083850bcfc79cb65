"""Workers: one for a node, started when there is none, replaced when it is stale, ended when it is stuck."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedmime as fm
from fedmime.deploy.flower import hire
from fedmime.deploy.flower.hire import WorkerFailed
from fedmime.deploy.flower.worker import Order

HERE = str(Path(__file__).parent)
DEADLINE = 60.0


class Place:
    """A node's directory, and the process with which its workers end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def ask(self, request: bytes, name: str = "a", deadline: float = DEADLINE, files: tuple[str, ...] = ()) -> bytes:
        order = Order("echo:node", {"name": name}, (HERE,), files=files)
        return hire.ask(order, self.directory, request, deadline, self.owner.pid)

    def worker(self, name: str = "a", files: tuple[str, ...] = ()) -> int:
        """The process that answers, which says who it is."""
        said, process = self.ask(b"who", name, files=files).split()
        assert said.decode() == name
        return int(process)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path / "node")
    yield found
    found.owner.kill()
    found.owner.wait()


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(process: int) -> bool:
    end = time.monotonic() + 20
    while alive(process) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(process)


def test_one_worker_answers_until_its_owner_ends(place: Place) -> None:
    first = place.worker()
    assert first != os.getpid()
    assert place.ask(b"some bytes") == b"some bytes"
    assert place.worker() == first
    assert {file.name: file.stat().st_mode & 0o777 for file in place.directory.iterdir()} == {
        "socket": 0o600, "worker.log": 0o600, "lock": 0o600,
    }  # fmt: skip
    assert place.directory.stat().st_mode & 0o777 == 0o700
    place.owner.kill()
    place.owner.wait()
    assert gone(first)


def test_messages_at_one_time_share_a_worker(place: Place) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(place.worker())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_stale_worker_is_replaced(place: Place) -> None:
    """Other arguments (another task, other data), or another version of the library."""
    first = place.worker("a")
    second = place.worker("b")
    assert second != first
    assert gone(first)


def test_a_worker_whose_data_or_code_has_changed_is_replaced(place: Place, tmp_path: Path) -> None:
    """The store is written anew at its path; the client's file is edited, to the same length and in the same second."""
    store, code = tmp_path / "store", tmp_path / "client.py"
    code.write_text("ETA = 1")
    fm.data.from_arrays({"c": {"x": np.zeros((3, 2)), "y": np.arange(3)}}).save(store)
    files = (str(store), str(code))
    first = place.worker(files=files)
    fm.data.from_store(store)
    os.utime(store)
    assert place.worker(files=files) == first  # opening it is no change
    shutil.rmtree(store)
    fm.data.from_arrays({"c": {"x": np.ones((3, 2)), "y": np.arange(3)}}).save(store)
    second = place.worker(files=files)
    assert second != first
    assert gone(first)
    times = code.stat()
    code.write_text("ETA = 2")
    os.utime(code, ns=(times.st_atime_ns, times.st_mtime_ns))
    third = place.worker(files=files)
    assert third != second
    code.unlink()
    assert place.worker(files=files) != third


def test_files_are_part_of_an_order_that_is_written_down() -> None:
    order = Order("echo:node", {"name": "a"}, (HERE,), 7, ("a", "b"))
    assert Order.of(json.loads(json.dumps(dataclasses.asdict(order)))) == order


def test_the_identity_covers_order_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Order("echo:node", {"name": "a"}, (HERE,))
    assert one.identity() == Order("echo:node", {"name": "a"}, (HERE,)).identity()
    others = [Order("echo:other", {"name": "a"}, (HERE,)), Order("echo:node", {"name": "b"}, (HERE,)),
              Order("echo:node", {"name": "a"})]  # fmt: skip
    assert len({order.identity() for order in [one, *others]}) == 4
    before = one.identity()
    monkeypatch.setattr("fedmime.deploy.flower.worker.exact", lambda: "0.1.0+changed")
    assert one.identity() != before


def test_after_a_crash_the_next_message_has_a_new_worker(place: Place) -> None:
    first = place.worker()
    with pytest.raises(WorkerFailed, match="has ended or dropped the message"):
        place.ask(b"exit")
    assert gone(first)
    assert place.worker() != first


def test_an_error_costs_one_message(place: Place) -> None:
    first = place.worker()
    with pytest.raises(WorkerFailed, match="dropped the message"):
        place.ask(b"raise")
    assert place.worker() == first
    assert "ValueError: asked for" in (place.directory / "worker.log").read_text()


def test_a_worker_that_is_too_slow_is_ended(place: Place) -> None:
    first = place.worker()
    with pytest.raises(WorkerFailed, match="has not answered in 1 s and was ended"):
        place.ask(b"sleep 60", deadline=1.0)
    assert gone(first)
    assert place.worker() != first


def test_a_worker_that_cannot_start_says_why(place: Place) -> None:
    """In its own log: Flower tells the server what is raised here, and an error may quote data."""
    with pytest.raises(WorkerFailed, match=r"^the worker does not start; its log on the client tells why$"):
        hire.ask(Order("nowhere:node"), place.directory, b"", DEADLINE, place.owner.pid)
    assert "No module named 'nowhere'" in (place.directory / "worker.log").read_text()


def test_what_users_print_goes_to_the_log(place: Place) -> None:
    order = Order("echo:talkative", {"name": "a"}, (HERE,))
    assert hire.ask(order, place.directory, b"what", DEADLINE, place.owner.pid) == b"what"
    log = (place.directory / "worker.log").read_text()
    assert "what users print\n" in log
    assert "what programs say\n" in log


def test_a_process_that_has_just_ended_need_not_be_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    hire._end(process.pid)


def test_a_directory_of_others_is_refused(place: Place) -> None:
    place.directory.mkdir(mode=0o777)
    place.directory.chmod(0o777)
    with pytest.raises(PermissionError, match="only you can write to"):
        place.ask(b"")
