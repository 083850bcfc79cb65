"""Checkpoints that are whole or not there: Orbax for the arrays, a manifest written last.

`checkpoints/<round>/` holds `state/` (arrays), `run.json` (plain facts) and `MANIFEST.json`: the round, the digest of
the run's configuration, and the size and sha256 of every other file. A directory without a manifest was never
finished. One that differs from its manifest, stands under the number of another round or belongs to another
configuration is refused, and the one before it is taken instead.
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
_OVERHEAD = 2**17  # bytes of a checkpoint beside its arrays, and some to spare
_SYSTEM_CODE = re.compile(r"os_error_code='(\d+)'")


class Saved(NamedTuple):
    """What a checkpoint holds."""

    round: int  # rounds that were finished
    arrays: list[np.ndarray]
    facts: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: holds one directory for each of them; its parent exists.
        keep: how many of the last ones stay, beside the best.
        configuration: the digest of what the run was asked for; checkpoints of another one are refused.
    """

    def __init__(self, directory: Path, keep: int, configuration: str) -> None:
        self._directory, self._keep, self._configuration = directory, keep, configuration

    def rounds(self) -> list[int]:
        """The rounds of finished checkpoints, oldest first."""
        found = self._directory.glob(f"*/{MANIFEST}") if self._directory.is_dir() else []
        return sorted(int(path.parent.name) for path in found if path.parent.name.isdigit())

    def save(self, round_number: int, arrays: Sequence[np.ndarray], facts: Mapping[str, Any]) -> list[int]:
        """Write a checkpoint, then let go of old ones; gives the rounds that are no longer there."""
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
        """The newest checkpoint that is sound, or None if there never was one."""
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
        """One checkpoint, once its manifest is this run's and every file is what the manifest says."""
        target = self._directory / str(round_number)
        for name, entry in self._listed(target).items():
            _verify(target, name, entry)
        return Saved(round_number, _read_arrays(target / STATE), _read_facts(target))

    def facts(self, round_number: int) -> dict[str, Any]:
        """The plain facts of a checkpoint, without its arrays; none if they are damaged."""
        target = self._directory / str(round_number)
        try:
            _verify(target, FACTS, self._listed(target)[FACTS])
            return _read_facts(target)
        except CheckpointError as error:
            _log.warning("%s; it is left aside", error)
            return {}

    def drop_after(self, round_number: int) -> None:
        """Remove what is newer than a round, finished or not."""
        for path in self._directory.iterdir() if self._directory.is_dir() else ():
            unfinished = not (path / MANIFEST).is_file()
            if path.is_dir() and (unfinished or (path.name.isdigit() and int(path.name) > round_number)):
                shutil.rmtree(path, ignore_errors=True)

    def _listed(self, target: Path) -> dict[str, dict[str, Any]]:
        """The entries of a manifest that is of this round, of this run, and names every file that there is."""
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
        """Keep the last ones and the best; remove the others."""
        rounds = self.rounds()
        scores = {number: self.facts(number).get("score") for number in rounds}
        known = {number: score for number, score in scores.items() if isinstance(score, int | float)}
        kept = {*rounds[-self._keep :], *([max(known, key=lambda n: (known[n], -n))] if known else [])}
        gone = [number for number in rounds if number not in kept]
        for number in gone:
            (self._directory / str(number) / MANIFEST).unlink()  # first, so that no half of it is ever believed
            shutil.rmtree(self._directory / str(number), ignore_errors=True)
        return gone


def _files(target: Path) -> list[str]:
    """The names of all files of a checkpoint but its manifest."""
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir())
    return [name for name in found if name != MANIFEST]


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _verify(target: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Compare a file with its entry in the manifest."""
    path = target / name
    if not path.is_file() or path.stat().st_size != entry["bytes"]:
        raise CheckpointError(f"checkpoint {target.name}: file {name!r} is missing or cut short")
    if sha256_of(path) != entry["sha256"]:
        raise CheckpointError(f"checkpoint {target.name}: sha256 of {name!r} differs")


def _read_facts(target: Path) -> dict[str, Any]:
    try:
        facts = read_object(target / FACTS)
        counts = [facts.get("metrics_bytes", 0), *facts.get("clients", ()), *facts.get("slots", ())]
        sound = all(isinstance(number, int) and number >= 0 for number in counts)
    except (ValueError, TypeError):
        sound, facts = False, {}
    if not sound or len(facts.get("clients", ())) != len(facts.get("slots", ())):
        raise CheckpointError(f"checkpoint {target.name}: {FACTS!r} does not hold the facts of a run")
    return facts


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
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
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

    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.restore(path.absolute())
        return [np.asarray(tree.get(f"{i:04d}", np.zeros(0))) for i in range(int(tree["count"]))]
    except Exception as error:  # files that are what the manifest says, which the storage layer did not write
        raise CheckpointError(f"checkpoint {path.parent.name}: its arrays cannot be read") from error
