"""A report says what the recorded runs say, whatever is in their files."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup

import fedmime as fm
from fedmime.errors import DataError
from fedmime.report import html
from fedmime.report.bars import client_accuracies
from fedmime.report.comparable import warning
from fedmime.report.curves import mean_interval, with_intervals
from fedmime.report.heatmap import heat_map
from fedmime.report.picture import Picture, save, svg
from fedmime.report.recorded import load, load_all, rounds_to_target
from report.tables import expected_headline, table
from report.written import change, change_rows, write_run

EVIL = '<script>alert("1")</script> & $x'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for label in ("FedAvg", "Mime"):
        write_run(root / label, label, rounds=60)
    return root


def test_the_table_says_what_the_metrics_say(runs: Path) -> None:
    text = html.page("Two runs", load(runs), pictures=[])
    assert table(text, "headline") == [expected_headline(runs / label, 0.75) for label in ("FedAvg", "Mime")]
    assert "Mime took 30 rounds. FedAvg did not reach it." in text


def test_all_that_comes_from_files_is_escaped(tmp_path: Path) -> None:
    path = write_run(tmp_path / "evil", "Mime", rounds=5, label=EVIL, task=EVIL, note={EVIL: EVIL})
    for name in ("env.json", "data.json"):
        change(path / name, **{"name": EVIL, "git": EVIL, EVIL: EVIL})
    change(path / "status.json", state="failed", reason=EVIL)
    (path / "command.txt").write_text(EVIL)
    text = html.page(EVIL, load(path), [html.Section(EVIL, EVIL, table=html.Table([EVIL], [[EVIL, EVIL]], EVIL))])
    assert "<script" not in text.lower()
    assert text.count("alert(") > 10
    assert _Tags.of(text) == _Tags.of(html.page("", load(path), pictures=[])) | {"section", "caption"} | _Tags.SVG
    marked = html.page("", (), [html.Section("Own", Markup("<p id='own'>told</p>"))])
    assert "<p id='own'>told</p>" in marked


class _Tags(HTMLParser):
    """The kinds of elements in a page."""

    SVG = frozenset({"figure", "figcaption", "g", "path", "defs", "use", "clippath", "rect", "text", "pattern"})

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        for name, value in attrs:
            assert name not in ("src", "href") or (value or "").startswith("#"), "nothing is loaded from elsewhere"

    @classmethod
    def of(cls, text: str) -> set[str]:
        parser = cls()
        parser.feed(text)
        return parser.found | cls.SVG


def test_nothing_is_fetched_and_figures_follow_the_ground(runs: Path) -> None:
    text = html.page("Two runs", load(runs))
    assert not re.findall(r"(?:url\(|@import|(?:src|href)=)[\"']?(?!#)[^\"')]", text)
    assert "default-src 'none'" in text
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids)), "ids of one figure must not be those of another"
    for colour in ("0a5fa8", "d55e00", "1f2328"):
        assert f"--c-{colour}: #{colour}" in text
        assert f"var(--c-{colour},#{colour})" in text
    assert {"accuracy-rounds", "accuracy-bytes", "loss-rounds", "loss-bytes", "rounds-to-target"} <= set(ids)
    assert {"client-accuracy", "drift", "gradient-norm", "deviation", "update-norm"} <= set(ids)


def test_what_differs_between_runs_is_marked(runs: Path) -> None:
    text = html.page("Two runs", load(runs), pictures=[])
    assert table(text, "differing") == [["algorithm", "fedavg", "mime"], ["eta", "0.1", "0.03"]]
    assert "optimizer.beta" in text
    assert "9f" * 32 in text
    assert "--algorithm fedavg" in text


def test_runs_on_different_data_are_not_compared(tmp_path: Path) -> None:
    for label in ("FedAvg", "Mime", "MimeLite"):
        write_run(tmp_path / label, label, rounds=60)
    assert 'id="different"' not in html.page("", load(tmp_path), pictures=[])
    change(tmp_path / "Mime/data.json", name="digits", sha256="ab" * 32, clients=50)
    text = html.page("Three runs", load(tmp_path), pictures=[])
    told = "These runs are on different data (FedAvg and MimeLite: handwriting; Mime: digits): "
    assert f"<strong>{told}their figures cannot be compared.</strong>" in text
    assert "To reach" not in text, "no comparison in words"
    assert 'class="best"' not in text, "and none in the table"
    assert "Bold" not in text


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"sha256": "ab" * 32}, "on different data (FedAvg: sha256 9f9f9f9f9f9f; Mime: sha256 abababababab)"),
        ({"clients": 340}, "on different data (FedAvg: 3400 clients; Mime: 340 clients)"),
        ({"test_examples": 5}, "on different data (FedAvg: 77000 test examples; Mime: 5 test examples)"),
        ({"sha256": None}, None),  # not known to differ
    ],
)
def test_what_tells_data_apart_is_said(facts: dict, told: str | None, tmp_path: Path) -> None:
    for label in ("FedAvg", "Mime"):
        write_run(tmp_path / label, label, rounds=2)
    change(tmp_path / "Mime/data.json", **facts)
    assert (told or "") in warning(load(tmp_path))
    assert bool(warning(load(tmp_path))) == (told is not None)


def test_runs_of_different_tasks_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "FedAvg", rounds=2)
    write_run(tmp_path / "b", "Mime", rounds=2, task="handwriting-cnn")
    told = "These runs are of different tasks (FedAvg: handwriting-mlp; Mime: handwriting-cnn): their figures do not "
    assert warning(load(tmp_path)).startswith(told)
    for name, width in (("c", 4), ("d", 5)):  # as the library writes it
        problem = {"name": "mlp", "arrays": {"w": f"float32[{width}, 3]"}}
        write_run(tmp_path / "own" / name, "Mime", rounds=2, task=None, problem=problem)
    assert "(Mime (c): float32[4, 3]; Mime (d): float32[5, 3])" in warning(load(tmp_path / "own"))


def test_missing_files_and_fields_leave_gaps(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/metrics.jsonl").write_text('{"round": 0, "loss": 2.0}\n{"round": 1, "loss": null}\n{"round": 2')
    (bare,) = load(tmp_path / "bare")
    assert bare.label == "bare"
    assert bare.history["round"].tolist() == [0, 1]
    text = html.page("Bare", [bare])
    assert table(text, "headline") == [["bare", *["–"] * 6]]
    assert "training loss is not a finite number" in text
    (tmp_path / "bare/metrics.jsonl").write_text("")
    assert "No round was recorded." in html.page("Empty", load(tmp_path / "bare"))


def test_problems_are_said(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", "FedAvg", rounds=8)
    change_rows(path, {2: {"abandoned": True, "refused": 3}, 7: {"abandoned": True, "loss": None, "reason": "grew"}})
    change(path / "status.json", state="failed", rounds=40, reason="3 rounds in a row gave no finite model")
    text = html.page("Failed", load(path), pictures=[])
    for told in (
        "The run failed after 8 of 40 rounds: 3 rounds in a row gave no finite model.",
        "2 of 8 rounds were abandoned",
        "3 clients were left out of a round",
    ):
        assert told in text


def test_what_workers_of_ray_did_is_told(tmp_path: Path) -> None:
    """The first round was elsewhere; later, one of two workers was lost, and came back."""
    path, at = write_run(tmp_path / "Mime", "Mime", rounds=4), "bytes_broadcast"
    assert "Ray" not in html.page("Elsewhere", load(path), pictures=[])
    workers = {1: 2, 2: 1, 3: 2}
    rows = {
        n: {"workers": w, "workers_lost": int(w < 2), at: n * 10**6, "bytes_gathered": 0} for n, w in workers.items()
    }
    change_rows(path, rows)
    told = {
        name: value for name, value in table(html.page("Ray", load(path), pictures=[]), "provenance") if "Ray" in name
    }
    assert told == {
        "Ray workers": "1 to 2",
        "Ray workers lost": "1",
        "Ray, broadcast a round": "2.00 MB",
        "Ray, gathered a round": "0 MB",
    }


def test_runs_are_found_and_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, "Mime", rounds=3)
    write_run(tmp_path / "c", "Mime", rounds=3, label=None, algorithm="mime_lite", base="adam")
    assert [run.label for run in load(tmp_path)] == ["Mime (a)", "Mime (b)", "MimeLite (adam)"]
    assert [run.label for run in load_all([tmp_path / "c", tmp_path / "a", tmp_path / "a"])] == [
        "MimeLite (adam)",
        "Mime",
    ]
    for path, words in ((tmp_path / "none", "no such directory"), (tmp_path.parent / "empty", "holds a metrics.jsonl")):
        (tmp_path.parent / "empty").mkdir(exist_ok=True)
        with pytest.raises(DataError, match=words):
            load(path)
    (tmp_path / "a/config.yaml").write_text("a: [")
    with pytest.raises(DataError, match=r"config\.yaml' is damaged"):
        load(tmp_path / "a")
    change_rows(tmp_path / "b", {1: {"loss": [1]}})
    with pytest.raises(DataError, match="'loss' must be a number or null in every round, got"):
        load(tmp_path / "b")


@pytest.mark.parametrize("name", ["status.json", "config.yaml", "env.json", "data.json", "clients.json"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"- a\n", b"[1]", b"null", b"[" * 100_000])
def test_damaged_files_are_named(name: str, content: bytes, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", "Mime", rounds=2)
    (path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"^'.*{re.escape(name)}' is damaged: [^\n]*$"):
        load(path)


def test_values_of_another_kind_are_gaps(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", "Mime", rounds=3, target=10**400)
    (path / "timings.jsonl").write_text('{"round": 0, "seconds": "x"}\n{"round": 1}\n{"round": 2, "seconds": [1]}\n')
    for value in ("x", True, None, 10**400, float("nan"), [1], {"a": 1}):
        change(path / "status.json", state=value, seconds=value, rounds=value, round=value, reason=value)
        assert table(html.page("", load(path), pictures=[]), "headline")[0][6] == "–"
    change(path / "clients.json", accuracy=[10**400])
    with pytest.raises(DataError, match="lists must hold numbers"):
        load(path)
    change_rows(path, {1: {"loss": 10**400}})
    with pytest.raises(DataError, match="a number is too large"):
        load(path)


def test_clients_of_a_run_keep_their_names(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    examples = {
        name: {"x": drawn.normal(size=(6, 2, 2, 1)).astype("f4"), "y": np.arange(6) % 2} for name in ("Ada", "Bob")
    }
    clients = fm.data.from_arrays(examples, test_clients=fm.data.from_arrays(examples))
    problem = fm.models.logistic(input_shape=(2, 2, 1), classes=2)
    given = {"rounds": 2, "cohort_size": 2, "evaluate_every": 1, "clients_every": 1, "run_dir": tmp_path / "run"}
    fm.simulate(fm.algorithms.fedavg(0.1), problem, clients, **given)
    found = load(tmp_path / "run")[0].clients
    assert found["ids"] == ["Ada", "Bob"]
    assert found["accuracy"].shape == (2,)
    (shown,) = client_accuracies(load(tmp_path / "run"), "clients").axes
    assert "worst tenth" in shown.texts[1].get_text()


def test_rounds_to_target() -> None:
    history = {"round": np.arange(4), "test_accuracy": np.array([0.1, np.nan, 0.5, 0.4])}
    assert [rounds_to_target(history, goal) for goal in (0.1, 0.3, 0.5, 0.6)] == [1, 3, 3, None]


def test_intervals_are_students() -> None:
    rows = np.array([[0.1, 1.0], [0.2, 1.0], [0.6, 1.0]])
    mean, half = mean_interval(rows)
    np.testing.assert_allclose(mean, [0.3, 1.0])
    np.testing.assert_allclose(half, [4.302653 * np.std(rows[:, 0], ddof=1) / np.sqrt(3), 0], rtol=1e-6, atol=1e-12)
    figure = with_intervals({"Mime": rows, "FedAvg": rows[:1]}, np.array([1, 2]), "Seeds", target=0.5)
    assert "target 50 %" in svg(Picture("seeds", "Seeds", figure))


def test_heat_map_boxes_the_best_and_hatches_the_diverged(tmp_path: Path) -> None:
    figure = heat_map(np.array([[0.1, 0.8], [np.nan, 0.4]]), [1.0, 0.1], [1e-3, 1e-6], "Rates", "server rate", "ε")
    patches = figure.axes[0].patches
    assert [patch.get_xy() for patch in patches if patch.get_hatch()] == [(0, 1)]
    assert {patch.get_xy() for patch in patches if not patch.get_hatch()} == {(1, 0)}
    assert [text.get_text() for text in figure.axes[0].texts] == ["10%", "80%", "40%"]
    first = [path.read_bytes() for path in save(figure, tmp_path / "plots" / "heat")]
    assert first == [path.read_bytes() for path in save(figure, tmp_path / "again" / "heat")]
    assert first[0].startswith(b"\x89PNG")
    assert first[1].startswith(b"%PDF")


def test_metrics_are_read_as_they_were_written(runs: Path) -> None:
    rows = [json.loads(line) for line in (runs / "Mime/metrics.jsonl").read_text().splitlines()]
    (run,) = load(runs / "Mime")
    at, accuracy = run.series("test_accuracy")
    assert at.tolist() == [row["round"] + 1 for row in rows if "test_accuracy" in row]
    assert accuracy.tolist() == [row["test_accuracy"] for row in rows if "test_accuracy" in row]
