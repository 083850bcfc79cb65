"""The keeper: no process and no file outlives its launcher, however either of them ends."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedmime.deploy.flower import keeper, keys, operate
from fedmime.deploy.flower import launcher as launchers
from fedmime.deploy.flower.launcher import Launcher
from fedmime.deploy.flower.superlink import OPENING
from fedmime.errors import ClusterError

# A process that starts one in a session of its own, which starts another and leaves it to nobody: as Flower's do.
_TREE = """
import os, subprocess, sys, time
level = int(sys.argv[2])
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
if level:
    subprocess.Popen([sys.executable, __file__, sys.argv[1], str(level - 1)], start_new_session=True)
if level != 1:
    time.sleep(600)
"""


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(true: Callable[[], object], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(true())


def tree(directory: Path) -> tuple[list[str], Callable[[], list[int]]]:
    """A command, and the processes that it has led to."""
    program, seen = directory / "tree.py", directory / "seen"
    program.write_text(_TREE)
    found = lambda: [int(line) for line in seen.read_text().split()] if seen.exists() else []
    return [sys.executable, str(program), str(seen), "2"], found


def test_descendants_that_left_end_too(tmp_path: Path) -> None:
    command, seen = tree(tmp_path)
    with Launcher(tmp_path / "logs") as launcher:
        assert launcher.directory.stat().st_mode & 0o777 == 0o700
        launcher.start("tree", command)
        assert until(lambda: len(seen()) == 3)
        assert alive(seen()[0])
        assert alive(seen()[2])
        launcher.check()
    assert not any(map(alive, seen()))
    assert not launcher.directory.exists()


_LAUNCH = """
import signal, sys, time
from pathlib import Path
from fedmime.deploy.flower.launcher import Launcher
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored from birth where the tests run in the background
with Launcher(Path(sys.argv[1])) as launcher:
    print(launcher.directory, flush=True)
    launcher.start("tree", sys.argv[2:])
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_all_end_with_a_launcher_that_is_killed(number: int, tmp_path: Path) -> None:
    command, seen = tree(tmp_path)
    words = [sys.executable, "-c", _LAUNCH, str(tmp_path / "logs"), *command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        assert until(lambda: len(seen()) == 3)
        process.send_signal(number)
    assert until(lambda: not any(map(alive, seen())))
    assert until(lambda: not directory.exists())


def test_all_end_with_a_keeper_that_is_killed(tmp_path: Path) -> None:
    """Its children die with it, and those that left them end with the launcher, which knows them by a mark."""
    command, seen = tree(tmp_path)
    stranger = subprocess.Popen(["sleep", "600"])
    with Launcher(tmp_path / "logs") as launcher:
        launcher.start("tree", command)
        assert until(lambda: len(seen()) == 3)
        os.kill(launcher._keeper.pid, signal.SIGKILL)
        assert until(lambda: not alive(seen()[0]))
        assert alive(seen()[2])
    assert not any(map(alive, seen()))
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_all_end_with_a_keeper_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed after a while, and the error for which the launcher ends is the one that is told."""
    monkeypatch.setattr(launchers, "_ENDING", 2.0)
    command, seen = tree(tmp_path)
    launcher = Launcher(tmp_path / "logs")

    def hang() -> None:
        with launcher:
            launcher.start("tree", command)
            assert until(lambda: len(seen()) == 3)
            os.kill(launcher._keeper.pid, signal.SIGSTOP)
            raise ValueError("the first")

    with pytest.raises(ValueError, match="the first"):
        hang()
    assert launcher._keeper.returncode == -signal.SIGKILL
    assert not any(map(alive, seen()))
    assert not launcher.directory.exists()


def test_an_order_that_a_dead_keeper_did_not_take_hides_no_error(tmp_path: Path) -> None:
    def order() -> None:
        with Launcher(tmp_path / "logs") as launcher:
            launcher._keeper.kill()
            launcher._keeper.wait()
            launcher.start("sleep", ["sleep", "600"])

    with pytest.raises(ClusterError, match="keeps the others was ended"):
        order()


def test_children_die_with_a_keeper_that_is_killed(tmp_path: Path) -> None:
    with Launcher(tmp_path / "logs") as launcher:
        launcher.start("sleep", ["sleep", "600"])
        launcher.start("echo", ["sh", "-c", f"echo $PPID > {tmp_path}/keeper; exec sleep 600"])
        assert until(lambda: (tmp_path / "keeper").exists() and (tmp_path / "keeper").read_text().strip())
        keeping = int((tmp_path / "keeper").read_text())
        children = [int(name) for name in os.listdir("/proc") if name.isdigit() and parent(int(name)) == keeping]
        assert len(children) == 2
        os.kill(keeping, signal.SIGKILL)
        assert until(lambda: not any(map(alive, children)))
        with pytest.raises(ClusterError, match="keeps the others was ended"):
            assert until(lambda: launcher.check() is not None)
    assert not launcher.directory.exists()


def parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_a_process_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    with Launcher(tmp_path / "logs") as launcher:
        launcher.start("server", ["sh", "-c", "echo it is broken; echo; exit 3"])
        with pytest.raises(ClusterError, match=r"server has ended: it is broken; see .*logs/server.log"):
            until(lambda: launcher.check() is not None)
    assert (tmp_path / "logs" / "server.log").stat().st_mode & 0o777 == 0o600


def test_nodes_are_started_again(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    with Launcher(tmp_path / "logs") as launcher:
        launcher.start("node", ["sh", "-c", f"echo $$ >> {lines}"], again=True)
        assert until(lambda: lines.exists() and lines.read_text().count("\n") >= 3)
        launcher.check()
        launcher.end("node")
        time.sleep(1.5)
        before = lines.read_text()
        time.sleep(1.5)
        assert lines.read_text() == before


_IMPATIENT = """
from fedmime.deploy.flower import keeper

keeper._PAUSE, keeper._LOOK = 0.01, 0.01
keeper.main()
"""


def test_a_process_that_cannot_start_is_given_up(tmp_path: Path) -> None:
    """It is tried again after pauses that grow, and then told of like one that is not to be started again."""
    lines = tmp_path / "lines"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", _IMPATIENT], **pipes) as keeping:
        command = ["sh", "-c", f"date +%s.%N >> {lines}; exit 7"]
        order = {"name": "node", "command": command, "environment": dict(os.environ), "log": str(tmp_path / "log")}
        keeping.stdin.write(json.dumps(order | {"again": True}) + "\n")
        keeping.stdin.flush()
        assert json.loads(keeping.stdout.readline()) == {"ended": "node", "code": 7}
        keeping.stdin.close()
    times = [float(line) for line in lines.read_text().split()]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) == 6
    assert pauses[-1] > 0.16
    assert pauses[-1] > 2 * pauses[0]


def test_a_process_that_has_lived_is_worth_more_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(keeper.time, "monotonic", lambda: now[0])
    found = keeper._Again({})
    for lived in [1.0] * 5 + [11.0] + [1.0] * 5:
        found.begun()
        now[0] += lived
        assert found.ended()
    found.begun()
    assert not found.ended()


def test_a_free_port_is_another_one_every_time(tmp_path: Path) -> None:
    """A port that somebody else took in the meantime cannot keep a process from being started again."""
    lines = tmp_path / "lines"
    with Launcher(tmp_path / "logs") as launcher:
        launcher.start("node", ["sh", "-c", f"echo $0 >> {lines}", keeper.FREE_PORT], again=True)
        assert until(lambda: lines.exists() and lines.read_text().count("\n") >= 2)
    assert len({int(line) for line in lines.read_text().split()}) > 1


@pytest.mark.parametrize("name", [*OPENING, "FLWR_DATABASE", "FLWR_TELEMETRY_ENABLED"])
def test_no_variable_of_the_user_changes_whom_flower_serves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "the user's")
    with Launcher(tmp_path / "logs") as launcher:
        launcher.start("env", ["sh", "-c", "env; exec sleep 600"])
        assert until(lambda: launcher.log("env").exists() and "FLWR_HOME" in launcher.log("env").read_text())
        assert "the user's" not in launcher.log("env").read_text()


def test_nothing_is_started_at_a_superlink_without_a_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own program in place of ours, as if a version of Flower had ways past the guard."""
    pytest.importorskip("flwr")
    start = Launcher.start

    def unguarded(self: Launcher, name: str, command: list[str], *rest: Any) -> None:
        start(self, name, ["flower-superlink", *command[command.index("--host") :]], *rest)

    monkeypatch.setattr(Launcher, "start", unguarded)
    keys.make_server(tmp_path / "server", [launchers.LOOPBACK])
    (port,) = launchers.free_ports(1)
    refused = pytest.raises(ClusterError, match="no guard stands before the SuperLink")
    with Launcher(tmp_path / "logs") as launcher, refused:
        launchers.start_superlink(launcher, tmp_path / "server", launchers.LOOPBACK, port, 1000)


def test_a_superlink_that_is_refused_does_not_stay_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is tried, and the first may serve strangers."""
    lines = tmp_path / "lines"
    started = lambda: [int(line) for line in lines.read_text().split()] if lines.exists() else []

    def start(launcher: Launcher, *_: object) -> str:
        before = len(started())
        launcher.start("superlink", ["sh", "-c", f"echo $$ >> {lines}; exec sleep 600"])
        assert until(lambda: len(started()) > before)
        if before < 2:
            raise ClusterError("no guard stands before it")
        return "control"

    monkeypatch.setattr(operate, "start_superlink", start)
    with Launcher(tmp_path / "logs") as launcher:
        assert operate._superlink_anywhere(launcher, tmp_path, 1000)[0] == "control"
        assert [alive(process) for process in started()] == [False, False, True]


def test_nothing_is_reported_home(tmp_path: Path) -> None:
    with Launcher(tmp_path / "logs") as launcher:
        launcher.start("env", ["sh", "-c", "env; exec sleep 600"])
        assert until(lambda: launcher.log("env").exists() and "FLWR_HOME" in launcher.log("env").read_text())
        told = launcher.log("env").read_text().splitlines()
        assert {"FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"} <= set(told)
        assert f"FLWR_HOME={launcher.directory}/flower-env" in told


def test_free_ports_differ() -> None:
    assert len(set(launchers.free_ports(20))) == 20
