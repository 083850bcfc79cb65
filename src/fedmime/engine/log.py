"""The log of a run: what is written down after every round, and when a run is given up as diverged.

`Log` collects one row per round and, for a run with a directory, writes it there together with checkpoints, models and
the run's status.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from fedmime.aggregation.communication import Cost
from fedmime.aggregation.gate import Gate
from fedmime.algorithms.algorithm import State
from fedmime.engine.backends.backend import Work
from fedmime.engine.cohort import ClientId
from fedmime.engine.round import Info
from fedmime.errors import Diverged, FedmimeError, Stopped
from fedmime.runs import history
from fedmime.runs.directory import BEST, RunDirectory
from fedmime.runs.notes import notes


class Log:
    """The history of a run, in memory and, where the run has a directory, on disk. It is a context manager.

    On entry the status of the run becomes "running"; if the block ends in an error, the status says so.

    Args:
        rounds: number of rounds of the whole run.
        gate: says when a run is given up.
        cost: bytes that a client sends and receives in a round.
        directory: where everything is written; None keeps the rows in memory only.

    Attributes:
        rows: one dictionary of figures per round, those of rounds before a resumption included.
    """

    def __init__(self, rounds: int, gate: Gate, cost: Cost, directory: RunDirectory | None) -> None:
        self._directory, self._rounds, self._gate, self._cost = directory, rounds, gate, cost
        self.rows: list[dict[str, Any]] = [] if directory is None else directory.rows
        scores = [score for row in self.rows if (score := history.score(row)) is not None]
        self._best = max(scores, default=-math.inf)

    def __enter__(self) -> Self:
        if self._directory is not None:
            self._directory.status("running", len(self.rows), self._rounds)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self._directory is None or error is None:
            return
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        told = str(error) if isinstance(error, FedmimeError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            self._directory.status("preempted" if stopped else "failed", len(self.rows), self._rounds, told)

    def write(
        self, work: Work, info: Info, measured: Mapping[str, float], telemetry: Mapping[str, float] | None = None
    ) -> None:
        """Add the row of a round.

        Args:
            work: the round's cohort and algorithm, from which the communicated bytes follow.
            info: what happened in the round.
            measured: metrics that were evaluated after it, by name.
            telemetry: what the back end says about it, see `Backend.telemetry`.

        Raises:
            Diverged: this round exhausts the gate's patience. The row is written first, with the reason.
        """
        sent, reason = _sent(work, info, self._cost), _given_up(self.rows, info, self._gate)
        before = self.rows[-1]["bytes_total"] if self.rows else 0
        row = {**info._asdict(), "refused": len(info.refused)}
        row |= {f"refused_{reason}": number for reason, number in row.pop("reasons").items()}
        for name in ("clipped", "clip_norm", "epsilon"):  # of some runs only
            if math.isnan(row[name]):
                del row[name]
        if info.refused:
            notes.info("round %d left out: %s", info.round, ", ".join(map(repr, info.refused)))
        row |= {"bytes_down": sent[0], "bytes_up": sent[1], "bytes_total": before + sum(sent)}
        row |= measured
        told = telemetry or {}
        timings = {name: value for name, value in told.items() if name.startswith("seconds")}
        row |= {name: value for name, value in told.items() if name not in timings}
        row |= {} if reason is None else {"reason": reason}
        if self._directory is None:
            self.rows.append(row)
        else:
            self._directory.row(row, timings)
        if reason is not None:
            raise Diverged(f"simulate: {reason}; {work.algorithm.remedy}")

    def best(self, state: State, measured: Mapping[str, float]) -> None:
        """Export the model if what was measured after the round is the best so far; nothing may have been measured."""
        score = history.score(measured) if self._directory is not None and measured else None
        if self._directory is not None and score is not None and score > self._best:
            self._best = score
            self._directory.export(state, BEST)

    def save(self, state: State) -> None:
        """Write a checkpoint of the state after the last row, if the run has a directory."""
        if self._directory is not None:
            self._directory.save(state)
            self._directory.status("running", state.round, self._rounds)

    def clients(self, t: int, ids: Sequence[ClientId], each: Mapping[str, np.ndarray], sizes: np.ndarray) -> None:
        """Write the metrics of single clients, if the run has a directory.

        Args:
            t: the round.
            ids: names of the clients.
            each: for every metric, its values [clients].
            sizes: test examples of each client [clients].
        """
        if self._directory is not None:
            lists = {name: [history.clean(v) for v in values.tolist()] for name, values in each.items()}
            self._directory.clients({"round": t, "ids": list(ids), **lists, "examples": sizes.tolist()})

    def finish(self, state: State) -> None:
        """Export the final model and set the status of the run to "done"."""
        if self._directory is not None:
            self._directory.export(state)
            self._directory.status("done", state.round, self._rounds)


def _sent(work: Work, info: Info, cost: Cost) -> tuple[int, int]:
    """Bytes that the whole cohort receives and sends in a round: (down, up). Pooled training communicates nothing."""
    if work.algorithm.pooled:
        return 0, 0
    if info.primed and cost.prime is not None:
        probing = len(work.cohort.probing)
        return probing * cost.prime.down, probing * cost.prime.up
    training, update = len(work.cohort.training), cost.update
    others, gradient = len(work.cohort.members) - training, update if cost.gradient is None else cost.gradient
    return training * update.down + others * gradient.down, training * update.up + others * gradient.up


def _given_up(rows: list[dict[str, Any]], info: Info, gate: Gate) -> str | None:
    """The reason why a run ends with this round; None if it goes on.

    A run is given up when the last `gate.patience` rounds were all abandoned. An abandoned round without clients does
    not count: that nobody was available is no sign of divergence.
    """
    lost = [row["abandoned"] and row["clients"] for row in rows[-gate.patience :]] + [info.abandoned and info.clients]
    if len(lost) < gate.patience or not all(lost[-gate.patience :]):
        return None
    return f"{gate.patience} rounds in a row gave no finite or bounded model, the last of them round {info.round}"
