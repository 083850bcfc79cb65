"""The command line in a process of its own, and what it may have left behind on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
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
    """Temporary directories of deployments in a directory, and processes of the deployments that ran there."""
    return [*map(str, of.glob("fedmime-deploy-*")), *map(_told, processes(of))]


def processes(of: Path) -> list[int]:
    """The processes of this machine whose command names a path below a directory, or whose environment does.

    Whatever a test starts by this module has its temporary files there, and hands that on to what it starts itself: a
    worker, whose command names nothing, is found by it.
    """
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            told = [Path(f"/proc/{process}/{name}").read_bytes() for name in ("cmdline", "environ")]
            named = any(re.search(re.escape(os.fsencode(of)) + rb"(?![\w-])", text) for text in told)
            if named and int(process) != os.getpid():
                found.append(int(process))
    return found


def _told(process: int) -> str:
    with contextlib.suppress(OSError):
        return f"{process}: " + Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(
            errors="replace"
        )
    return f"{process}"


def listening(logs: Path) -> set[int]:
    """The ports at which somebody still listens, of those that a deployment's logs name and of all its processes.

    Args:
        logs: the deployment's, below the directory of its temporary files.
    """
    text = "".join(file.read_text(errors="replace") for file in logs.glob("*.log"))
    named = {int(port) for port in re.findall(r"(?:127\.0\.0\.1|localhost):(\d{4,5})", text)}
    assert named
    sockets = open_ports()
    left = {home for home in logs.parents if home != Path(tempfile.gettempdir()) and len(home.parts) > 3}
    ours = {process for home in left for process in processes(home)}
    return (named & set(sockets.values())) | ports_of(ours, sockets)


def open_ports(process: int | str = "self") -> dict[str, int]:
    """The TCP ports at which somebody listens in the network of a process, by the inodes of the sockets."""
    lines = [line.split() for kind in ("tcp", "tcp6") for line in _lines(Path(f"/proc/{process}/net/{kind}"))]
    return {line[9]: int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"}


def ports_of(ours: Iterable[int], sockets: Mapping[str, int]) -> set[int]:
    """Those of the sockets that some processes hold."""
    found = set()
    for process in ours:
        with contextlib.suppress(OSError):
            for handle in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    held = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{process}/fd/{handle}"))
                    found |= {sockets[held[1]]} if held and held[1] in sockets else set()
    return found


def _lines(table: Path) -> list[str]:
    return table.read_text().splitlines()[1:] if table.exists() else []
