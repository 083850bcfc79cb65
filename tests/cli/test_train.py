"""`train`, `resume` and `eval`: what they print, what they write, what they refuse."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

import fedmime as fm
from faults.program import said
from fedmime.cli.main import main
from fedmime.runs.directory import RunDirectory

ASKED = ["train", "--task", "digits-logistic", "--algorithm", "scaffold", "--cohort", "4", "--evaluate-every", "2"]
ROUNDS = ["--rounds", "4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    path = tmp_path_factory.mktemp("run") / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")
        assert main([*ASKED, *ROUNDS, "--out", str(path), "--quiet"]) == 0
    return path


def test_json_says_what_the_lines_say(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command again: nothing is left to do, and the result is told."""
    before = (run / "metrics.jsonl").read_bytes()
    ended = said([*ASKED, *ROUNDS, "--out", run, "--json", "--quiet"], capsys)
    assert (ended.code, ended.err) == (0, "")
    told, history = json.loads(ended.out), fm.Run.load(run).history
    accuracy = history["test_accuracy"]
    assert told == {
        "method": "SCAFFOLD", "seed": 0, "rounds": 4, "accuracy": accuracy[-1], "best_accuracy": np.nanmax(accuracy),
        "loss": history["test_loss"][-1], "best_loss": np.nanmin(history["test_loss"]), "train_loss": None,
        "target": 0.85, "target_gap": None, "rounds_to_target": None,
        "bytes": history["bytes_total"][-1], "epsilon": None, "abandoned": 0, "out": str(run),
    }  # fmt: skip
    assert (run / "metrics.jsonl").read_bytes() == before


def test_people_read_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = said([*ASKED, *ROUNDS, "--out", run, "--quiet"], capsys)
    assert ended.out.startswith("SCAFFOLD: 4 rounds, accuracy ")
    assert "85% not reached" in ended.out
    assert ended.out.endswith(f"{run}\n")


def test_progress_is_plain_lines_elsewhere_than_on_a_terminal(tmp_path: Path, capsys) -> None:
    ended = said([*ASKED, *ROUNDS, "--out", tmp_path / "run"], capsys)
    lines = ended.err.splitlines()
    assert lines[-1].startswith("SCAFFOLD: round 4/4, accuracy ")
    assert " 0 s left" in lines[-1]
    assert 2 <= len(lines) <= 4
    assert "\x1b" not in ended.err


def test_resume_goes_further_as_a_longer_run(run: Path, tmp_path: Path, capsys) -> None:
    longer, copy = tmp_path / "longer", tmp_path / "copy"
    shutil.copytree(run, copy)
    assert said(["resume", copy, "--rounds", 6, "--quiet"], capsys).code == 0
    assert said([*ASKED, "--rounds", 6, "--out", longer, "--quiet"], capsys).code == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (copy / name).read_bytes() == (longer / name).read_bytes(), name
    assert json.loads((copy / "status.json").read_text())["rounds"] == 6


@pytest.mark.parametrize("words", [["resume", "RUN", "--rounds", 3], [*ASKED, "--rounds", 3, "--out", "RUN"]])
@pytest.mark.parametrize("dry", [False, True])
def test_fewer_rounds_than_are_finished_are_refused(
    words: list[object], dry: bool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    more = ["--dry-run"] if dry and words[0] == "train" else ["--quiet"]
    ended = said([run if word == "RUN" else word for word in words] + more, capsys)
    told = f"fedmime: rounds: {str(run)!r} has finished 4 rounds, so accepted are 4 and more, got 3\n"
    assert ended == (2, "", told)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_as_many_rounds_as_are_finished_are_finished_already(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = said(["resume", run, "--rounds", 4], capsys)
    assert (ended.code, ended.err) == (0, "SCAFFOLD: all 4 rounds were finished already\n")
    assert ended.out.startswith("SCAFFOLD: 4 rounds, accuracy ")
    assert json.loads((run / "status.json").read_text())["state"] == "done"


def test_configuration_holds_what_was_asked(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["label"], config["task"], config["algorithm"]) == ("SCAFFOLD", "digits-logistic", "scaffold")
    assert (config["rounds"], config["cohort"], config["batch"], config["eta"]) == (4, 4, 10, 0.1)
    assert config["server"] == {"optimizer": "sgd"}
    assert config["participation"]["sampler"] == "uniform"


def test_a_file_and_the_command_line_make_one_setting(run: Path, tmp_path: Path, capsys) -> None:
    """The file says most, the command line counts more."""
    file = tmp_path / "asked.yaml"
    file.write_text(
        "task: digits-logistic\nalgorithm: scaffold\ncohort: 40\nrounds: 4\nevaluate-every: 2\neta: 1e-1\n"
        f"out: {tmp_path / 'run'}\nparticipation.drop-out: 0\nquiet: true\n"
    )
    assert said(["train", "--config", file, "--cohort", 4], capsys).code == 0
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()


def test_dry_run_writes_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    ended = said([*ASKED, *ROUNDS, "--dry-run", "--json"], capsys)
    told = json.loads(ended.out)
    assert told["out"] == "runs/digits-logistic/SCAFFOLD-seed0"
    assert told["setting"]["eta"] == 0.1
    plan = told["plan"]
    assert (plan["method"], plan["clients"], plan["cohort"], plan["rounds"]) == ("SCAFFOLD", 50, 4, 4)
    assert plan["parameters"] == 650
    assert plan["bytes_down"] == plan["bytes_up"] == 2 * 4 * plan["model_bytes"]
    assert plan["total_bytes"] == 4 * (plan["bytes_down"] + plan["bytes_up"])
    assert plan["total_seconds"] == pytest.approx(4 * plan["seconds"])
    people = said([*ASKED, *ROUNDS, "--dry-run"], capsys).out
    assert "4 of 50 a round" in people
    assert "650 parameters" in people
    assert not list(tmp_path.iterdir())


def test_dry_run_counts_what_a_run_sends(run: Path, capsys) -> None:
    plan = json.loads(said([*ASKED, *ROUNDS, "--dry-run", "--json"], capsys).out)["plan"]
    history = fm.Run.load(run).history
    assert plan["total_bytes"] == history["bytes_total"][-1]
    assert plan["bytes_down"] == history["bytes_down"][0]


@pytest.mark.parametrize("verb", ["resume", "eval"])
def test_directories_without_a_run(verb: str, tmp_path: Path, capsys) -> None:
    for path in (tmp_path, tmp_path / "none"):
        ended = said([verb, path], capsys)
        assert ended.code == 5
        assert ended.err == f"fedmime: {str(path)!r} holds no run: there is no config.yaml\n"


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("- a list", 5, "damaged"),
        ("a: [", 5, "damaged"),
        ("{}", 2, "made"),
        ("task: nothing", 2, "there is no 'nothing'"),
        ("task: digits-logistic\neta: fast", 2, "eta must be a number"),
        ("task: digits-logistic\ndata_dir: 5", 2, "data_dir must be a path or nothing, got 5"),
        ("task: digits-logistic\nkeep: many", 2, "keep must be a whole number, got 'many'"),
        ("task: digits-logistic\nlabel: [a]", 2, "label must be text or nothing, got ['a']"),
        ("task: [digits-logistic]", 2, "task must be text"),
        ("\x00\x01", 5, "damaged"),
        ("", 5, "damaged"),
    ],
)
@pytest.mark.parametrize("verb", ["resume", "eval"])
def test_damaged_configurations(verb: str, text: str, code: int, told: str, run: Path, tmp_path: Path, capsys) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "config.yaml").write_text(text)
    ended = said([verb, copy], capsys)
    assert ended.code == code
    assert told in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[]", b"null", b"[" * 100_000])
def test_damaged_identities(content: bytes, run: Path, tmp_path: Path, capsys) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "identity.json").write_bytes(content)
    for words in (["resume", copy], ["eval", copy], [*ASKED, *ROUNDS, "--dry-run", "--out", copy]):
        ended = said(words, capsys)
        assert ended.code == 5
        assert "identity.json' is damaged: it must hold a JSON object" in ended.err
        assert ended.err.count("\n") == 1


def test_models_of_another_run_are_not_evaluated(run: Path, tmp_path: Path, capsys) -> None:
    copy, other = Path(shutil.copytree(run, tmp_path / "run")), tmp_path / "other"
    assert said([*ASKED, "--rounds", 1, "--eta", 0.01, "--quiet", "--out", other], capsys).code == 0
    shutil.copy(other / "model.safetensors", copy)
    ended = said(["eval", copy], capsys)
    assert ended.code == 5
    assert "model.safetensors' belongs to a run of another configuration" in ended.err
    assert said(["eval", copy, "--best", "--json"], capsys).code == 0


REFUSED = {
    "cohort": (["--cohort", "51"], 2, "cohort=51 exceeds"),
    "both": (["--epochs", "1", "--steps", "2"], 2, "epochs or steps"),
    "split": (["--algorithm", "mime", "--split", "--cohort", "5"], 2, "must be even"),
    "checkpoints": (["--checkpoint-every", "0"], 2, "every must be"),
    "drop out": (["--participation.drop-out", "1.1"], 2, "drop_out must"),
    "no data": (["--task", "emnist-logistic", "--data-dir", "none"], 3, "none"),
    "another run": (["--eta", "0.5"], 5, "another configuration"),
    "a file": (["--out", "run/config.yaml"], 74, "run/config.yaml"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_dry_run_refuses_what_a_run_refuses(case: str, run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    words, code, told = REFUSED[case]
    shutil.copytree(run, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    asked = [*ASKED, *ROUNDS, "--out", "run", *words]
    dry = said([*asked, "--dry-run"], capsys)
    assert (dry.code, dry.out, dry.err.count("\n")) == (code, "", 1)
    assert told in dry.err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    real = said([*asked, "--quiet"], capsys)
    assert real.code == code
    assert told in real.err


def test_dry_run_looks_at_the_directory(run: Path, tmp_path: Path, capsys) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    asked = [*ASKED, *ROUNDS, "--out", copy, "--dry-run"]
    assert said(asked, capsys).code == 0
    with RunDirectory(copy, keep=3):
        ended = said(asked, capsys)
        assert (ended.code, ended.err.count("\n")) == (6, 1)
    for manifest in copy.glob("checkpoints/*/MANIFEST.json"):
        manifest.write_text("")
    ended = said(asked, capsys)
    assert ended.code == 5
    assert "no checkpoint" in ended.err
    assert said([*asked, "--fresh"], capsys).code == 0
    assert list(copy.glob("checkpoints/*/MANIFEST.json"))


def test_models_that_were_damaged(run: Path, tmp_path: Path, capsys) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "model.safetensors").write_bytes(b"\x08" * 9)
    ended = said(["eval", copy], capsys)
    assert (ended.code, ended.err.count("\n")) == (3, 1)
    (copy / "model.safetensors").unlink()
    assert said(["eval", copy], capsys).code == 5


def test_ray_is_refused_where_it_cannot_be(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [*ASKED, "--backend", "ray"]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ended = said([*asked, "--ray-address", "10.0.0.1:6379"], capsys)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "token" in ended.err
    ended = said(["sweep", *asked[1:], "--ray-address", "10.0.0.1:6379"], capsys)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "token" in ended.err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ended = said(asked, capsys)
    assert (ended.code, ended.err) == (2, "fedmime: the Ray back end is an extra: pip install 'fedmime[ray]'\n")


def test_ray_trains_the_same_model(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Begun on Ray, ended here; nothing that Ray has to say reaches the streams."""
    pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")
    path = tmp_path / "run"
    ended = said([*ASKED, "--rounds", "2", "--backend", "ray", "--out", path, "--json", "--quiet"], capsys)
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out)["rounds"] == 2
    assert said(["resume", path, "--rounds", "4", "--json", "--quiet"], capsys).code == 0
    one, other = fm.Run.load(run), fm.Run.load(path)
    np.testing.assert_allclose(one.history["test_loss"], other.history["test_loss"], 1e-9)
