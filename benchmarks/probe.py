"""Run a probe in a fresh process and read its answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.peer import ROOT, PeerError, command, environment


def probe(
    name: str, asked: dict[str, Any], cores: Sequence[int] | None = None, timeout: float = 1200
) -> dict[str, Any]:
    """The JSON that `benchmarks.probes.<name>` prints last, run on the given cores or on all."""
    words = command([sys.executable, "-m", f"benchmarks.probes.{name}", json.dumps(asked)], cores)
    try:
        done = subprocess.run(
            words, cwd=ROOT, env=environment(own=True), capture_output=True, text=True, timeout=timeout, check=True
        )
    except subprocess.CalledProcessError as error:
        raise PeerError(f"{name}: {(error.stderr.strip().splitlines() or ['it printed nothing'])[-1][:300]}") from None
    except subprocess.TimeoutExpired:
        raise PeerError(f"{name}: not done after {timeout:.0f} s") from None
    return json.loads(done.stdout.strip().splitlines()[-1])
