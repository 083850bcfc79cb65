"""Checkpoints that are complete or absent: Orbax stores the arrays, and a manifest is written last.

`checkpoints/<round>/` holds `state/` (arrays), `run.json` (plain facts) and `MANIFEST.json`: the round, the digest of
the run's configuration, and the size and SHA-256 of every other file. A directory without a manifest was never
finished. A checkpoint that differs from its manifest, whose manifest names another round, or that belongs to another
configuration is rejected with a warning, and the one before it is used.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmime.errors import CheckpointError
from fedmime.files import flush, read_object, sha256_of, whole_file

_log = logging.getLogger(__name__)

STATE, FACTS, MANIFEST, SCHEMA = "state", "run.json", "MANIFEST.json", 2
_OVERHEAD = 2**17  # bytes that a checkpoint takes besides its arrays, with a margin
_SYSTEM_CODE = re.compile(r"os_error_code='(\d+)'")


class Saved(NamedTuple):
    """The content of a checkpoint.

    Attributes:
        round: number of finished rounds.
        arrays: the leaves of the server's state.
        facts: what the run recorded beside them, JSON values.
    """

    round: int
    arrays: list[np.ndarray]
    facts: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: holds one directory per checkpoint; its parent must exist.
        keep: how many of the latest checkpoints stay, besides the best.
        configuration: digest of the run's identity; checkpoints with another digest are rejected.
    """

    def __init__(self, directory: Path, keep: int, configuration: str) -> None:
        self._directory, self._keep, self._configuration = directory, keep, configuration

    def rounds(self) -> list[int]:
        """The rounds of all finished checkpoints, in ascending order."""
        found = self._directory.glob(f"*/{MANIFEST}") if self._directory.is_dir() else []
        return sorted(int(path.parent.name) for path in found if path.parent.name.isdigit())

    def save(self, round_number: int, arrays: Sequence[np.ndarray], facts: Mapping[str, Any]) -> list[int]:
        """Write a checkpoint, then delete those that are no longer kept.

        All files are flushed to disk before the manifest is written, and an error removes the incomplete checkpoint. So
        a manifest on disk implies that the checkpoint is complete.

        Args:
            round_number: number of finished rounds, which names the checkpoint.
            arrays: the leaves of the server's state.
            facts: what belongs to them; `"score"` decides which checkpoint is the best.

        Returns:
            The rounds of the checkpoints that were deleted.
        """
        target = self._directory / str(round_number)
        try:
            shutil.rmtree(target, ignore_errors=True)
            self._directory.mkdir(exist_ok=True)
            target.mkdir()
            _require_room(target, sum(np.asarray(array).nbytes for array in arrays))
            _write_arrays(target / STATE, arrays)
            (target / FACTS).write_text(json.dumps(dict(facts)), encoding="utf-8")
            manifest = {"schema": SCHEMA, "round": round_number, "configuration": self._configuration}
            manifest["files"] = {name: _entry(target / name) for name in _files(target)}
            for path in sorted(target.rglob("*"), reverse=True):
                flush(path)
            with whole_file(target / MANIFEST) as temporary:
                temporary.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            flush(self._directory)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        return self._let_go()

    def newest(self) -> Saved | None:
        """The newest sound checkpoint; None if there is none at all.

        Raises:
            CheckpointError: there are checkpoints, but none of them is sound.
        """
        wrong = []
        for number in reversed(self.rounds()):
            try:
                saved = self.load(number)
            except CheckpointError as error:
                wrong.append(str(error))
                continue
            for error in wrong:
                _log.warning("%s; checkpoint %d is taken instead", error, number)
            return saved
        if wrong:
            raise CheckpointError(f"no checkpoint in {str(self._directory)!r} is sound: {'; '.join(wrong)}")
        return None

    def load(self, round_number: int) -> Saved:
        """Load one checkpoint after verifying its manifest and every file; `CheckpointError` if something differs."""
        target = self._directory / str(round_number)
        for name, entry in self._listed(target).items():
            _verify(target, name, entry)
        return Saved(round_number, _read_arrays(target / STATE), _read_facts(target))

    def facts(self, round_number: int) -> dict[str, Any]:
        """The facts of a checkpoint without its arrays; an empty dictionary, and a warning, if they are damaged."""
        target = self._directory / str(round_number)
        try:
            _verify(target, FACTS, self._listed(target)[FACTS])
            return _read_facts(target)
        except CheckpointError as error:
            _log.warning("%s; it is left aside", error)
            return {}

    def drop_after(self, round_number: int) -> None:
        """Remove all checkpoints newer than a round, and all unfinished ones."""
        for path in self._directory.iterdir() if self._directory.is_dir() else ():
            unfinished = not (path / MANIFEST).is_file()
            if path.is_dir() and (unfinished or (path.name.isdigit() and int(path.name) > round_number)):
                shutil.rmtree(path, ignore_errors=True)

    def _listed(self, target: Path) -> dict[str, dict[str, Any]]:
        """The manifest's entries, size and digest by file name.

        Raises:
            CheckpointError: the manifest cannot be read, belongs to another version, round or configuration, or does
            not list
                all files that exist.
        """
        try:
            manifest = read_object(target / MANIFEST)
            schema, number, configuration = (manifest.get(name) for name in ("schema", "round", "configuration"))
            listed = {name: {"bytes": e["bytes"], "sha256": e["sha256"]} for name, e in manifest["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise CheckpointError(f"checkpoint {target.name}: its manifest cannot be read") from None
        wrong = None
        if schema != SCHEMA:
            wrong = f"written by another version (schema {schema}, not {SCHEMA})"
        elif str(number) != target.name:
            wrong = f"its manifest is of round {number}"
        elif configuration != self._configuration:
            wrong = "it belongs to a run of another configuration"
        elif unlisted := sorted(set(_files(target)) - set(listed)):
            wrong = f"its manifest does not list {unlisted[0]!r}"
        elif FACTS not in listed or not any(name.startswith(f"{STATE}/") for name in listed):
            wrong = f"its manifest lists no {FACTS!r} or no arrays"
        if wrong is not None:
            raise CheckpointError(f"checkpoint {target.name}: {wrong}")
        return listed

    def _let_go(self) -> list[int]:
        """Delete all checkpoints but the latest `keep` and the best, which has the highest score.

        Returns:
            The rounds of the deleted checkpoints.
        """
        rounds = self.rounds()
        scores = {number: self.facts(number).get("score") for number in rounds}
        known = {number: score for number, score in scores.items() if isinstance(score, int | float)}
        staying = {*rounds[-self._keep :], *([max(known, key=lambda n: (known[n], -n))] if known else [])}
        gone = [number for number in rounds if number not in staying]
        for number in gone:
            # The manifest goes first: a half-deleted checkpoint then counts as unfinished.
            (self._directory / str(number) / MANIFEST).unlink()
            shutil.rmtree(self._directory / str(number), ignore_errors=True)
        return gone


def _files(target: Path) -> list[str]:
    """The paths of all files of a checkpoint except its manifest, relative to its directory and sorted."""
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir())
    return [name for name in found if name != MANIFEST]


def _entry(path: Path) -> dict[str, Any]:
    """The manifest's entry for a file: its size in bytes and its SHA-256."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _verify(target: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Compare a file with its entry in the manifest; the size comes first because it is fast to compare."""
    path = target / name
    if not path.is_file() or path.stat().st_size != entry["bytes"]:
        raise CheckpointError(f"checkpoint {target.name}: file {name!r} is missing or cut short")
    if sha256_of(path) != entry["sha256"]:
        raise CheckpointError(f"checkpoint {target.name}: sha256 of {name!r} differs")


def _read_facts(target: Path) -> dict[str, Any]:
    """The facts of a checkpoint, with a check of the values that a resumed run computes with."""
    try:
        facts = read_object(target / FACTS)
        single = (facts.get(name, 0) for name in ("metrics_bytes", "repeats"))
        counts = [*single, *facts.get("clients", ()), *facts.get("slots", ())]
        sound = all(isinstance(number, int) and number >= 0 for number in counts)
    except (ValueError, TypeError):
        sound, facts = False, {}
    if not sound or len(facts.get("clients", ())) != len(facts.get("slots", ())):
        raise CheckpointError(f"checkpoint {target.name}: {FACTS!r} does not hold the facts of a run")
    return facts


def _require_room(target: Path, size: int) -> None:
    """Raise `OSError` if the disk cannot hold another checkpoint.

    The storage layer would report a full disk in the midst of writing, by an exception group of many lines.
    """
    if shutil.disk_usage(target).free < size + _OVERHEAD:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))


def _write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """Store arrays with Orbax, which does not accept empty ones: these are left out and restored by number.

    Errors of the storage layer become the `OSError` that caused them, where one did.
    """
    import orbax.checkpoint as ocp

    tree = {f"{i:04d}": np.asarray(a) for i, a in enumerate(arrays) if np.size(a)}
    tree |= {"count": np.asarray(len(arrays))}
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(path.absolute(), tree)
    except Exception as error:
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
        raise _system_error(error, path) or error from None


def _system_error(error: BaseException, path: Path) -> OSError | None:
    """The operating system's error behind an error of the storage layer, or None.

    The storage layer wraps it in exception groups, or in messages that contain `os_error_code='28'`.
    """
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _system_error(inner, path))), None)
    if isinstance(error, OSError):
        return error
    code = _SYSTEM_CODE.search(str(error))
    return None if code is None else OSError(int(code[1]), os.strerror(int(code[1])), str(path))


def _read_arrays(path: Path) -> list[np.ndarray]:
    """Restore the arrays of a checkpoint in their order, with empty arrays in the places that were left out."""
    import orbax.checkpoint as ocp

    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.restore(path.absolute())
        return [np.asarray(tree.get(f"{i:04d}", np.zeros(0))) for i in range(int(tree["count"]))]
    except Exception as error:  # the files match the manifest, but Orbax did not write them
        raise CheckpointError(f"checkpoint {path.parent.name}: its arrays cannot be read") from error
