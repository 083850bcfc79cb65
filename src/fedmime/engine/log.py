"""What a run writes down after every round, and when it gives up."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from fedmime.aggregation.communication import Cost
from fedmime.algorithms.algorithm import State
from fedmime.engine import record
from fedmime.engine.backends.backend import Work
from fedmime.engine.cohort import ClientId
from fedmime.engine.directory import BEST, RunDirectory
from fedmime.engine.notes import notes
from fedmime.engine.round import LARGEST, Info
from fedmime.errors import Diverged, FedmimeError, Stopped
from fedmime.numbers import POSITIVE, count, real


@dataclasses.dataclass(frozen=True)
class Gate:
    """What is not let through.

    Args:
        largest: a client's or the server's update longer than so many times 1 + ‖x‖ has exploded; the client is left
            out, the round abandoned.
        patience: abandoned rounds in a row after which a run ends as diverged.
    """

    largest: float = LARGEST
    patience: int = 3

    def __post_init__(self) -> None:
        real("gate", "largest", self.largest, POSITIVE)
        count("gate", "patience", self.patience, least=1)


class Log:
    """The rows of a run's history, also in its directory where there is one."""

    def __init__(self, rounds: int, gate: Gate, cost: Cost, directory: RunDirectory | None) -> None:
        self._directory, self._rounds, self._gate, self._cost = directory, rounds, gate, cost
        self.rows: list[dict[str, Any]] = [] if directory is None else directory.rows
        self._best = max((row.get("test_accuracy") or 0.0 for row in self.rows), default=-1.0)

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

    def write(self, work: Work, info: Info, measured: Mapping[str, float]) -> None:
        """Add a round. The one with which the gate's patience ends says so and raises `Diverged`."""
        sent, reason = _sent(work, info, self._cost), _given_up(self.rows, info, self._gate)
        before = self.rows[-1]["bytes_total"] if self.rows else 0
        row = {**info._asdict(), "refused": len(info.refused)}
        if info.refused:
            notes.info("round %d left out: %s", info.round, ", ".join(map(repr, info.refused)))
        row |= {"bytes_down": sent[0], "bytes_up": sent[1], "bytes_total": before + sum(sent)}
        row |= measured
        row |= {} if reason is None else {"reason": reason}
        if self._directory is None:
            self.rows.append(row)
        else:
            self._directory.row(row)
        if reason is not None:
            raise Diverged(f"simulate: {reason}; lower eta")

    def best(self, state: State, score: float | None) -> None:
        """Write the model if it is the best so far."""
        if self._directory is not None and score is not None and score > self._best:
            self._best = score
            self._directory.export(state, BEST)

    def save(self, state: State) -> None:
        """Write a checkpoint."""
        if self._directory is not None:
            self._directory.save(state)
            self._directory.status("running", state.round, self._rounds)

    def clients(self, t: int, ids: Sequence[ClientId], each: Mapping[str, np.ndarray], sizes: np.ndarray) -> None:
        """Write the figures of single clients."""
        if self._directory is not None:
            lists = {name: [record.clean(v) for v in values.tolist()] for name, values in each.items()}
            self._directory.clients({"round": t, "ids": list(ids), **lists, "examples": sizes.tolist()})

    def finish(self, state: State) -> None:
        """Write the model and that the run is done."""
        if self._directory is not None:
            self._directory.export(state)
            self._directory.status("done", state.round, self._rounds)


def _sent(work: Work, info: Info, cost: Cost) -> tuple[int, int]:
    """Bytes down and up in a round."""
    if work.algorithm.pooled:
        return 0, 0
    everyone, training = len(work.cohort.members), len(work.cohort.training)
    if info.primed and cost.prime is not None:
        return everyone * cost.prime.down, everyone * cost.prime.up
    if cost.gradient is None:
        return everyone * cost.update.down, everyone * cost.update.up
    asked = everyone - training
    return (
        training * cost.update.down + asked * cost.gradient.down,
        training * cost.update.up + asked * cost.gradient.up,
    )


def _given_up(rows: list[dict[str, Any]], info: Info, gate: Gate) -> str | None:
    """Why a run ends with this round, if it does. A round to which nobody came is no sign of divergence."""
    lost = (
        [bool(row["abandoned"] and row["clients"]) for row in rows[-(gate.patience - 1) :]] if gate.patience > 1 else []
    )
    if len(lost) < gate.patience - 1 or not all([*lost, info.abandoned and info.clients]):
        return None
    return f"{gate.patience} rounds in a row gave no finite or bounded model, the last of them round {info.round}"
