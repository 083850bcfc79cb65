"""The options of a setting for messages on their way, and what the command line makes of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import fedmime as fm
from fedmime.aggregation.chains import chain
from fedmime.cli.main import main
from fedmime.errors import ConfigError
from fedmime.experiments import messages, recipes, tasks
from fedmime.experiments.setting import Messages, Setting, read

g = fm.aggregation
SHORT = ["--task", "digits-logistic", "--cohort", "4", "--rounds", "3", "--steps", "1", "--quiet"]


def _setting(**options: object) -> Setting:
    setting = Setting(task="digits-logistic", cohort=10, aggregation=Messages(**options))
    return recipes.resolved(setting, tasks.get(setting.task))


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"quantize": 8, "rotate": True, "quantize_down": 4}, chain(g.quantize(8, rotate=True), down=g.quantize(4))),
        ({"random_k": 0.1, "quantize": 2}, chain(g.random_k(0.1), g.quantize(2))),
        ({"top_k": 0.1, "error_feedback": True}, g.error_feedback(g.top_k(0.1))),
        ({"low_rank": 2}, chain(g.low_rank(2))),
        ({"clip": 1.0, "clip_gradient": 2.0}, chain(g.clip(1.0, gradient=2.0))),
        ({"clip": 1.0, "noise": 0.5, "quantile": 0.5}, chain(g.gaussian(1.0, 0.5, quantile=0.5))),
        ({"clip": 1.0, "epsilon": 4.0, "delta": 1e-6}, chain(g.gaussian(1.0, target_epsilon=4.0, delta=1e-6))),
        ({"combine": "median"}, chain(g.median())),
        ({"combine": "trimmed_mean", "trim": 0.3}, chain(g.trimmed_mean(0.3))),
        ({"combine": "krum", "trim": 0.2}, chain(g.krum(2))),
        ({"attack": "sign_flip", "attack_scale": 3.0}, chain(g.attack("sign_flip", 0.2, 3.0))),
    ],
)
def test_options_name_steps(options: dict[str, object], meant: g.Aggregator) -> None:
    found = messages.aggregator(_setting(**options))
    assert found is not None
    assert chain(found) == meant


def test_without_options_nothing_happens_to_messages() -> None:
    assert messages.aggregator(_setting()) is None
    assert recipes.label(_setting()) == "MimeMom"


def test_a_method_is_called_by_what_happens_to_its_messages() -> None:
    assert recipes.label(_setting(quantize=8, quantize_down=8)) == "MimeMom 8 bits"
    assert recipes.label(_setting(combine="trimmed_mean", attack="sign_flip")) == "MimeMom trimmed mean under sign flip"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"noise": 1.0}, "aggregation.noise needs aggregation.clip, too"),
        ({"epsilon": 1.0}, "aggregation.epsilon needs aggregation.clip, too"),
        ({"clip_gradient": 1.0}, "aggregation.clip_gradient needs aggregation.clip, too"),
        ({"clip": 1.0, "quantile": 0.5}, "aggregation.quantile needs aggregation.noise or epsilon, too"),
        ({"rotate": True}, "aggregation.rotate needs aggregation.quantize, too"),
        ({"attack_scale": 2.0}, "aggregation.attack_scale needs aggregation.attack, too"),
        ({"quantize": 17}, "bits must be a whole number from 1 to 16, or 32, got 17"),
        ({"clip": 1.0, "noise": 1.0, "combine": "median"}, "gaussian bounds what one client changes"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        messages.aggregator(_setting(**options))


def test_a_file_may_nest_or_dot_them(tmp_path: Path) -> None:
    (tmp_path / "nested.yaml").write_text("aggregation: {quantize: 8, random_k: 0.5}\n", encoding="utf-8")
    (tmp_path / "dotted.yaml").write_text("aggregation.quantize: 8\naggregation.random-k: 0.5\n", encoding="utf-8")
    nested, dotted = (read(tmp_path / f"{name}.yaml", Setting()) for name in ("nested", "dotted"))
    assert nested == dotted == dataclasses.replace(Setting(), aggregation=Messages(quantize=8, random_k=0.5))


def test_train_resume_and_sweep_take_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = ["--weights", "uniform", "--aggregation.clip", "1", "--aggregation.noise", "1"]
    out = str(tmp_path / "run")
    assert main(["train", *SHORT, *private, "--algorithm", "fedavg", "--out", out]) == 0
    assert "at δ 1e-05" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    spent = [row["epsilon"] for row in rows]
    assert spent == sorted(spent)
    assert main(["resume", out, "--rounds", "4", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] > spent[-1]
    assert main(["train", *SHORT, *private[:-1], "2", "--algorithm", "fedavg", "--out", out]) == 5
    assert "aggregation.privacy.noise_multiplier: 1.0 -> 2.0" in capsys.readouterr().err
    assert main(["report", out, "--out", str(tmp_path / "report.html")]) == 0
    assert "Privacy ε" in (tmp_path / "report.html").read_text(encoding="utf-8")
    eight = ["--aggregation.quantize", "8", "--aggregation.quantize-down", "8"]
    assert main(["sweep", *SHORT, *eight, "--grid", "eta=0.1,0.3", "--out", str(tmp_path / "sweep")]) == 0
