"""Checkpoints: what was saved comes back to the bit, what was damaged never does."""

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import orbax.checkpoint
import pytest

from engine.setting import same
from fedmime.errors import CheckpointError
from fedmime.runs.checkpoint import Checkpoints, _entry

RNG = np.random.default_rng(0)
ARRAYS = [
    RNG.normal(size=(3, 4)),
    RNG.normal(size=5).astype(np.float32),
    np.asarray([np.nan, np.inf, -0.0, 5e-324]),
    np.zeros((2, 0)),
    np.asarray(7),
    np.asarray([True, False]),
    np.asarray(2**63 - 1),
    RNG.integers(0, 2**32, 3, np.uint32),
]
RUN = "digest of a configuration"
FACTS = {"score": 0.5, "round": 3, "clients": [4, 1], "slots": [0, 1], "text": "été"}


def _numbers(checkpoints: Checkpoints, scores: list[float | None]) -> list[list[int]]:
    """The rounds that are there after each save."""
    found = []
    for number, score in enumerate(scores, start=1):
        checkpoints.save(number, [np.asarray(number)], {"score": score})
        found.append(checkpoints.rounds())
    return found


def test_arrays_come_back_bit_for_bit(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", 3, RUN)
    assert checkpoints.newest() is None
    assert checkpoints.save(3, ARRAYS, FACTS) == []
    saved = checkpoints.newest()
    assert saved is not None
    assert (saved.round, saved.facts) == (3, FACTS)
    for one, other in zip(saved.arrays, ARRAYS, strict=True):
        assert one.tobytes() == other.tobytes()
        assert one.dtype == other.dtype or not one.size
    assert checkpoints.facts(3) == FACTS


def test_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    found = _numbers(Checkpoints(tmp_path, 2, RUN), [0.1, 0.9, None, 0.3, 0.9, 0.2])
    assert found == [[1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5], [2, 5, 6]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "5", "6"]


def test_saving_says_which_are_gone(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 1, RUN)
    assert [checkpoints.save(n, [np.zeros(1)], {}) for n in (1, 2, 3)] == [[], [1], [2]]


def test_a_round_is_saved_anew(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 3, RUN)
    for value in (1.0, 2.0):
        checkpoints.save(4, [np.asarray(value)], {})
    assert checkpoints.load(4).arrays[0] == 2.0


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 3, RUN)
    checkpoints.save(1, ARRAYS, FACTS)
    with pytest.raises(TypeError):
        checkpoints.save(2, ARRAYS, {"not JSON": object()})
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert checkpoints.load(1).round == 1


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ValueError("RESOURCE_EXHAUSTED: Failed writing: No space left on device [os_error_code='28']"), errno.ENOSPC),
        (ValueError("UNKNOWN: Failed writing: [os_error_code='27']"), errno.EFBIG),
        (OSError(errno.EROFS, "Read-only file system"), errno.EROFS),
        (ExceptionGroup("two", [ValueError("no"), ValueError("[os_error_code='28']")]), errno.ENOSPC),
        (ValueError("a mistake of ours"), None),
    ],
)
def test_what_the_system_says_is_found(raised: Exception, code: int | None, tmp_path: Path, monkeypatch) -> None:
    """The storage layer wraps what the system said in its own words; callers get the system's error."""

    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(orbax.checkpoint.PyTreeCheckpointer, "save", fail)
    with pytest.raises(ValueError if code is None else OSError) as caught:
        Checkpoints(tmp_path, 3, RUN).save(1, ARRAYS, FACTS)
    assert getattr(caught.value, "errno", None) == code
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch) -> None:
    free = sum(array.nbytes for array in ARRAYS) + 1000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(free, 0, free))
    with pytest.raises(OSError, match="No space left") as caught:
        Checkpoints(tmp_path, 3, RUN).save(1, ARRAYS, FACTS)
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_what_was_never_finished_is_not_there(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 3, RUN)
    for number in (2, 4, 6):
        checkpoints.save(number, [np.asarray(number)], {})
    (tmp_path / "6" / "MANIFEST.json").unlink()
    (tmp_path / "notes").write_text("not ours")
    saved = checkpoints.newest()
    assert saved is not None
    assert saved.round == 4
    checkpoints.drop_after(4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "4", "notes"]
    checkpoints.drop_after(2)
    assert checkpoints.rounds() == [2]


def test_no_flipped_bit_goes_unseen(tmp_path: Path) -> None:
    """A bit anywhere in any file: the checkpoint is refused, or says the same as before."""
    checkpoints = Checkpoints(tmp_path, 3, RUN)
    checkpoints.save(3, ARRAYS, FACTS)
    files = sorted(path for path in (tmp_path / "3").rglob("*") if path.is_file())
    whole, refused = checkpoints.load(3).arrays, []
    for path in files:
        data = path.read_bytes()
        for _ in range(12 if path.name == "MANIFEST.json" else 2):
            changed = bytearray(data)
            changed[int(RNG.integers(len(data)))] ^= 1 << int(RNG.integers(8))
            path.write_bytes(changed)
            try:
                assert same(checkpoints.load(3).arrays, whole)
            except CheckpointError as error:
                refused.append(str(error))
        path.write_bytes(data)
    assert len(refused) > len(files)
    assert all(told.startswith("checkpoint 3: ") for told in refused)
    assert same(checkpoints.load(3).arrays, whole)


@pytest.mark.parametrize(
    "manifest",
    [
        *("", "[]", "{}", '{"schema": 2}', '{"schema": 2, "files": []}', '{"schema": 2, "files": {"run.json": 3}}'),
        *("\x00", "[" * 100_000),
    ],
)
def test_no_manifest_ends_in_a_traceback(manifest: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 3, RUN)
    checkpoints.save(3, [np.zeros(2)], {})
    (tmp_path / "3" / "MANIFEST.json").write_text(manifest)
    with pytest.raises(CheckpointError, match="manifest cannot be read"):
        checkpoints.load(3)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is sound"):
        checkpoints.newest()
    assert checkpoints.facts(3) == {}


def _relist(target: Path, **changes: object) -> None:
    """Change fields of a manifest; `files` as they are now unless given."""
    listed = {str(path.relative_to(target)): _entry(path) for path in target.rglob("*") if path.is_file()}
    del listed["MANIFEST.json"]
    file = target / "MANIFEST.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"files": listed} | changes))


def _refused(checkpoints: Checkpoints, number: int, told: str) -> None:
    """Assert that a checkpoint is refused, and that the one before it is taken with a word."""
    with pytest.raises(CheckpointError, match=f"^checkpoint {number}: {told}"):
        checkpoints.load(number)
    assert checkpoints.facts(number) == {}
    saved = checkpoints.newest()
    assert saved is not None
    assert saved.round < number


def test_a_checkpoint_of_another_round_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path, 3, RUN)
    _numbers(checkpoints, [None, None, None])
    for old, new in (("2", "x"), ("3", "2"), ("x", "3")):
        (tmp_path / old).rename(tmp_path / new)
    _refused(checkpoints, 3, "its manifest is of round 2")
    _refused(checkpoints, 2, "its manifest is of round 3")
    assert "checkpoint 3: its manifest is of round 2; checkpoint 1 is taken instead" in caplog.text


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    for name, run in (("one", RUN), ("other", "another digest")):
        (tmp_path / name).mkdir()
        _numbers(Checkpoints(tmp_path / name, 3, run), [None, None])
    shutil.rmtree(tmp_path / "one" / "2")
    shutil.copytree(tmp_path / "other" / "2", tmp_path / "one" / "2")
    _refused(Checkpoints(tmp_path / "one", 3, RUN), 2, "it belongs to a run of another configuration")


def test_a_manifest_that_lists_too_few_files_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 3, RUN)
    _numbers(checkpoints, [None, None])
    target = tmp_path / "2"
    listed = json.loads((target / "MANIFEST.json").read_text())["files"]
    for name in listed:
        _relist(target, files={other: entry for other, entry in listed.items() if other != name})
        _refused(checkpoints, 2, f"its manifest does not list {name!r}")
    for harm in (lambda: (target / "run.json").unlink(), lambda: shutil.rmtree(target / "state")):
        harm()
        _relist(target)
        _refused(checkpoints, 2, "its manifest lists no 'run.json' or no arrays")


def test_arrays_that_the_storage_layer_refuses(tmp_path: Path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("an array without its data")

    checkpoints = Checkpoints(tmp_path, 3, RUN)
    _numbers(checkpoints, [None])
    monkeypatch.setattr(orbax.checkpoint.PyTreeCheckpointer, "restore", fail)
    with pytest.raises(CheckpointError, match="checkpoint 1: its arrays cannot be read"):
        checkpoints.load(1)


@pytest.mark.parametrize(
    "facts",
    [
        *(b"", b"\x00\xff", b"[]", b"null", b"[" * 100_000, b'{"metrics_bytes": "9"}', b'{"metrics_bytes": -1}'),
        *(b'{"clients": 3}', b'{"clients": [1], "slots": []}', b'{"clients": ["a"], "slots": [1]}'),
    ],
)
def test_facts_of_another_kind_are_refused(facts: bytes, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 3, RUN)
    _numbers(checkpoints, [None, None])
    (tmp_path / "2" / "run.json").write_bytes(facts)
    _relist(tmp_path / "2")
    _refused(checkpoints, 2, "'run.json' does not hold the facts of a run")


def test_facts_of_a_damaged_one_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path, 2, RUN)
    checkpoints.save(1, [np.zeros(2)], {"score": 9.0})
    (tmp_path / "1" / "run.json").write_text(json.dumps({"score": 8.0}))
    assert checkpoints.facts(1) == {}
    assert "left aside" in caplog.text
    assert _numbers(checkpoints, [0.1, 0.2, 0.3])[-1] == [2, 3]
