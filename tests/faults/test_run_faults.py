"""Faults 15 to 29: wrong settings, damaged and full disks, signals, locks and clocks end in one line and their code."""

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orbax.checkpoint
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, population, same
from faults.program import Ended, Server, said
from fedmime.runs import identity
from fedmime.runs.checkpoint import Checkpoints
from fedmime.runs.directory import RunDirectory

TRAIN = ["train", "--task", "digits-logistic", "--cohort", "4", "--seed", "3", "--quiet"]
ROUNDS, EVERY = 6, 2
SAVED = [*TRAIN, "--rounds", ROUNDS, "--checkpoint-every", EVERY, "--algorithm", "scaffold"]


def one_line(ended: Ended, code: int, *words: str) -> None:
    """Assert how a command ended and what its one line names."""
    assert ended.code == code, ended.err
    assert ended.err.startswith("fedmime: ")
    assert ended.err.count("\n") == 1
    for word in words:
        assert word in ended.err


def results(run: Path) -> dict[str, bytes]:
    """What must be the same however a run was broken off."""
    return {name: (run / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors", "best.safetensors")}


def _name(part: object) -> str:
    """The name of a test by the words it gives."""
    return " ".join(part)[:40] if isinstance(part, list) else ""


def status(run: Path) -> dict:
    return json.loads((run / "status.json").read_text())


def lines(run: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def checkpoints(run: Path) -> list[int]:
    return sorted(int(path.parent.name) for path in run.glob("checkpoints/*/MANIFEST.json"))


def opened(run: Path) -> Checkpoints:
    """The checkpoints as the run itself opens them."""
    return Checkpoints(run / "checkpoints", 3, identity.digest(json.loads((run / "identity.json").read_text())))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run that keeps its checkpoints."""
    from fedmime.cli.main import main

    run = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")
        assert main([str(word) for word in (*SAVED, "--out", run)]) == 0
    assert checkpoints(run) == [2, 4, 6]
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """The same run after a crash behind its last checkpoint but one."""
    copy = tmp_path / "run"
    shutil.copytree(whole, copy)
    shutil.rmtree(copy / "checkpoints" / "6")
    for name in ("model.safetensors", "best.safetensors"):
        (copy / name).unlink()
    return copy


# 15 to 18: what was asked makes no sense


@pytest.mark.parametrize(
    ("words", "field"),
    [
        *((["--eta", value], "eta") for value in ("0", "-0.1", "nan", "inf")),
        *((["--eta-server", value], "eta_server") for value in ("0", "-1", "nan")),
        *((["--optimizer.beta", value], "beta") for value in ("1", "1.5", "-0.1", "nan")),
        *((["--base", "adam", "--optimizer.beta2", value], "beta2") for value in ("1", "nan")),
        (["--base", "adam", "--optimizer.eps", "-1"], "eps"),
        (["--algorithm", "fedprox", "--mu", "-1"], "mu"),
        (["--algorithm", "mime_mvr", "--optimizer.beta", "1"], "beta"),
        (["--participation.drop-out", "1.1"], "drop_out"),
        (["--checkpoint-every", "0"], "every"),
        (["--seed", "-1"], "seed"),
        (["--seed", str(2**63)], "seed"),
        (["--target", "85"], "target"),
        *((["--" + name, "9" * 400], name) for name in ("rounds", "cohort", "batch", "epochs", "steps")),
    ],
    ids=_name,
)
def test_15_numbers_out_of_range(words: list[str], field: str, tmp_path: Path, capsys) -> None:
    one_line(said([*TRAIN, *words, "--out", tmp_path / "run"], capsys), 2, f"{field} must", f"got {words[-1][:1]}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["--server.optimizer", "admm"], "adam"),
        (["--base", "adaam"], "adam"),
        (["--algorithm", "mimelite"], "mime_lite"),
        (["--cohrt", "3"], "--cohort"),
        (["--optimizer.bet", "0.5"], "--optimizer.beta"),
        (["--task", "digits-logstic"], "digits-logistic"),
        (["--base", "sgd", "--optimizer.beta2", "0.5"], "sgd"),
    ],
    ids=_name,
)
def test_16_unknown_names_offer_known_ones(words: list[str], offered: str, tmp_path: Path, capsys) -> None:
    ended = said([*TRAIN, *words, "--out", tmp_path / "run"], capsys)
    assert ended.code == 2
    assert offered in ended.err
    assert "Traceback" not in ended.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["--cohort", "51"],
        ["--cohort", "51", "--participation.over-selection", "1.3"],
        ["--cohort", "0"],
        ["--rounds", "0"],
        ["--rounds", "-3"],
        ["--batch", "0"],
        ["--steps", "0"],
        ["--epochs", "0"],
        ["--epochs", "1", "--steps", "2"],
        ["--split", "--cohort", "5"],
    ],
    ids=_name,
)
def test_17_counts_out_of_range(words: list[str], tmp_path: Path, capsys) -> None:
    one_line(said([*TRAIN, *words, "--out", tmp_path / "run"], capsys), 2, words[0].strip("-"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["batch", "epochs", "steps"])
def test_17_counts_that_no_memory_holds(name: str, tmp_path: Path, capsys) -> None:
    words = [*TRAIN, f"--{name}", 2**31 - 1, "--out", tmp_path / "run"]
    one_line(said(words, capsys), 2, f"{name}", "examples in a round", "2147483647", "at most 268,435,456")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["1e22", "many", "", "9" * 5000])
def test_17_counts_that_are_no_whole_numbers(value: str, tmp_path: Path, capsys) -> None:
    one_line(said([*TRAIN, "--batch", value, "--out", tmp_path / "run"], capsys), 2, "--batch", "INT", value[:50])
    assert not list(tmp_path.iterdir())


def test_17_over_selection_asks_nobody_twice() -> None:
    drawn = fm.Participation(over_selection=1.3, drop_out=0.1).draw(np.full(50, 7), 45, 0, 0)
    asked = [*drawn.in_time, *drawn.late, *drawn.dropped]
    assert len(asked) == len(set(asked)) == 50


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"rounds: 3\ncohort: [1, 2\neta: 1\n", "line 3"),
        (b"rounds: 3\n\tcohort: 4\n", "line 2"),
        (b"eta: *gone\n", "line 1"),
        (b"--- !!python/object/apply:os.system ['true']\n", "line 1"),
        (b"&a\noptimizer: *a\n", "line 2: an alias of what it is part of"),
        (b"optimizer: &a\n  beta: *a\n", "line 2: an alias of what it is part of"),
        (b"rounds: 3\ncohort: 4\nrounds: 5\n", "line 3: key 'rounds' appears twice"),
        (b"optimizer: {beta: 0.1, beta: 0.2}\n", "key 'beta' appears twice"),
        (b"eta-server: 1\neta_server: 2\n", "eta_server is given twice"),
        (b"[" * 3000, "nested more than 20 deep"),
        (b"a: " * 3000, "mapping values are not allowed here"),
        (
            b"a: &a [x, x]\n"
            + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in b"bcdefghi"),
            "more than 100,000 values",
        ),
        (b"task: " + b"x" * 1_000_000, "more than 1,000,000 bytes"),
        (b"rounds: 0x" + b"f" * 9000, "a number of more than 1,000 characters"),
        (b"out: 2020-13-01\n", "line 1: month must be in 1..12"),
        (b"rounds: \x00", "special characters are not allowed"),
        (b"\x00\xff\xfe", "'utf-8' codec can't decode"),
        (b"", "must hold a mapping"),
        (b"- rounds\n", "must hold a mapping"),
        (b"cohrt: 3\n", "did you mean 'cohort'"),
        (b"optimizer: {bet: 1}\n", "'optimizer.bet'; did you mean 'beta'"),
        (b"eta: fast\n", "eta must be a number or nothing, got 'fast'"),
        (b"eta.beta: 1\n", "eta has no fields"),
        (b"out: 3\n", "out must be a path"),
        (b"split: maybe\n", "split must be true or false"),
        (b"rounds: 1.5\n", "rounds must be a whole number"),
        (b"rounds: true\n", "rounds must be a whole number"),
        (b"algorithm: mimelite\n", "algorithm must be one of mime, mime_lite"),
    ],
)
def test_18_bad_configuration_files(text: bytes, told: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "asked.yaml"
    file.write_bytes(text)
    one_line(said([*TRAIN, "--config", file, "--out", tmp_path / "run"], capsys), 2, str(file), told)
    assert not (tmp_path / "run").exists()


def test_18_missing_configuration_files(tmp_path: Path, capsys) -> None:
    one_line(said([*TRAIN, "--config", tmp_path / "none.yaml"], capsys), 2, "none.yaml", "cannot be read")
    one_line(said([*TRAIN, "--config"], capsys), 2, "--config needs the path")


# 19: the run diverges


def test_19_exploding_rate(tmp_path: Path, capsys) -> None:
    """Round 3 explodes: the state before it stays, and the run gives up after three such rounds."""
    run, clients = tmp_path / "run", population([5, 6, 7, 8])
    algorithm = a.fedavg(lambda t: 0.1 if t < 3 else 1e200)
    with pytest.raises(fm.Diverged, match="3 rounds in a row") as caught:
        fm.simulate(algorithm, PROBLEM, clients, 9, 4, 4, run_dir=run, saving=fm.Saving(every=1))
    assert caught.value.exit_code == 4
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["abandoned"] for row in rows] == [False] * 3 + [True] * 3
    assert "3 rounds in a row" in rows[-1]["reason"]
    assert status(run) | {"seconds": 0} == {
        "state": "failed", "round": 6, "rounds": 9, "reason": str(caught.value), "seconds": 0
    }  # fmt: skip
    good = fm.simulate(a.fedavg(0.1), PROBLEM, clients, 3, 4, 4)
    saved = opened(run).newest()
    assert saved is not None
    assert same(saved.arrays, good.state.server)


def test_19_exploding_rate_on_the_command_line(tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    one_line(said([*SAVED, "--algorithm", "scaffold", "--eta", "1e30", "--out", run], capsys), 4, "eta")
    assert status(run)["state"] == "failed"
    assert "reason" in json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert checkpoints(run) == [2]
    assert not (run / "model.safetensors").exists()


# 20, 21, 22: checkpoints


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


@pytest.mark.parametrize("harm", [pytest.param(cut, id="20-cut"), pytest.param(flip, id="21-flipped"), Path.unlink])
def test_20_21_damaged_checkpoint_falls_back(harm, run: Path, whole: Path, capsys) -> None:
    """Whichever file of the newest one is damaged, the run goes on from the one before, to the same end."""
    names = [path.relative_to(run / "checkpoints" / "4") for path in files(run / "checkpoints" / "4")]
    assert len(names) > 5
    found = opened(run)
    for name in names:
        target = run / "checkpoints" / "4"
        kept = shutil.copytree(target, run.parent / "kept", dirs_exist_ok=True)
        harm(target / name)
        saved = found.newest()
        assert saved is not None
        assert saved.round == 2, name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(kept, target)
    harm(max(files(run / "checkpoints" / "4"), key=lambda path: path.stat().st_size))
    ended = said(["resume", run, "--quiet"], capsys)
    assert ended.code == 0
    assert ended.err.startswith("fedmime: checkpoint 4: ")
    assert results(run) == results(whole)
    assert "checkpoint 4: " in (run / "log.txt").read_text()
    assert "going on after round 2" in (run / "log.txt").read_text()
    assert checkpoints(run) == [2, 4, 6]


@pytest.mark.parametrize("harm", [pytest.param(cut, id="20-cut"), pytest.param(flip, id="21-flipped")])
def test_20_21_no_sound_checkpoint(harm, run: Path, capsys) -> None:
    for number in checkpoints(run):
        harm(run / "checkpoints" / str(number) / "run.json")
    before = (run / "metrics.jsonl").read_bytes()
    one_line(said(["resume", run, "--quiet"], capsys), 5, "no checkpoint", "is sound", "checkpoint 4", "checkpoint 2")
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("harm", [pytest.param(cut, id="20-cut"), pytest.param(flip, id="21-flipped")])
def test_20_21_damage_in_an_older_checkpoint_is_no_matter(harm, run: Path, whole: Path, capsys) -> None:
    harm(run / "checkpoints" / "2" / "run.json")
    assert said(["resume", run, "--quiet"], capsys).code == 0
    assert results(run) == results(whole)


def test_21_damage_in_what_clients_keep(run: Path, capsys) -> None:
    """SCAFFOLD's table is part of the state: no byte of it is believed unchecked."""
    table = bytearray((run / "clients.memory").read_bytes())
    table[::100] = bytes(byte ^ 1 for byte in table[::100])
    (run / "clients.memory").write_bytes(table)
    one_line(said(["resume", run, "--quiet"], capsys), 5, "client memory", "damaged")
    (run / "clients.memory").write_bytes(table[:100])
    one_line(said(["resume", run, "--quiet"], capsys), 5, "client memory", "holds 0 clients")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["--batch", "5"], "schedule.batch_size: 10 -> 5"),
        (["--seed", "4"], "schedule.seed: 3 -> 4"),
        (["--eta", "0.5"], "0.1 -> 0.5"),
        (["--algorithm", "feddyn"], "'Scaffold' -> 'FedDyn'"),
    ],
    ids=_name,
)
def test_22_checkpoint_of_another_configuration(changes: list[str], told: str, run: Path, capsys) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    one_line(said([*SAVED, *changes, "--out", run], capsys), 5, told, "fresh")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_22_checkpoint_of_another_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = fm.data.from_arrays({"a": {"x": rng.normal(size=(5, 4)), "y": rng.integers(0, 3, 5)}})
    for width in (4, 5):
        told = r"problem\.arrays\.dense0\.w: 'float64\[4, 4\]' -> 'float64\[5, 4\]'"
        refused = pytest.raises(fm.CheckpointError, match=told) if width == 5 else contextlib.nullcontext()
        with refused:
            fm.simulate(a.fedavg(0.1), fm.models.mlp((4,), 3, hidden=(width,)), clients, 1, 1, run_dir=tmp_path)


def test_22_checkpoint_of_another_version(run: Path, capsys) -> None:
    for manifest in run.glob("checkpoints/*/MANIFEST.json"):
        manifest.write_text(manifest.read_text().replace('"schema": 2', '"schema": 1'))
    one_line(said(["resume", run, "--quiet"], capsys), 5, "another version (schema 1, not 2)")


def test_22_checkpoints_of_other_rounds(run: Path, whole: Path, capsys) -> None:
    """Two that were swapped: neither is believed, the one before is taken, and the run ends as it should."""
    folder = run / "checkpoints"
    shutil.copytree(whole / "checkpoints" / "6", folder / "x")
    for old, new in (("4", "6"), ("x", "4")):
        (folder / old).rename(folder / new)
    ended = said(["resume", run, "--quiet"], capsys)
    assert ended.code == 0
    assert "checkpoint 6: its manifest is of round 4; checkpoint 2 is taken instead" in ended.err
    assert "checkpoint 4: its manifest is of round 6; checkpoint 2 is taken instead" in ended.err
    assert results(run) == results(whole)
    for old, new in (("2", "x"), ("4", "2"), ("6", "4"), ("x", "6")):
        (folder / old).rename(folder / new)
    one_line(said(["resume", run, "--quiet"], capsys), 5, "no checkpoint", "its manifest is of round 2")


def test_22_checkpoints_of_another_algorithm(tmp_path: Path) -> None:
    """Those of FedProx have the shapes of FedAvg's: they are refused all the same."""
    clients, saving = population([5, 6, 7, 8]), fm.Saving(every=1)
    for name, algorithm in (("one", a.fedavg(0.1)), ("other", a.fedprox(0.1, 9.0))):
        fm.simulate(algorithm, PROBLEM, clients, 2, 4, 4, run_dir=tmp_path / name, saving=saving)
    shutil.rmtree(tmp_path / "one" / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", tmp_path / "one" / "checkpoints")
    with pytest.raises(fm.CheckpointError, match="checkpoint 2: it belongs to a run of another configuration"):
        fm.simulate(a.fedavg(0.1), PROBLEM, clients, 3, 4, 4, run_dir=tmp_path / "one", saving=saving)


# 23, 24: disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of six megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, left: int) -> Path:
    """Take up a disk but for some bytes."""
    (disk / "ballast").write_bytes(b"x" * (shutil.disk_usage(disk).free - left))
    return disk / "ballast"


@pytest.mark.parametrize("left", [0, 8_000, 40_000])
def test_23_disk_full(left: int, disk: Path, run: Path, whole: Path, capsys) -> None:
    """The disk is full at a line, at a save, at what clients keep: nothing earlier is harmed."""
    run = Path(shutil.copytree(run, disk / "run"))
    ballast = fill(disk, left)
    one_line(said(["resume", run, "--quiet"], capsys), 74, "No space left")
    assert checkpoints(run) == [2, 4]
    assert not [path for path in run.rglob("*") if "tmp" in path.name]
    ballast.unlink()
    assert said(["resume", run, "--quiet"], capsys).code == 0
    assert results(run) == results(whole)


def test_23_files_that_may_not_grow(forks: Server, run: Path, whole: Path, capsys) -> None:
    """The same without a mount: the system refuses to let the metrics grow."""
    child = forks.start(["resume", run, "--quiet"], largest=(run / "metrics.jsonl").stat().st_size // ROUNDS * 5)
    assert child.wait() == 74, child.said()
    assert "File too large" in child.said()
    assert "Traceback" not in child.said()
    assert checkpoints(run) == [2, 4]
    assert said(["resume", run, "--quiet"], capsys).code == 0
    assert results(run) == results(whole)


def test_24_directory_that_cannot_be_made(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("no directory")
    one_line(said([*SAVED, "--out", tmp_path / "file" / "run"], capsys), 74, "file")
    one_line(said([*SAVED, "--out", tmp_path / "file"], capsys), 74, "file")


def test_24_read_only_disk(disk: Path, run: Path, capsys) -> None:
    run = Path(shutil.copytree(run, disk / "run"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    one_line(said(["resume", run, "--quiet"], capsys), 74, "Read-only file system")
    one_line(said([*SAVED, "--out", disk / "other"], capsys), 74, "Read-only file system")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_24_directory_gone_between_rounds(forks: Server, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = forks.start([*TRAIN, "--rounds", 100_000, "--algorithm", "scaffold", "--out", run])
    assert child.until(lambda: lines(run) >= 2)
    run.rename(tmp_path / "gone")
    assert child.wait() == 74
    assert child.said().count("\n") == 1
    assert "No such file or directory" in child.said()


@pytest.mark.parametrize(("every", "again"), [(1, False), (50, True)], ids=["removed", "another in its place"])
def test_24_directory_removed_between_rounds(every: int, again: bool, tmp_path: Path) -> None:
    """The next write ends the run; nothing of it comes back."""
    run, seen = tmp_path / "run", []

    def remove(*_: object) -> None:
        seen.append(1)
        if len(seen) == 2:
            shutil.rmtree(run)
            if again:
                run.mkdir()
                (run / "metrics.jsonl").touch()

    saving = fm.Saving(every=every)
    with pytest.raises(FileNotFoundError, match=r"\[Errno 2\] "):
        fm.simulate(
            a.scaffold(0.1), PROBLEM, population([5, 6, 7]), 9, 3, 4, run_dir=run, saving=saving, on_round=remove
        )
    assert len(seen) == 2
    assert [path.name for path in tmp_path.rglob("*")] == (["run", "metrics.jsonl"] if again else [])


def test_24_directory_replaced_by_that_of_another_process(tmp_path: Path) -> None:
    """Whoever removed it may have started anew in its place: that run is not written to."""
    with RunDirectory(tmp_path / "run", keep=1) as directory:
        directory.claim({}, {}, "1 device", fresh=False, rounds=1)
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "run.lock").touch()
        for write in (
            lambda: directory.row({"round": 0}),
            lambda: directory.status("running", 0, 1),
            lambda: directory.save(fm.State(0, ())),
            lambda: directory.clients({}),
        ):
            with pytest.raises(FileNotFoundError, match="put in place of the run's"):
                write()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.lock"]


def test_24_directory_removed_while_it_is_saved(tmp_path: Path, monkeypatch) -> None:
    def save(self: object, path: Path, *_: object) -> None:
        shutil.rmtree(tmp_path / "run")
        raise ValueError(f"NOT_FOUND: {path}")

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(orbax.checkpoint.PyTreeCheckpointer, "save", save)
    with pytest.raises(FileNotFoundError):
        Checkpoints(tmp_path / "run" / "checkpoints", 3, "").save(1, [np.zeros(1)], {})
    assert not list(tmp_path.iterdir())


# 25 is tests/faults/test_kill.py


# 26: signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_26_signal_saves_and_ends(number: int, code: int, forks: Server, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    child = forks.start([*TRAIN, "--rounds", 100_000, "--algorithm", "scaffold", "--out", run])
    assert child.until(lambda: lines(run) >= 2)
    began = time.monotonic()
    child.kill(number)
    assert child.wait() == code
    assert time.monotonic() - began < 30
    done = lines(run)
    assert status(run) | {"seconds": 0} == {
        "state": "preempted", "round": done, "rounds": 100_000, "seconds": 0,
        "reason": f"stopped by signal {number} after round {done}; resume goes on",
    }  # fmt: skip
    assert checkpoints(run)[-1] == done
    assert "a second signal ends at once" in child.said()
    assert said(["resume", run, "--rounds", done + 1, "--quiet"], capsys).code == 0
    assert lines(run) == done + 1


def test_26_second_signal_ends_at_once(forks: Server, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = forks.start([*TRAIN, "--rounds", 100_000, "--algorithm", "scaffold", "--out", run])
    assert child.until(lambda: lines(run) >= 2)
    child.kill(signal.SIGSTOP)  # so that both signals are there before the round ends
    child.kill(signal.SIGTERM)
    child.kill(signal.SIGINT)
    child.kill(signal.SIGCONT)
    assert child.wait() in (-signal.SIGTERM, -signal.SIGINT, 143, 130)


# 27: one writer


def test_27_two_runs_in_one_directory(forks: Server, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    asked = [*TRAIN, "--algorithm", "scaffold", "--out", run]
    child = forks.start([*asked, "--rounds", 100_000])
    assert child.until(lambda: lines(run) >= 2)
    for words in ([*asked, "--rounds", 3], [*asked, "--rounds", 3, "--fresh"], ["resume", run, "--quiet"]):
        one_line(said(words, capsys), 6, "in use by another process")
    before = lines(run)
    assert child.until(lambda: lines(run) > before)  # the holder is not disturbed
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert (run / "run.lock").exists()
    assert said([*asked, "--rounds", 3], capsys).code == 0
    assert lines(run) == 3


# 28: metrics


@pytest.mark.parametrize("tail", [b'{"round": 6, "pri', b"{", b"\n", b'{"round": 4}\n{"round": 5'])
def test_28_half_written_line(tail: bytes, run: Path, whole: Path, capsys) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    with (run / "timings.jsonl").open("ab") as file:
        file.write(tail)
    assert said(["resume", run, "--quiet"], capsys).code == 0
    assert results(run) == results(whole)
    assert lines(run) == len((run / "timings.jsonl").read_bytes().splitlines()) == ROUNDS


def test_28_missing_lines_are_not_made_up(run: Path, capsys) -> None:
    path = run / "metrics.jsonl"
    rows = path.read_bytes().splitlines(keepends=True)
    for harmed in (rows[:3], [b'{"round": 0}\n', *rows[1:]], [rows[0].replace(b"1", b"2"), *rows[1:]]):
        path.write_bytes(b"".join(harmed))
        one_line(said(["resume", run, "--quiet"], capsys), 5, "metrics.jsonl", "lines are missing or changed")


# 29: clocks


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_29_clock_jumps(jump: float, monkeypatch: pytest.MonkeyPatch, run: Path, whole: Path, capsys) -> None:
    now, asked = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: now() + jump * next(asked))
    began = time.monotonic()
    assert said(["resume", run, "--quiet"], capsys).code == 0
    took = time.monotonic() - began
    assert next(asked) > 0
    assert results(run) == results(whole)
    seconds = [json.loads(line)["seconds"] for line in (run / "timings.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[-1] - seconds[3] <= took
    assert 0 <= status(run)["seconds"] <= seconds[3] + took
