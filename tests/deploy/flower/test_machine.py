"""What tests of deployments look for after a run: processes and ports that are left, whatever their commands say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy.flower.machine import environment, left_over, listening, open_ports, ports_of

_LISTENS = """
import socket, sys
found = socket.socket({family})
found.bind(({host!r}, 0))
found.listen()
print(found.getsockname()[1], flush=True)
sys.stdin.read()
"""


def _started(home: Path, family: str, host: str) -> tuple[subprocess.Popen[str], int]:
    """A process in a session of its own that listens, and whose command names no path."""
    code = _LISTENS.format(family=family, host=host)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    found = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(home), text=True, start_new_session=True, **pipes
    )
    assert found.stdout is not None
    return found, int(found.stdout.readline())


def test_a_process_that_is_left_and_its_ports_are_found(tmp_path: Path) -> None:
    home, logs = tmp_path / "one", tmp_path / "one" / "run" / "logs"
    logs.mkdir(parents=True)
    (logs / "superlink.log").write_text("at 127.0.0.1:1024")
    four, port = _started(home, "socket.AF_INET", "127.0.0.1")
    six, other = _started(home, "socket.AF_INET6", "::1")
    with four, six:
        try:
            assert [line.partition(":")[0] for line in left_over(home)] == sorted(map(str, (four.pid, six.pid)))
            assert listening(logs) == {port, other}
            assert left_over(tmp_path / "on") == []  # a name that begins like it
            assert ports_of([four.pid], open_ports()) == {port}
        finally:
            four.terminate()
            six.terminate()
    assert left_over(home) == []
    assert listening(logs) == set()
