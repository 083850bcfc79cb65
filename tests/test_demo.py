"""`make demo`: its files are sound, it installs no developers' tools, and it shows what it is there to show."""

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from faults.program import said
from fedmime.cli.compare import Compare
from fedmime.cli.options import setting_of
from fedmime.experiments import compare, train
from fedmime.experiments.setting import plain, read
from fedmime.report.target import Target, asked

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "examples").glob("demo*.yaml"))


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")


def planned(target: str, venv: Path) -> list[str]:
    """The commands that make would run."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make here")
    done = subprocess.run(
        [make, "-n", target, f"VENV={venv}"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def test_the_demo_installs_only_what_it_needs(tmp_path: Path) -> None:
    (installed,) = [line for line in planned("demo", tmp_path) if "pip" in line]
    assert installed.endswith("--editable '.[plot]'")
    (installed,) = [line for line in planned("install", tmp_path) if "pip" in line]
    assert installed.endswith("--editable '.[dev]'")


def test_neither_install_undoes_the_other(tmp_path: Path) -> None:
    """After the full install the demo needs none; after the demo's the full one is still to come."""
    (touched,) = [line for line in planned("install", tmp_path) if line.startswith("touch")]
    for stamp in touched.split()[1:]:
        Path(stamp).touch()
    assert not [line for target in ("demo", "install") for line in planned(target, tmp_path) if "pip" in line]
    Path(tmp_path / "installed").unlink()
    assert [line for line in planned("install", tmp_path) if "pip" in line]


def test_make_runs_every_file_of_the_demo(tmp_path: Path) -> None:
    for target in ("demo", "demo-rates"):
        named = re.findall(r"--config examples/(\S+)", "\n".join(planned(target, tmp_path)))
        assert sorted(named) == [file.name for file in FILES]


def test_the_rates_lie_inside_what_was_tried(tmp_path: Path) -> None:
    commands = "\n".join(planned("demo-rates", tmp_path))
    for file in FILES:
        (words,) = re.findall(rf"--config examples/{file.name} --rates (.*)", commands)
        tried = [float(word) for word in words.split()]
        for method in yaml.safe_load(file.read_text())["methods"]:
            rate = float(method.split("@")[1].split(",")[0])
            assert rate in tried[1:-1], method


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_method_is_planned(file: Path, tmp_path: Path, capsys) -> None:
    wanted = yaml.safe_load(file.read_text())
    ended = said(["compare", "--config", file, "--out", tmp_path / "runs", "--dry-run", "--json"], capsys)
    assert ended.code == 0, ended.err
    plans = [json.loads(line) for line in ended.out.splitlines()]
    assert wanted["seeds"] >= 3
    assert len(plans) == len(wanted["methods"]) == len({plan["out"] for plan in plans})
    assert wanted["caption"]


def test_mime_needs_at_most_half_of_fedavgs_rounds() -> None:
    """Runs are cut after 80 rounds, which counts as having reached the target there: in favour of FedAvg."""
    found = read(ROOT / "examples" / "demo.yaml", Compare())
    common = dataclasses.replace(setting_of(found), rounds=80, evaluate_every=2)
    rounds: dict[str | None, list[int]] = {"FedAvg": [], "Mime": []}
    for method in compare.methods(found.methods, common):
        for seed in range(3 if method.label in rounds else 0):
            prepared = train.prepare(dataclasses.replace(method.setting, seed=seed))
            target = asked(plain(prepared.setting))
            assert target == Target(0.96)
            rounds[method.label].append(target.rounds(train.run(prepared).history) or 80)
    assert max(rounds["Mime"]) < 80
    assert sum(rounds["Mime"]) <= sum(rounds["FedAvg"]) / 2
