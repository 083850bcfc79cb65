"""The command line in a process of its own, and what it may have left behind on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def environment(home: Path) -> dict[str, str]:
    """As users run it: in float32, with optimized programs. Temporary files are in a directory of the test's."""
    paths = os.pathsep.join([str(ROOT / "src"), str(Path(__file__).parent)])
    left = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_ENABLE", "XLA_FLAGS"))}
    return {**left, "PYTHONPATH": paths, "JAX_NUM_CPU_DEVICES": "1", "TMPDIR": str(home)}


def as_users_run_it(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Give the processes that this one starts that environment."""
    for name in os.environ.keys() - environment(home).keys():
        patch.delenv(name)
    for name, value in environment(home).items():
        patch.setenv(name, value)
    patch.setattr(tempfile, "tempdir", str(home))


def command(words: Sequence[object]) -> list[str]:
    """The command line's words as a process."""
    start = "import sys; from fedmime.cli.main import script; script()"
    return [sys.executable, "-c", start, *map(str, words)]


def started(words: Sequence[str], home: Path) -> subprocess.Popen[str]:
    """A process whose output is collected, with temporary files in a directory."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(list(words), env=environment(home), text=True, **pipes)


def program(words: Sequence[object], seconds: float, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, with temporary files in a directory."""
    return subprocess.run(
        command(words), env=environment(home), capture_output=True, text=True, timeout=seconds, check=False
    )


def simulated(deployed: Path, nodes: int, rounds: int, honest: int | None = None) -> Path:
    """The directory of a simulation of a deployed run, with the same clients, or only the first ones of them."""
    out = deployed.with_name(f"{deployed.name}-simulated")
    program = str(Path(__file__).with_name("regrouped.py"))
    words = [sys.executable, program, str(deployed), str(out), str(nodes), str(rounds), str(honest or nodes)]
    subprocess.run(words, env=environment(out.parent), capture_output=True, text=True, timeout=250, check=True)
    return out


def memory(process: int) -> int:
    """The largest number of bytes that a process has ever occupied."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def left_over(of: Path) -> list[str]:
    """Temporary directories of deployments in a directory, and processes whose command names a path below it."""
    found = [str(path) for path in of.glob("fedmime-deploy-*")]
    for name in os.listdir("/proc"):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
        except OSError:
            continue
        if str(of).encode() in line and int(name) != os.getpid():
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def listening(logs: Path) -> set[int]:
    """The ports that a deployment's logs name and at which somebody still listens."""
    text = "".join(file.read_text(errors="replace") for file in logs.glob("*.log"))
    named = {int(port) for port in re.findall(r"(?:127\.0\.0\.1|localhost):(\d{4,5})", text)}
    assert named
    open_ports = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        if state == "0A":
            open_ports.add(int(local.rpartition(":")[2], 16))
    return named & open_ports
