"""A user's own task, algorithm and store by name, from the first sweep to the report."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import fedmime as fm
from faults.program import said, server
from fedmime import named
from fedmime.experiments import tasks, train
from fedmime.report import html

SOURCE = Path(__file__).with_name("own_task.py")


def forget() -> None:
    """As in a new process: no file of the user's own has been read yet."""
    for module in named.from_files():
        del sys.modules[module.__name__]
    sys.modules.pop("own_of_mine", None)
    for cached in (tasks._own, tasks.problem, train._population):
        cached.cache_clear()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the file, from which commands are given; reports are written without the figures of any run."""
    for figures in ("standard", "diagnostics"):
        monkeypatch.setattr(html, figures, lambda *_: [])
    shutil.copy(SOURCE, tmp_path / "own_of_mine.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    forget()


def done(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    ended = said(words.split(), capsys)
    assert ended.code == 0, ended.err
    return ended.out


def test_every_verb_on_forty_lines(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len((home / "own_of_mine.py").read_text().splitlines()) <= 40
    file, module = "own_of_mine.py:mine", "own_of_mine:mine"
    swept = json.loads(done(f"sweep --task {file} --algorithm mime_lite --grid eta=0.3,0.1 --json", capsys))
    assert len(swept["points"]) == 2
    assert (home / "runs/sweep-districts-mime_lite/sweep.html").is_file()
    out = done(f"compare --task {module} --methods a=own_of_mine.py:swift:adam@0.03 own_of_mine:swift", capsys)
    assert "swift with Mom" in out
    assert sorted(path.parent.name for path in home.glob("runs/compare-districts/*/model.safetensors")) == [
        "a",
        "swift with Mom",
    ]
    assert "districts, 10 clients" in done(
        f"diagnose --task {module} --clients 4 --curvature-clients 2 --quiet", capsys
    )
    assert json.loads(done(f"tune --task {file} --clients 5 --central-rounds 4 --json", capsys))["eta"] > 0
    with server(home) as program:  # Ctrl-C in the middle of a run
        child = program.start(["train", "--task", file, "--rounds", 2000, "--out", "run", "--quiet"])
        metrics = home / "run" / "metrics.jsonl"
        assert child.until(lambda: metrics.is_file() and metrics.stat().st_size > 0)
        child.kill(signal.SIGINT)
        assert child.wait() == 130, child.said()
    config = yaml.safe_load((home / "run/config.yaml").read_text())
    assert config["task"] == str(home / file)
    rounds = len(metrics.read_text().splitlines()) + 2
    assert f"MimeMom: {rounds} rounds" in done(f"resume run --rounds {rounds} --quiet", capsys)
    assert "after 5 steps" in done("eval run --finetune 5", capsys)
    assert "run/report.html" in done("report run", capsys)


@pytest.mark.parametrize("names", ["{file}:mine", "own_of_mine:mine"])
def test_workers_of_a_sweep_find_the_task(names: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = names.format(file="own_of_mine.py")
    found = json.loads(done(f"sweep --task {task} --grid eta=0.3,0.1 --rounds 2 --workers 2 --json", capsys))
    alone = json.loads(done(f"sweep --task {task} --grid eta=0.3,0.1 --rounds 2 --workers 1 --out x --json", capsys))
    assert [p["score"] for p in found["points"]] == pytest.approx([p["score"] for p in alone["points"]])


def test_an_edited_or_missing_file_is_noticed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "own_of_mine.py"
    words = "--task own_of_mine.py:mine --algorithm own_of_mine.py:swift --rounds 2"
    done(f"train {words} --out run --quiet", capsys)
    identity = json.loads((home / "run/identity.json").read_text())
    assert identity["sources"] == {field: named.digest(f"{file}:mine") for field in ("task", "algorithm")}
    sweep = f"sweep {words} --grid eta=0.1 --evaluate-every 1"
    done(sweep, capsys)
    assert len(list(home.glob("runs/sweep-*/cache/*.npz"))) == 1
    file.write_text(file.read_text().replace("nnx.Linear(2, 8", "nnx.Linear(2, 8 + 0"))
    forget()
    ended = said(["resume", "run"], capsys)
    assert ended.code == 5
    assert "sources.task: 'own_of_mine.py " in ended.err
    done(sweep, capsys)
    assert len(list(home.glob("runs/sweep-*/cache/*.npz"))) == 2  # of another version, no point is taken
    file.rename(home / "own_of_yours.py")
    forget()
    ended = said(["resume", "run"], capsys)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"fedmime: task: there is no file '{file}'; did you mean 'own_of_yours.py'?\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--task own_of_mine.py:min", "own_of_mine.py has no 'min'; did you mean 'mine'?"),
        ("--task own_of_min:mine", "there is no module 'own_of_min'; did you mean 'own_of_mine'?"),
        (
            "--task own_of_mine.py:Net",
            "must be an fm.Task, or a function without arguments that makes one, got Module",
        ),
        ("--task own_of_mine:swift", "TypeError: swift() missing 2 required positional arguments"),
        ("--task broken.py:mine", "ZeroDivisionError: division by zero (broken.py, line 1)"),
        ("--algorithm own_of_mine.py:net", "but it made Problem("),
        ("--algorithm own_of_mine.py:districts --eta 0.1", "eta=0.1 is no number of '"),
        ("--algorithm mimee", "got 'mimee'; did you mean 'mime'?"),
        ("--base own_of_mine.py:nett", "has no 'nett'; did you mean 'net'?"),
        ("--model mlp", "model: --model needs --data, too"),
        ("--model mlp --data own_of_mine.py", "is not a store"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: str, told: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "broken.py").write_text("1 / 0\n")
    task = "" if "--task" in words or "--model" in words else "--task own_of_mine.py:mine"
    ended = said(["train", *task.split(), *words.split(), "--rounds", "1"], capsys)
    assert told in ended.err
    assert ended.code == (3 if "own_of_mine.py" in words and "--data" in words else 2)
    assert len(ended.err.splitlines()) == 1


def test_a_loss_of_ones_own_that_raises_is_named_with_its_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (home / "own_of_mine.py").read_text().replace("nnx.relu(self.hidden(x))", "self.nothing")
    (home / "own_of_mine.py").write_text(text)
    ended = said(["train", "--task", "own_of_mine.py:mine"], capsys)
    assert ended.code == 2
    assert "nothing" in ended.err
    assert "own_of_mine.py, line 14" in ended.err
    assert len(ended.err.splitlines()) == 1


LOSS_ONLY = """
import jax.numpy as jnp
import numpy as np
import fedmime as fm


def line():
    rng = np.random.default_rng(0)
    def draw(n):
        x = rng.normal(size=(n, 1)).astype("f4")
        return {"x": x, "y": 2 * x[:, 0] + 1}
    return fm.data.from_arrays({f"c{i}": draw(8) for i in range(6)}, test=draw(20))


def least_squares():
    return fm.models.from_functions(
        init=lambda key: {"w": jnp.zeros(1), "b": jnp.zeros(())},
        loss=lambda p, batch, key: (batch["x"] @ p["w"] + p["b"] - batch["y"]) ** 2,
    )


task = fm.Task("line/fit: one", least_squares, line, rounds=4, cohort=3, eta=0.1)
"""


def test_the_lowest_loss_decides_where_there_is_no_accuracy(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "line.py").write_text(LOSS_ONLY)
    swept = json.loads(done("sweep --task line.py:task --grid eta=0.3,0.001 --evaluate-every 1 --json", capsys))
    assert (swept["metric"], swept["best"]) == ("loss", {"eta": 0.3})
    assert swept["best_score"] == min(point["score"] for point in swept["points"])
    tuned = json.loads(done("tune --task line.py:task --clients 4 --central-rounds 4 --check --json", capsys))
    assert tuned["central_loss"] < tuned["carried_loss"] + 10
    assert "test loss" in done("train --task line.py:task --quiet", capsys)
    assert (home / "runs/line-fit-one/MimeMom-seed0/best.safetensors").is_file()
    table = done("compare --task line.py:task --methods fedavg mime --quiet", capsys)
    assert "Best test loss" in (home / "runs/compare-line-fit-one/report.html").read_text()
    assert "loss" in table
    assert "–" not in table.replace("report", "")
    wrong = said(
        ["compare", "--task", "line.py:task", "--methods", "fedavg", "--rates", "0.1", "--target", "0.5"], capsys
    )
    assert (wrong.code, "its problem reports none; give target_gap" in wrong.err) == (2, True)


def test_a_built_in_model_on_a_store_of_ones_own(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    population = named.load("task", "own_of_mine.py:districts")()
    population.save(home / "store")
    told = json.loads(done("train --model mlp --data store --rounds 2 --cohort 3 --json --quiet", capsys))
    assert told["out"] == "runs/mlp-store/MimeMom-seed0"
    config = yaml.safe_load((home / told["out"] / "config.yaml").read_text())
    assert config["task"] == f"mlp@{home}/store"
    done(f"resume {told['out']} --rounds 3 --quiet", capsys)
    assert "10 clients" in done("diagnose --model logistic --data store --quiet", capsys)
    wrong = said(["train", "--model", "char_lstm", "--data", "store"], capsys)
    assert wrong.code == 2
    assert "char_lstm learns from sequences of tokens" in wrong.err
    wrong = said(["train", "--task", "annotators", "--model", "mlp", "--data", "store"], capsys)
    assert "give --task annotators or --model mlp with --data, not both" in wrong.err


def test_tasks_are_checked_where_they_are_made() -> None:
    def made(**fields: object) -> fm.Task:
        return fm.Task(**({"name": "a", "problem": dict, "population": dict} | fields))  # pyright: ignore[reportArgumentType]

    for fields, told in (
        ({"name": " "}, "task: name must be a text of one line, got ' '"),
        ({"problem": 3}, "task: problem must be a function, got 3"),
        ({"rounds": 0}, "task: rounds must be"),
        ({"eta": -1}, "task: eta must be positive, got -1"),
        ({"target": 2}, r"task: target must lie in \[0, 1\], got 2"),
        ({"target_gap": 0.1}, "needs the optimum"),
    ):
        with pytest.raises(fm.ConfigError, match=told):
            made(**fields)
    with pytest.raises(fm.ConfigError, match=r"problem must return a Problem from fm\.models"):
        made().model()


def test_data_dir_is_given_to_those_who_take_it() -> None:
    seen = []
    task = fm.Task("a", dict, lambda data_dir: seen.append(data_dir))  # pyright: ignore[reportArgumentType]
    with pytest.raises(fm.ConfigError, match="population must return a Population"):
        task.clients("here")
    assert seen == ["here"]
