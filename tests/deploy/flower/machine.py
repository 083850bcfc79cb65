"""The command line in a process of its own, and what it may have left behind on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]


def environment() -> dict[str, str]:
    """As users run it: in float32, and with programs optimized. What was compiled is kept for the whole session."""
    paths = os.pathsep.join([str(ROOT / "src"), str(Path(__file__).parent)])
    left = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_ENABLE", "XLA_FLAGS"))}
    return {**left, "PYTHONPATH": paths, "JAX_NUM_CPU_DEVICES": "1"}


def command(words: Sequence[object]) -> list[str]:
    """The command line's words as a process."""
    start = "import sys; from fedmime.cli.main import script; script()"
    return [sys.executable, "-c", start, *map(str, words)]


def program(words: Sequence[object], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        command(words), env=environment(), capture_output=True, text=True, timeout=seconds, check=False
    )


def simulated(deployed: Path, nodes: int) -> Path:
    """The directory of the simulation of a deployed run, with the same clients."""
    out = deployed.with_name(f"{deployed.name}-simulated")
    words = [sys.executable, str(Path(__file__).with_name("regrouped.py")), str(deployed), str(out), str(nodes)]
    subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=250, check=True)
    return out


def left_over(of: Path) -> list[str]:
    """Processes whose command names a path below `of` or a deployment's temporary directory, and such directories."""
    marks = (str(of).encode(), f"{tempfile.gettempdir()}/fedmime-deploy-".encode())
    found = []
    for name in os.listdir("/proc"):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
        except OSError:
            continue
        if any(mark in line for mark in marks) and int(name) != os.getpid():
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
