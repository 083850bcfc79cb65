"""What runs were asked to do, under names that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedmime.report.recorded import Recorded


def configurations(runs: Sequence[Recorded]) -> list[Mapping[str, Any]]:
    """The configuration of every run, as it was recorded where all runs were made in the same way.

    The command line records settings, `simulate` the facts that decide a run's numbers, or what it is given. Their
    names do not match, but all directories hold these facts, so runs made in several ways are told by them.
    """
    ways = {("task" in run.config, isinstance(run.config.get("algorithm"), Mapping)) for run in runs}
    if len(ways) < 2 or not all(run.identity for run in runs):
        return [run.config for run in runs]
    return [{**run.identity, "rounds": run.status.get("rounds")} for run in runs]
