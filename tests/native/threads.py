"""The threads of this process."""

import contextlib
import os


def cores() -> list[set[int]]:
    """Which cores each may use."""
    found = []
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # a thread that has ended meanwhile
            found.append(os.sched_getaffinity(int(name)))
    return found
