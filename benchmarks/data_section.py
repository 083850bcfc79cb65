"""The data section: the client store at Stack Overflow's size, measured by `benchmarks/data.py` in its own process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peer import ROOT, environment

QUICK = ["--clients", "20000", "--examples", "760000"]
_LINE = re.compile(r"^(\w+)\s+([\d,.]+)(?:\s+\((.*)\))?$")


def run(out: Path, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Its figures by name, with what it says of their targets."""
    if not (Path(__file__).parent / "data.py").is_file():
        return {"absent": "benchmarks/data.py is not there"}
    say("the client store")
    words = [sys.executable, "-m", "benchmarks.data", *(QUICK if quick else [])]
    done = subprocess.run(
        words, cwd=ROOT, env=environment(own=True), capture_output=True, text=True, timeout=1200, check=False
    )
    if done.returncode:
        return {"absent": (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]}
    return {"rows": parse(done.stdout)}


def parse(printed: str) -> list[dict[str, Any]]:
    """One row for each line `name value (remark)`."""
    found = [match for line in printed.splitlines() if (match := _LINE.match(line.strip()))]
    return [{"name": m[1], "value": float(m[2].replace(",", "")), "remark": m[3] or ""} for m in found]
