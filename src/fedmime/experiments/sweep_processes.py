"""Worker processes of a sweep on this machine, each with its part of the cores."""

from __future__ import annotations

import builtins
import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from fedmime import errors
from fedmime.errors import ClusterError, FedmimeError, Stopped
from fedmime.experiments.sweep_rounds import Stop
from fedmime.experiments.sweep_spread import Answer, Share

_PROGRAM = "fedmime.experiments.sweep_worker"
_LOOK = 0.2  # seconds between looks for a signal
_PATIENCE = 20.0  # seconds that a process has to save what it is at
_log = logging.getLogger(__name__)


class _Process:
    """One worker process. Its answers, and None when it has ended, go to a queue that all processes share."""

    def __init__(self, number: int, job: str, devices: int, answers: queue.SimpleQueue[Any]) -> None:
        self.number, self._order = number, 0
        # In a session of its own, so that what the terminal sends (Ctrl-C) reaches the parent alone.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | variables(devices),
            start_new_session=True,
        )
        self._send(job)
        self._listener = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self._listener.start()

    def begin(self, share: Share, until: int) -> None:
        """Give it a share, which it answers for in its own time."""
        self._order += 1
        self._send(json.dumps({"order": self._order, "share": share, "until": until}))

    def pause(self) -> None:
        """Let it answer for its share soon, finished or not."""
        self._send(json.dumps({"pause": self._order}))

    def close(self) -> None:
        """End its input, upon which it saves and ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def wait(self, seconds: float) -> str:
        """Wait for its end, and if that does not come, bring it about; says how it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        self._listener.join()
        return f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: its last answer says so
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _listen(self, answers: queue.SimpleQueue[Any]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines, contextlib.suppress(ValueError):  # a last line that is cut off
            for line in lines:
                answers.put((self, json.loads(line)))
        answers.put((self, None))


def variables(devices: int, here: bool = True) -> dict[str, str]:
    """What a worker's environment must say for it to compute as this process does.

    Args:
        devices: of JAX, one for each core.
        here: whether it is on this machine, where it has the same code and the same cache of compiled programs.
    """
    config: Any = jax.config
    found = {"JAX_ENABLE_X64": str(int(config.jax_enable_x64))}
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        found["JAX_NUM_CPU_DEVICES"] = str(devices)
    if here:
        found["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    if here and config.jax_compilation_cache_dir:
        found["JAX_COMPILATION_CACHE_DIR"] = str(config.jax_compilation_cache_dir)
        least = config.jax_persistent_cache_min_compile_time_secs
        found["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = str(least)
    return found


class Processes:
    """So many worker processes. One that dies is not replaced, because what killed it, such as a lack of memory, stays.

    Args:
        job: the sweep's, see `sweep_share.job`.
        count: how many processes.
        devices: devices of JAX, and cores, of each.
    """

    def __init__(self, job: str, count: int, devices: int) -> None:
        self._answers: queue.SimpleQueue[tuple[_Process, dict[str, Any] | None]] = queue.SimpleQueue()
        self._alive = [_Process(number, job, devices, self._answers) for number in range(1, count + 1)]

    @property
    def count(self) -> int:
        """See `Workers.count`."""
        return len(self._alive)

    def run(
        self, shares: Sequence[Share], until: int, on_round: Callable[[], None], stop: Stop
    ) -> tuple[list[Answer], Any]:
        """See `Workers.run`. All are paused when one is idle and another has points to give."""
        busy = dict(zip(self._alive, shares, strict=False))
        for process, share in busy.items():
            process.begin(share, until)
        answers, ended = [], None
        while busy:
            with contextlib.suppress(queue.Empty):
                process, message = self._answers.get(timeout=_LOOK)
                if message is None:
                    self._lose(process)
                    del busy[process]
                elif "error" in message:
                    raise _raised(*message["error"])
                elif "answer" in message:
                    answers.append(_answer(*message["answer"]))
                    del busy[process]
                    if any(len(share) > 1 for share in busy.values()):
                        _pause(busy)
                for _ in range((message or {}).get("rounds", 0)):
                    on_round()
            if not ended and (ended := stop and stop()):
                _pause(busy)
        return answers, ended

    def close(self) -> None:
        """Let processes save what they are at, and end them."""
        for process in self._alive:
            process.close()
        for process in self._alive:
            process.wait(_PATIENCE)
        self._alive = []

    def _lose(self, process: _Process) -> None:
        self._alive.remove(process)
        process.close()
        how = process.wait(_PATIENCE)
        if not self._alive:
            words = f"sweep: no worker process is left, the last one {how}"
            raise ClusterError(f"{words}; what was saved last is whole: the same call goes on from there")
        _log.warning("sweep: worker process %d %s; the others train its points", process.number, how)


def _answer(facts: dict[str, Any], said: list[tuple[str, str]]) -> Answer:
    """An answer as it was before it became JSON."""
    return Answer({int(place): each for place, each in facts.items()}, [(name, words) for name, words in said])


def _pause(busy: Iterable[_Process]) -> None:
    for process in busy:
        process.pause()


def _raised(kind: str, message: str, trace: str) -> Exception:
    """An error that was raised in a process, for this one."""
    found = getattr(errors, kind, getattr(builtins, kind, None))
    if found is not Stopped and isinstance(found, type) and issubclass(found, FedmimeError | OSError | MemoryError):
        error: Exception = found(message)
    else:
        error = RuntimeError(f"{kind}: {message}")
    error.add_note(trace)
    return error
