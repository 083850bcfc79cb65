"""The directory of a run: who writes to it, what was asked, what happened, and how to resume exactly.

A run directory holds `identity.json` (the facts that decide every number of the run), `config.yaml`, `metrics.jsonl`
(one line per round), `timings.jsonl`, `status.json`, `log.txt`, `checkpoints/`, TensorBoard events in `tb/`, where
callbacks stand in `tracked/`, and the exported models. One process at a time may write to it, which a lock file
ensures. Files are written atomically or appended to; a checkpoint records the length and digest of `metrics.jsonl`, and
resuming cuts the file back to it. So a run that is killed at any time and started again has the same history and model
as an unbroken one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from fedmime.algorithms.algorithm import State, params
from fedmime.errors import CheckpointError, ConfigError, LockError
from fedmime.files import flush, read_object, require_writable, sha256_of, whole_file
from fedmime.runs import history, identity, provenance
from fedmime.runs.checkpoint import Checkpoints, Saved
from fedmime.runs.disk_memory import DiskMemory
from fedmime.runs.notes import notes, warnings, written_to
from fedmime.validation import count, flag
from fedmime.vector import by_place

IDENTITY, CONFIG, STATUS, LOG, LOCK = "identity.json", "config.yaml", "status.json", "log.txt", "run.lock"
ENVIRONMENT = "env.json"
TIMINGS, CLIENTS, MEMORY = "timings.jsonl", "clients.json", "clients.memory"
MODEL, BEST, CHECKPOINTS, EVENTS = "model.safetensors", "best.safetensors", "checkpoints", "tb"
INITIAL = "initial.safetensors"  # the model that the run was given to start from
TRACKED = "tracked"  # where callbacks stand
_RESULTS = (TIMINGS, CLIENTS, MEMORY, INITIAL, MODEL, BEST, CHECKPOINTS, EVENTS, TRACKED, history.METRICS)
_OURS = (IDENTITY, CONFIG, STATUS, LOG, *_RESULTS)  # what a fresh start removes


@dataclasses.dataclass(frozen=True)
class Saving:
    """How a run with a directory is saved.

    Args:
        every: rounds between checkpoints; the last round is always saved.
        keep: how many of the last checkpoints stay, beside the best one.
        fresh: remove an earlier run in the directory instead of going on with it.
    """

    every: int = 50
    keep: int = 3
    fresh: bool = False

    def __post_init__(self) -> None:
        count("saving", "every", self.every, least=1)
        count("saving", "keep", self.keep, least=1)
        flag("saving", "fresh", self.fresh)


class RunDirectory:
    """The files of a run. As a context manager it holds the lock: only one process at a time can be in it.

    The order of calls is `claim`, `resume`, then `row`, `save`, `export` and `status` as the run proceeds.

    Args:
        path: the directory, which is created if it does not exist.
        keep: how many of the latest checkpoints stay, besides the best.

    Attributes:
        rows: the history so far, one dictionary per round.
        checkpoints: the run's checkpoints, once `claim` or `check` was called.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path, self._keep = path, keep
        self.rows: list[dict[str, Any]] = []
        self._stack = contextlib.ExitStack()
        self._began, self._before = time.monotonic(), 0.0

    def __enter__(self) -> Self:
        """Create the directory and take the lock; `LockError` if another process has it."""
        import filelock

        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._stack.enter_context(filelock.FileLock(self.path / LOCK, timeout=0))
        except filelock.Timeout:
            raise LockError(f"run directory {str(self.path)!r} is in use by another process") from None
        self._lock = os.stat(self.path / LOCK)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def check(self, facts: Mapping[str, Any], fresh: bool, rounds: int) -> None:
        """Raise what `claim` and `resume` would raise, without writing anything, for a dry run.

        Args:
            facts: the identity of the run, see `identity.facts`.
            fresh: whether an earlier run in the directory would be removed.
            rounds: number of rounds of the whole run.
        """
        require_writable(self.path)
        if (self.path / LOCK).exists():
            with self:
                pass
        if not fresh:
            self._open(facts, rounds)
            self._saved()

    def claim(self, facts: Mapping[str, Any], config: Mapping[str, Any], layout: str, fresh: bool, rounds: int) -> None:
        """Make the directory this run's own and write down what was asked.

        Args:
            facts: the identity of the run. A directory that holds a run with other facts is refused with
                `CheckpointError`.
            config: the configuration, as the user gave it.
            layout: how cohorts are divided, `Backend.layout`. A run may go on with another one, and says so.
            fresh: remove an earlier run in the directory, instead of continuing or refusing it.
            rounds: number of rounds of the whole run. A run that has finished more is refused with `ConfigError`.
        """
        import yaml

        if fresh:
            self._clear()
        self._open(facts, rounds)
        before = provenance.layout_in(self.path / ENVIRONMENT)
        for name, text in {
            CONFIG: yaml.safe_dump(dict(config), sort_keys=False),
            "command.txt": shlex.join(sys.argv) + "\n",
            ENVIRONMENT: json.dumps(provenance.environment() | {"layout": layout}, indent=1),
            "data.json": json.dumps(facts.get("data", {}), indent=1),
            IDENTITY: json.dumps(dict(facts), indent=1),
        }.items():
            self._write(name, text)
        self._stack.enter_context(written_to(self.path / LOG))
        if before not in (None, layout) and self.checkpoints.rounds():
            words = "%r was computed on %s and goes on with %s: sums are rounded differently in their last bits"
            warnings.warning(words, str(self.path), before, layout)

    def resume(self, state: State, blank: Any, given: bool = False) -> State:
        """The state from which the run continues, and the files brought back to it.

        That is the state of the newest sound checkpoint, or the given one if there is none. History, timings and events
        of later rounds are cut off, and newer or unfinished checkpoints are removed.

        Args:
            state: the state before the first round; it also provides the structure for the arrays of a checkpoint.
            blank: what a client that was never seen keeps. If it has arrays, the client memory is opened on disk.
            given: whether the model of the state was given by the user. It is kept, so that the run can go on without
                its source.
        """
        if given:
            self.export(state, INITIAL)
        for left in self.path.glob(".*.tmp"):  # temporary files that a killed process left
            left.unlink()
        saved = self._saved()
        finished = 0 if saved is None else saved.round
        self._cut(finished, 0 if saved is None else saved.facts["metrics_bytes"])
        self.checkpoints.drop_after(finished)
        if saved is None:
            (self.path / MEMORY).unlink(missing_ok=True)
        else:
            notes.info("going on after round %d", finished)
            server, aggregation, losses = _rebuilt((state.server, state.aggregation, state.losses), saved, self.path)
            state = State(
                finished,
                server,
                aggregation=aggregation,
                losses=jax.tree.map(np.asarray, losses),
                repeats=saved.facts.get("repeats", 0),
            )
        if jax.tree.leaves(blank):
            indexes = {n: _index(self.checkpoints.facts(n)) for n in self.checkpoints.rounds()}
            memory = DiskMemory(blank, self.path / MEMORY, indexes.get(finished), indexes)
            state = state._replace(memory=memory)
        self._events(finished)
        return state

    def row(self, row: dict[str, Any], timings: Mapping[str, float] | None = None) -> None:
        """Append the figures of a round to the history, the timings and the TensorBoard events.

        Args:
            row: what was computed, which is the same whenever the run is repeated.
            timings: durations beside that of the run so far.
        """
        self.rows.append(row)
        took = {"round": row["round"], "seconds": round(self.seconds(), 3), **(timings or {})}
        self._append(history.METRICS, history.line(row))
        self._append(TIMINGS, history.line(took))
        for name, value in row.items():
            if isinstance(value, float) and np.isfinite(value):
                self._tb.add_scalar(name, value, row["round"] + 1)

    def save(self, state: State) -> None:
        """Write a checkpoint of the state after the last row.

        Besides the server's arrays it records the index of the client memory, the score of the last round, and the
        length and digest of the history, so that a resumed run can verify that they belong together.
        """
        self._require()
        metrics = self.path / history.METRICS
        flush(metrics)
        index = state.memory.commit(state.round) if isinstance(state.memory, DiskMemory) else {}
        facts = {
            "round": state.round,
            "metrics_bytes": metrics.stat().st_size,
            "metrics_sha256": sha256_of(metrics),
            "score": history.score(self.rows[-1]) if self.rows else None,
            "clients": list(index),
            "slots": list(index.values()),
            "repeats": state.repeats,
        }
        for gone in self.checkpoints.save(state.round, _arrays(state), facts):
            if isinstance(state.memory, DiskMemory):
                state.memory.release(gone)

    def status(self, state: str, done: int, rounds: int, reason: str | None = None) -> None:
        """Write `status.json`.

        Args:
            state: "running", "done", "preempted" or "failed".
            done: number of finished rounds.
            rounds: number of rounds of the whole run.
            reason: the error that ended the run, if one did.
        """
        facts = {"state": state, "round": done, "rounds": rounds, "reason": reason, "seconds": round(self.seconds(), 3)}
        self._write(STATUS, json.dumps(facts, indent=1))

    def export(self, state: State, name: str = MODEL) -> None:
        """Write the server model as safetensors, with the digest of the configuration and the round as metadata."""
        from safetensors.numpy import save

        model = by_place(jax.device_get(params(state)))
        named = {place: np.ascontiguousarray(leaf) for place, leaf in model.items()}
        self._write(name, save(named, {"run": f"{self._configuration} after {state.round} rounds"}))

    def clients(self, facts: Mapping[str, Any]) -> None:
        """Write the metrics of single clients, which replace those of an earlier evaluation."""
        self._write(CLIENTS, json.dumps(facts))

    def seconds(self) -> float:
        """Wall-clock seconds that the run took so far, those before a resumption included."""
        return self._before + time.monotonic() - self._began

    def _open(self, facts: Mapping[str, Any], rounds: int) -> None:
        """Prepare access to the checkpoints of the run with these facts.

        A directory with another run is refused, and so is a run that has finished more rounds than it is to have.
        """
        if (self.path / IDENTITY).is_file():
            self._compare(facts)
        self._configuration = identity.digest(facts)
        self.checkpoints = Checkpoints(self.path / CHECKPOINTS, self._keep, self._configuration)
        if max(self.checkpoints.rounds(), default=0) > rounds:
            saved = self._saved()  # an unsound checkpoint does not count
            if saved is not None and saved.round > rounds:
                done = f"{str(self.path)!r} has finished {saved.round} rounds"
                raise ConfigError(f"rounds: {done}, so accepted are {saved.round} and more, got {rounds}")

    def _saved(self) -> Saved | None:
        """The newest sound checkpoint, after the history before it was verified against its length and digest.

        Returns:
            None if there is no checkpoint.

        Raises:
            CheckpointError: the history was changed or cut since the checkpoint was written.
        """
        saved, metrics = self.checkpoints.newest(), self.path / history.METRICS
        if saved is not None:
            lines = metrics.read_bytes() if metrics.is_file() else b""
            length, digest = (saved.facts.get(name) for name in ("metrics_bytes", "metrics_sha256"))
            if hashlib.sha256(lines[:length]).hexdigest() != digest:
                told = f"is not what checkpoint {saved.round} says: lines are missing or changed"
                raise CheckpointError(f"{str(metrics)!r} {told}")
        return saved

    def _compare(self, facts: Mapping[str, Any]) -> None:
        """Refuse to continue a run with other facts than the recorded ones; the error names up to five of them."""
        theirs = read_identity(self.path)
        if found := identity.differences(json.loads(json.dumps(facts)), theirs):
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            raise CheckpointError(
                f"{str(self.path)!r} holds a run of another configuration ({'; '.join(found[:5])}{more}); "
                "choose another directory or start afresh (fresh=True)"
            )

    def _clear(self) -> None:
        """Remove the files of an earlier run; files that this package does not write stay."""
        for name in _OURS:
            path = self.path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def _cut(self, finished: int, length: int) -> None:
        """Bring history and timings back to a checkpoint.

        Args:
            finished: rounds that the checkpoint has finished.
            length: bytes of the history at that time.
        """
        metrics, timings = self.path / history.METRICS, self.path / TIMINGS
        for path in (metrics, timings):
            path.touch()
        with metrics.open("rb+") as file:
            file.truncate(length)
        self.rows = history.read_rows(metrics)
        lines = timings.read_bytes().split(b"\n")[:finished]
        timings.write_bytes(b"".join(text + b"\n" for text in lines))
        with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
            self._before = float(json.loads(lines[-1])["seconds"])

    def _events(self, finished: int) -> None:
        """Open the TensorBoard writer; events after the last finished round are purged."""
        from tensorboardX import SummaryWriter

        self._tb = SummaryWriter(str(self.path / EVENTS), purge_step=finished + 1 if finished else None)
        self._stack.callback(self._tb.close)

    def _require(self) -> None:
        """Verify that the directory is still the one that was locked.

        If it was removed or replaced while the run went on, writing would silently create a second run without its
        history.
        """
        if not os.path.samestat(os.stat(self.path / LOCK), self._lock):
            raise FileNotFoundError(errno.ENOENT, "another directory was put in place of the run's", str(self.path))

    def _write(self, name: str, content: str | bytes) -> None:
        """Write a whole file atomically, replacing an earlier one."""
        self._require()
        with whole_file(self.path / name) as temporary:
            temporary.write_bytes(content if isinstance(content, bytes) else content.encode())

    def _append(self, name: str, text: str) -> None:
        """Append text to a file that exists; a file that was removed meanwhile is an error and not created again."""
        self._require()
        with open(self.path / name, "a", encoding="utf-8", opener=_existing) as file:
            file.write(text)


def read_identity(run: Path) -> dict[str, Any]:
    """The facts of the run in a directory; `CheckpointError` if the file is damaged."""
    try:
        return read_object(run / IDENTITY)
    except ValueError as error:
        raise CheckpointError(f"{error}; choose another directory or start afresh (fresh=True)") from None


def _existing(path: str, flags: int) -> int:
    """An opener for `open` that does not create files."""
    return os.open(path, flags & ~os.O_CREAT)


def _index(facts: Mapping[str, Any]) -> dict[int, int]:
    """The index of the client memory, slots by client, as a checkpoint records it."""
    return dict(zip(facts.get("clients", ()), facts.get("slots", ()), strict=True))


def _arrays(state: State) -> list[Any]:
    """What a checkpoint holds of a state: the arrays of the server and of the aggregator, and losses for a sampler."""
    return jax.tree.leaves(jax.device_get((state.server, state.aggregation, state.losses)))


def _rebuilt(server: Any, saved: Saved, path: Path) -> Any:
    """The server state with the arrays of a checkpoint; `CheckpointError` if their shapes or types do not fit.

    Empty arrays are not stored in a checkpoint and are left out of the comparison.
    """
    leaves, structure = jax.tree.flatten(server)
    found, wanted = ([(a.shape, np.dtype(a.dtype)) for a in arrays] for arrays in (saved.arrays, leaves))
    if [f for f in found if f[0] != (0,)] != [w for w in wanted if np.prod(w[0]) != 0]:
        raise CheckpointError(f"the checkpoint of round {saved.round} in {str(path)!r} is of another model")
    arrays = [np.asarray(a, kind).reshape(shape) for a, (shape, kind) in zip(saved.arrays, wanted, strict=True)]
    return jax.tree.unflatten(structure, [jax.numpy.asarray(a) for a in arrays])
