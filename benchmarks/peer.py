"""The coordinator's side of an entrant: a process that answers requests, see `peers/protocol.py`."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.measure import descendants

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(__file__).parent / "peers"

QUIET = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class PeerError(RuntimeError):
    """An entrant failed; the message says how."""


class Peer:
    """A running entrant. Leaving the context ends it and everything it started."""

    def __init__(
        self, script: str, work: Path, log: Path, python: Path | None = None, cores: Sequence[int] | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._started = time.perf_counter()
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command([str(python or sys.executable), str(SCRIPTS / f"{script}.py"), str(work)], cores),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=environment(own=python is None),
            )
        self._answers: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def age(self) -> float:
        """Seconds since the process was asked for."""
        return time.perf_counter() - self._started

    def ask(self, timeout: float = 900, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._answers.get(timeout=timeout))
        except (OSError, queue.Empty, json.JSONDecodeError) as error:
            self._kill()
            raise PeerError(f"no answer to {request['do']!r} ({type(error).__name__}): {self._last_words()}") from None
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def close(self, patience: float = 60) -> None:
        """Let the entrant end, as it does with its input; what is left of it after a while is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._kill()
        self._listener.join(patience)
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("the end")  # no JSON: an answer will not come any more

    def _kill(self) -> None:
        """End this process and those below it, by their ids."""
        for pid in [*descendants(self._process.pid), self._process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:200] if lines else "it printed nothing"


class Pair:
    """Two running entrants, which get every request at the same time; their answer is the mean of both."""

    def __init__(self, first: Peer, second: Peer) -> None:
        self._both = (first, second)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._both:
            peer.close()

    def age(self) -> float:
        """Seconds since the first process was asked for."""
        return self._both[0].age()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to both, or to the first alone what is written to a file, and wait for the answers."""
        asked = self._both[:1] if "out" in request else self._both
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda peer: peer.ask(**request), asked))
        return {name: sum(answer[name] for answer in answers) / len(answers) for name in answers[0]}


def command(words: Sequence[str], cores: Sequence[int] | None) -> list[str]:
    """The command on the given cores, or on all."""
    return list(words) if cores is None else ["taskset", "--cpu-list", ",".join(map(str, cores)), *words]


def own_cores() -> list[int]:
    """The cores this process may use."""
    return sorted(os.sched_getaffinity(0))


def environment(own: bool) -> dict[str, str]:
    """Variables of an entrant: one thread in BLAS, no accelerators, no telemetry, nothing of ours in its path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAX_", "XLA_"))}
    path = {"PYTHONPATH": str(ROOT / "src")} if own else {}
    return {**inherited, **QUIET, **path, "PYTHONUNBUFFERED": "1"}
