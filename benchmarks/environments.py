"""An environment of its own for every peer, made once from the pinned versions in `peers/<peer>.txt`."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / ".envs"
PEERS = ("pytorch", "fedjax", "pfl", "flower")


@dataclasses.dataclass(frozen=True)
class Environment:
    """Where a peer's Python is, or why it is not there."""

    peer: str
    python: Path | None
    seconds: float = 0.0  # that the installation took just now; 0 where it was there already
    absent: str = ""
    versions: str = ""

    def facts(self) -> dict[str, object]:
        return {"installed_in": self.seconds, "absent": self.absent, "versions": self.versions}


def ensure(peer: str, root: Path = ENVIRONMENTS, pins: Path = HERE / "peers") -> Environment:
    """The peer's environment, made if it is missing or its pins changed. A failure is reported, never hidden."""
    wanted = (pins / f"{peer}.txt").read_text()
    place, stamp = root / peer, root / peer / "installed"
    python, told = place / "bin" / "python", main_versions(wanted)
    mark = hashlib.sha256(wanted.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == mark:
        return Environment(peer, python, versions=told)
    start = time.perf_counter()
    shutil.rmtree(place, ignore_errors=True)
    try:
        run([sys.executable, "-m", "venv", str(place)])
        # All versions are pinned, so nothing is resolved: pip cannot pull in a build with CUDA behind torch.
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        run([*pip, "--requirement", str(pins / f"{peer}.txt")])
    except (subprocess.SubprocessError, OSError) as error:
        return Environment(peer, None, time.perf_counter() - start, reason(error), told)
    stamp.write_text(mark)
    return Environment(peer, python, time.perf_counter() - start, versions=told)


def run(command: list[str], timeout: float = 1800) -> None:
    """Run to the end; what it printed is in the error if it fails."""
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=timeout)


def reason(error: Exception) -> str:
    """One line that says why an installation failed."""
    lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
    told = [line for line in lines if line.upper().startswith("ERROR")] or lines or [type(error).__name__]
    return told[-1][:200]


def main_versions(pins: str) -> str:
    """The versions a reader wants to see."""
    shown = ("fedjax", "jax", "torch", "pfl", "flwr", "ray")
    pairs = dict(line.split("==") for line in pins.split() if "==" in line)
    return ", ".join(f"{name} {pairs[name]}" for name in shown if name in pairs)
