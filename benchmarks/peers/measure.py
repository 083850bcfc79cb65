"""What a process and everything it started has used so far. Standard library only; exact on Linux."""

import os
import resource
import sys
import time
from pathlib import Path

_PROC = Path("/proc")


def cpu_seconds() -> float:
    """User and system time of all threads of this process and of its descendants, alive or waited for."""
    own = time.process_time()
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = sum(sum(map(int, _stat(pid)[11:15])) for pid in descendants(os.getpid()))
    return own + waited.ru_utime + waited.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def peak_bytes() -> int:
    """The largest resident size this process had; or, where that is more, what its whole tree shares fairly now."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    tree = descendants(os.getpid())
    return max(largest, sum(_proportional(pid) for pid in [os.getpid(), *tree])) if tree else largest


def descendants(root: int) -> list[int]:
    """All processes below one, as the process table shows them."""
    parents = {pid: int(stat[1]) for pid in _pids() if len(stat := _stat(pid)) > 1}
    found, frontier = [], [root]
    while frontier:
        frontier = [pid for pid, parent in parents.items() if parent in frontier]
        found += frontier
    return found


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()] if _PROC.is_dir() else []


def _stat(pid: int) -> list[str]:
    """Fields after the command's name (which may hold spaces): state, parent, ... ; empty for a process that ended."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _proportional(pid: int) -> int:
    """Resident bytes, a page shared by k processes counting one k-th."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
