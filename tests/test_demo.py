"""`make demo`: its files are sound, it installs no developers' tools, and it shows what it is there to show."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from faults.program import said

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
    asked = yaml.safe_load(file.read_text())
    ended = said(["compare", "--config", file, "--out", tmp_path / "runs", "--dry-run", "--json"], capsys)
    assert ended.code == 0, ended.err
    plans = [json.loads(line) for line in ended.out.splitlines()]
    assert asked["seeds"] >= 3
    assert len(plans) == len(asked["methods"]) == len({plan["out"] for plan in plans})
    assert asked["caption"]


def test_mime_needs_at_most_half_of_fedavgs_rounds(tmp_path: Path, capsys) -> None:
    file = ROOT / "examples" / "demo.yaml"
    methods = [word for word in yaml.safe_load(file.read_text())["methods"] if re.match("(FedAvg|Mime)=", word)]
    words = ["compare", "--config", file, "--methods", *methods, "--seeds", "3", "--out", tmp_path, "--quiet", "--json"]
    told = {row["label"]: row for row in json.loads(said(words, capsys).out)["means"]}
    assert all(len(row["rounds_to_target"]) == 3 for row in told.values())
    assert told["Mime"]["mean_rounds_to_target"] <= told["FedAvg"]["mean_rounds_to_target"] / 2
