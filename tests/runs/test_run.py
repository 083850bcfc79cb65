"""The result of a run, from memory and from a directory."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.setting import a, model, same
from fedmime.errors import CheckpointError, DataError
from fedmime.runs import identity
from fedmime.runs.directory import IDENTITY, MODEL
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
