"""Checkpoints that are whole or not there: Orbax for the arrays, a list of sha256 sums written last.

`checkpoints/<round>/` holds `state/` (arrays), `run.json` (plain facts) and `MANIFEST.json`. A directory without a
manifest was never finished; one that differs from its manifest is damaged, and the one before it is taken instead.
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
from fedmime.files import flush, sha256_of, whole_file

_log = logging.getLogger(__name__)

STATE, FACTS, MANIFEST, SCHEMA = "state", "run.json", "MANIFEST.json", 1
_OVERHEAD = 2**17  # bytes of a checkpoint beside its arrays, and some to spare
_SYSTEM_CODE = re.compile(r"os_error_code='(\d+)'")


class Saved(NamedTuple):
    """What a checkpoint holds."""

    round: int  # rounds that were finished
    arrays: list[np.ndarray]
    facts: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory, self._keep = directory, keep

    def rounds(self) -> list[int]:
        """The rounds of finished checkpoints, oldest first."""
        found = self._directory.glob(f"*/{MANIFEST}") if self._directory.is_dir() else []
        return sorted(int(path.parent.name) for path in found if path.parent.name.isdigit())

    def save(self, round_number: int, arrays: Sequence[np.ndarray], facts: Mapping[str, Any]) -> list[int]:
        """Write a checkpoint, then let go of old ones; gives the rounds that are no longer there."""
        target = self._directory / str(round_number)
        try:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            _require_room(target, sum(np.asarray(array).nbytes for array in arrays))
            _write_arrays(target / STATE, arrays)
            (target / FACTS).write_text(json.dumps(dict(facts)), encoding="utf-8")
            listed = {str(p.relative_to(target)): _entry(p) for p in sorted(target.rglob("*")) if p.is_file()}
            for path in sorted(target.rglob("*"), reverse=True):
                flush(path)
            with whole_file(target / MANIFEST) as temporary:
                temporary.write_text(json.dumps({"schema": SCHEMA, "files": listed}, indent=1), encoding="utf-8")
            flush(self._directory)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        return self._let_go()

    def newest(self) -> Saved | None:
        """The newest checkpoint that is what its manifest says, or None if there never was one.

        Newer ones that are damaged are removed, so that the run saves them anew.
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
            self.drop_after(number)
            return saved
        if wrong:
            raise CheckpointError(f"no checkpoint in {str(self._directory)!r} is sound: {'; '.join(wrong)}")
        return None

    def load(self, round_number: int) -> Saved:
        """One checkpoint, once every file is what the manifest says."""
        target = self._directory / str(round_number)
        _verify(target)
        facts = json.loads((target / FACTS).read_text(encoding="utf-8"))
        return Saved(round_number, _read_arrays(target / STATE), facts)

    def facts(self, round_number: int) -> dict[str, Any]:
        """The plain facts of a checkpoint, without its arrays; none if they are damaged."""
        target = self._directory / str(round_number)
        try:
            _verify(target, FACTS)
        except CheckpointError as error:
            _log.warning("%s; it is left aside", error)
            return {}
        return json.loads((target / FACTS).read_text(encoding="utf-8"))

    def drop_after(self, round_number: int) -> None:
        """Remove what is newer than a round, finished or not."""
        for path in self._directory.iterdir() if self._directory.is_dir() else ():
            unfinished = not (path / MANIFEST).is_file()
            if path.is_dir() and (unfinished or (path.name.isdigit() and int(path.name) > round_number)):
                shutil.rmtree(path, ignore_errors=True)

    def _let_go(self) -> list[int]:
        """Keep the last ones and the best; remove the others."""
        rounds = self.rounds()
        scores = {number: self.facts(number).get("score") for number in rounds}
        known = {number: score for number, score in scores.items() if score is not None}
        kept = {*rounds[-self._keep :], *([max(known, key=lambda n: (known[n], -n))] if known else [])}
        gone = [number for number in rounds if number not in kept]
        for number in gone:
            (self._directory / str(number) / MANIFEST).unlink()  # first, so that no half of it is ever believed
            shutil.rmtree(self._directory / str(number), ignore_errors=True)
        return gone


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _verify(target: Path, only: str | None = None) -> None:
    """Compare files with the manifest: all of them, or one."""
    try:
        manifest = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        schema = manifest["schema"]
        listed = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"checkpoint {target.name}: its manifest cannot be read") from None
    if schema != SCHEMA:
        raise CheckpointError(f"checkpoint {target.name}: written by another version (schema {schema}, not {SCHEMA})")
    for name, (size, digest) in listed.items() if only is None else [(only, listed.get(only, (-1, "")))]:
        path = target / name
        if not path.is_file() or path.stat().st_size != size:
            raise CheckpointError(f"checkpoint {target.name}: file {name!r} is missing or cut short")
        if sha256_of(path) != digest:
            raise CheckpointError(f"checkpoint {target.name}: sha256 of {name!r} differs")


def _require_room(target: Path, size: int) -> None:
    """A disk that is full is told before the storage layer finds out in many words."""
    if shutil.disk_usage(target).free < size + _OVERHEAD:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))


def _write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    tree = {f"{i:04d}": np.asarray(a) for i, a in enumerate(arrays) if np.size(a)}
    tree |= {"count": np.asarray(len(arrays))}
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(path.absolute(), tree)
    except Exception as error:
        raise _system_error(error, path) or error from None


def _system_error(error: BaseException, path: Path) -> OSError | None:
    """What the system said (a full disk, say), found in the storage layer's own words or groups of errors."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := _system_error(inner, path))), None)
    if isinstance(error, OSError):
        return error
    code = _SYSTEM_CODE.search(str(error))
    return None if code is None else OSError(int(code[1]), os.strerror(int(code[1])), str(path))


def _read_arrays(path: Path) -> list[np.ndarray]:
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.restore(path.absolute())
    return [np.asarray(tree.get(f"{i:04d}", np.zeros(0))) for i in range(int(tree["count"]))]
