"""A process beside the driver, run as a script: it starts Ray, outlives the driver, and cleans up after it.

Ray starts its processes by forking, which a process that runs JAX must not do; so this script imports neither JAX nor
this package. It lives until its input, a pipe from the driver, ends. If the driver closes the pipe without the farewell
message, it was killed, as Ray does without a message when the driver's node is lost. This process then prints the
explanation, because the driver could not.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys

FAREWELL = "bye"
_PATIENCE = 15.0  # seconds that Ray has to end by itself
_SUDDEN = "the run was ended suddenly, as Ray does when it loses its head or this machine's node"
_RESUME = "what was saved last is whole: resume goes on from there, on any back end"


def watch(start: bool) -> None:
    """Start Ray if asked to, wait for the driver's end, and end what was started with it."""
    child = None
    if start:  # in a process of its own, since Ray may end that as suddenly as the driver
        command = [sys.executable, "-P", __file__, "ray"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: S603
    else:
        _tell({})
    if FAREWELL not in sys.stdin.read():
        sys.stderr.write(f"fedmime: ray: {_SUDDEN}; {_RESUME}\n")
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody has to wait for what else is said there
    if child is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=_PATIENCE)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # what is left of Ray, and this process


def ray() -> None:
    """Start Ray, say where, and wait for the end of the input."""
    import ray

    try:
        # Workers take no CPUs here, so that any number of them fits and Ray starts no idle processes ahead.
        # "local": not one that RAY_ADDRESS names or that was started on this machine before.
        ray.init("local", num_cpus=0, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        _tell({"address": ray.get_runtime_context().gcs_address})
    except Exception as error:  # whatever it is, the driver tells it
        _tell({"error": f"{type(error).__name__}: {error}".partition("\n")[0]})
    sys.stdin.read()
    ray.shutdown()


def _tell(what: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "ray":
        ray()
    else:
        watch(start=sys.argv[1] == "start")
