"""The result of a run, from memory and from a directory."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from engine.setting import a, model, same
from fedmime.errors import CheckpointError, DataError
from fedmime.runs import identity
from fedmime.runs.directory import IDENTITY, MODEL
from fedmime.runs.glance import nice
from fedmime.runs.history import METRICS
from fedmime.runs.run import Run, nested, read_model

ARRAYS = {"dense0.w": np.arange(6.0).reshape(2, 3), "dense0.b": np.zeros(2), "scale": np.ones(())}
TREE = {"dense0": {"w": ARRAYS["dense0.w"], "b": ARRAYS["dense0.b"]}, "scale": ARRAYS["scale"]}


def test_names_become_a_tree() -> None:
    assert nested({"a/b/c": 1, "a/d": 2, "e.f": 3}, "/") == {"a": {"b": {"c": 1}, "d": 2}, "e.f": 3}


def test_a_model_is_read_as_a_tree(tmp_path: Path) -> None:
    save_file(ARRAYS, tmp_path / MODEL)
    found = read_model(tmp_path / MODEL)
    assert same(found, TREE)
    assert found.keys() == TREE.keys()


@pytest.mark.parametrize("content", [b"", b"\x00" * 8, b"not safetensors at all"])
def test_a_damaged_model_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MODEL).write_bytes(content)
    with pytest.raises(DataError, match=rf"{MODEL}' is damaged: "):
        read_model(tmp_path / MODEL)


def test_a_model_of_another_configuration_is_refused(tmp_path: Path) -> None:
    facts = {"algorithm": {"kind": "Mime"}}
    (tmp_path / IDENTITY).write_text(json.dumps(facts))
    save_file(ARRAYS, tmp_path / MODEL, {"run": f"{identity.digest(facts)} after round 3"})
    assert same(read_model(tmp_path / MODEL), TREE)
    (tmp_path / IDENTITY).write_text(json.dumps(facts | {"seed": 1}))
    with pytest.raises(CheckpointError, match="belongs to a run of another configuration"):
        read_model(tmp_path / MODEL)


def test_a_run_in_memory_has_the_model_of_its_state() -> None:
    assert same(Run({}, a.fedavg(0.1).init(model())).params, model())


def test_a_run_is_loaded_before_it_has_a_model(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"round": 0, "loss": 2.0}\n{"round": 1, "loss": null}\n')
    run = Run.load(tmp_path)
    np.testing.assert_array_equal(run.history["loss"], [2.0, np.nan])
    with pytest.raises(DataError, match=rf"holds no {MODEL}; the run has not ended yet"):
        _ = run.params
    save_file(ARRAYS, tmp_path / MODEL)
    assert same(run.params, TREE)


def test_a_frame_needs_pandas(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install pandas; \.history has the same"):
        Run({"round": np.arange(2)}).frame()


HISTORY = {
    "round": np.arange(4),
    "loss": np.array([2.0, np.nan, 1.0, 0.5]),
    "test_accuracy": np.array([np.nan, 0.25, np.nan, 0.75]),
    "bytes_total": np.array([10, 20, 30, 4_200_000]),
    "reason": np.array([None, None, None, "<b>"], object),
}


def test_a_run_says_in_a_line_what_it_came_to() -> None:
    assert repr(Run(HISTORY)) == "Run(4 rounds, test accuracy 75.00%, loss 0.5, sent 4.2 MB)"
    assert repr(Run(HISTORY, path=Path("a/b"))).endswith("sent 4.2 MB; 'a/b')")
    assert repr(Run({})) == "Run(0 rounds)"


def test_a_notebook_shows_the_curves_of_what_was_measured() -> None:
    text = Run(HISTORY, path=Path("<script>"))._repr_html_()
    tree = ElementTree.fromstring(text)  # well-formed, whatever names it was given
    assert "<script>" not in text
    drawn = {svg.get("aria-label"): svg.find("polyline").get("points") for svg in tree.iter("svg")}
    assert drawn.keys() == {"test accuracy by round", "training loss by round"}
    assert [len(points.split()) for points in drawn.values()] == [2, 3]
    xs, ys = np.array([point.split(",") for point in drawn["training loss by round"].split()], float).T
    np.testing.assert_allclose(np.diff(xs)[0], 2 * np.diff(xs)[1], atol=0.2)  # rounds 1, 3 and 4
    np.testing.assert_allclose(np.diff(ys)[0], 2 * np.diff(ys)[1], atol=0.3)  # 2, 1 and 1/2; y grows downwards
    assert np.diff(ys)[0] > 0


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [-1e-12, 1e30], [np.nan, np.inf]])
def test_every_curve_can_be_drawn(values: list[float]) -> None:
    text = Run({"round": np.arange(len(values)), "loss": np.array(values)})._repr_html_()
    ElementTree.fromstring(text)
    assert "nan" not in text
    assert "inf" not in text


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e9))
def test_ticks_are_even_and_enclose_their_range(low: float, width: float) -> None:
    ticks = nice(low, low + width)
    assert len(ticks) <= 7
    step = np.diff(ticks)
    np.testing.assert_allclose(step, step[0], rtol=1e-6)
    assert ticks[0] <= low + 1e-8 * step[0]
    assert ticks[-1] >= low + width - 1e-8 * step[0]


def test_long_runs_are_thinned_out_and_keep_their_last_round() -> None:
    text = Run({"round": np.arange(5001), "loss": np.linspace(1, 0, 5001)})._repr_html_()
    (points,) = (line.get("points").split() for line in ElementTree.fromstring(text).iter("polyline"))
    assert len(points) < 450
    (dot,) = ElementTree.fromstring(text).iter("circle")
    assert points[-1] == f"{dot.get('cx')},{dot.get('cy')}"
