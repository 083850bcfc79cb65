"""How an entrant talks to the coordinator: one JSON request a line on stdin, one JSON answer a line on stdout.

{"do": "prepare", "case": {...}}            build the case and run one round
{"do": "stretch", "case": name, "seconds": s}   run rounds for so long, at least one: wall and CPU of one, peak memory
{"do": "check", "case": name, "rounds": r, "out": path}   start again, run r rounds, save the weights
{"do": "stop"}                              end; so does the end of stdin
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from measure import cpu_seconds, peak_bytes
from work_file import WorkFile

Case = dict[str, Any]


class Runner(Protocol):
    """One case of an entrant, ready to run."""

    def round(self) -> dict[str, Any] | None:
        """Run one round, of which a framework may leave something to be computed later; may tell further figures."""
        ...

    def wait(self) -> None:
        """Until everything is computed."""
        ...

    def reset(self) -> None:
        """Back to the first weights."""
        ...

    def weights(self) -> dict[str, np.ndarray]:
        """The server model in the layout of the work file."""
        ...


def serve(build: Callable[[WorkFile, Case], Runner], path: str | None = None) -> None:
    """Answer requests until told to stop."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to the log
    work = WorkFile(path or sys.argv[1])
    runners: dict[str, Runner] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "stop":
            break
        try:
            answer = _answer(request, build, work, runners)
        except Exception as error:  # told to the coordinator, which goes on without this case
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(
    request: dict[str, Any], build: Callable[[WorkFile, Case], Runner], work: WorkFile, runners: dict[str, Runner]
) -> dict[str, Any]:
    if request["do"] == "prepare":
        case = request["case"]
        runners[case["name"]] = build(work, case)
        return _measured(runners[case["name"]])
    runner = runners[request["case"]]
    if request["do"] == "stretch":
        return _measured(runner, request["seconds"])
    if request["do"] != "check":
        raise ValueError(f"unknown request {request['do']!r}")
    runner.reset()
    for _ in range(request["rounds"]):
        runner.round()
    runner.wait()
    np.savez(request["out"], **runner.weights())
    return {}


def _measured(runner: Runner, seconds: float = 0) -> dict[str, Any]:
    cpu, start = cpu_seconds(), time.perf_counter()
    told = [runner.round() or {}]
    while time.perf_counter() - start < seconds:
        told.append(runner.round() or {})
    runner.wait()
    wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    rounds, compiled = sum(more.get("rounds", 1) for more in told), sum(more.get("compiled", 0) for more in told)
    return {"wall": wall / rounds, "cpu": cpu / rounds, "memory": peak_bytes(), "compiled": compiled}
