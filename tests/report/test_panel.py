"""Means over seeds: what is said about methods follows from their histories."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from fedmime.cli.report import Report, run
from fedmime.errors import DataError
from fedmime.report import panel
from fedmime.report.recorded import Recorded, load_all
from fedmime.report.target import Target, asked
from report.tables import table
from report.written import write_run

STUDENT = 4.302653  # of 95 % and three seeds


def recorded(label: str, seed: int, accuracy: list[float], every: int = 10, **config: object) -> Recorded:
    """A run that was evaluated every so many rounds."""
    rounds = every * len(accuracy)
    measured = np.full(rounds, np.nan)
    measured[every - 1 :: every] = accuracy
    history = {"round": np.arange(rounds), "test_accuracy": measured, "train_loss": 1 - measured}
    history["bytes_total"] = 2e6 * np.arange(1, rounds + 1)
    asked = {"label": label, "task": "t", "seed": seed, "eta": 0.1, "eta_server": 1.0}
    return Recorded(f"{label} ({seed})", history, config=asked | config)


def three(label: str, *reached: int | None) -> list[Recorded]:
    """Runs of six evaluations that reach 0.9 at the given ones."""
    return [
        recorded(label, seed, [0.95 if at is not None and k >= at else 0.5 for k in range(1, 7)])
        for seed, at in enumerate(reached)
    ]


def test_means_and_intervals_are_those_of_the_histories() -> None:
    runs = [*three("Mime", 1, 2, 3), *three("FedAvg", 4, 4, None), *three("SCAFFOLD", None, None, None)]
    mime, fedavg, scaffold = panel.Panel("P", runs, target=Target(0.9)).rows()
    assert mime.rounds_to_target == (10, 20, 30)
    assert mime.mean == pytest.approx((20, STUDENT * 10 / math.sqrt(3)), rel=1e-6)
    assert panel.cells(mime) == ["0.1", "20 ± 25", "95.0", "40.0", "10, 20, 30"]
    assert fedavg.mean is None
    assert panel.cells(fedavg)[1::3] == ["in 2 of 3 seeds", "40, 40, –"]
    assert panel.cells(scaffold)[1::3] == ["not in 60", "–"]
    assert mime.facts()["mean_rounds_to_target"] == 20
    assert fedavg.facts()["interval"] is None


def test_sentences_name_the_means_and_who_failed() -> None:
    runs = [*three("FedAvg", 5, 6, 6), *three("Mime", 1, 2, 3), *three("SCAFFOLD", 1, 2, None), *three("FedDyn", None)]
    told = panel.sentence(panel.Panel("P", runs, target=Target(0.9)))
    assert told == (
        "To reach 90 % test accuracy, Mime took 20 rounds and FedAvg 57, in the mean over 3 seeds. "
        "SCAFFOLD did so with some seeds only. FedDyn did not in all rounds."
    )


def test_gaps_are_reached_from_above() -> None:
    target = asked({"target": None, "target_gap": 0.065, "optimum": 0.0})
    assert target == Target(0.065, 0.0)
    assert target.metric == "train_loss"
    assert target.rounds(recorded("Mime", 0, [0.5, 0.93, 0.94, 0.95]).history) == 30
    assert asked({"target": 0.9, "target_gap": None, "optimum": 0.0}) == Target(0.9)
    assert asked({}) is None


def test_figures_show_the_target() -> None:
    for aim, line in ((Target(0.9), "target 90 %"), (Target(0.02, 0.04), "target 0.02")):
        curves, bars = panel.pictures(panel.Panel("P", three("Mime", 1, 2, 3), target=aim), "p")
        ax = curves.figure.axes[0]
        marked = [each for each in ax.get_lines() if each.get_label() == line]
        assert [np.unique(each.get_ydata()).tolist() for each in marked] == [[aim.value]]
        assert ax.get_ylim()[0] < aim.value < ax.get_ylim()[1]
        assert "20 ± 25" in [text.get_text() for text in bars.figure.axes[0].texts]


def test_runs_of_one_method_are_told_as_means() -> None:
    assert panel.several(three("Mime", 1, 2, 3))
    assert not panel.several([recorded("Mime", 0, [0.5]), recorded("FedAvg", 0, [0.5])])
    assert not panel.several([recorded("Mime", 0, [0.5]), recorded("Mime", 0, [0.5], task="u")])
    assert panel.several([recorded("Mime", 0, [0.5], target_gap=0.1, optimum=0.0)])


def test_two_comparisons_are_two_panels_of_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, task in (("a", "digits"), ("b", "letters")):
        for method in ("FedAvg", "Mime"):
            for seed in range(2):
                write_run(tmp_path / name / f"{method}-seed{seed}", method, rounds=60, seed=seed, task=task)
    panel.remember(tmp_path / "a", "First <b>", "Said of the first.", ["Mime", "FedAvg"])
    assert run(Report((tmp_path / "a", tmp_path / "b"), title="Both", json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["title"] for each in told["panels"]] == ["First <b>", "b"]
    page = (tmp_path / "report.html").read_text()
    assert Path(told["report"]).resolve() == tmp_path / "report.html"
    assert re.findall(r"<h2>(.*?)</h2>", page)[:2] == ["First &lt;b&gt;", "b"]
    assert "Said of the first." in page
    assert page.count("target 75 %") == 2
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert [row.label for row in panel.load(tmp_path / "a").rows()] == ["Mime", "FedAvg"], "as they were asked for"
    rows = panel.load(tmp_path / "b").rows()
    assert [row.label for row in rows] == ["FedAvg", "Mime"]
    assert table(page, "")[-2:] == [[row.label, *panel.cells(row)] for row in rows]


def test_one_panel_of_several_seeds_is_a_page_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        write_run(tmp_path / f"Mime-seed{seed}", "Mime", rounds=60, seed=seed)
    assert run(Report((tmp_path,), figures=True, target=0.5)) == 0
    written = capsys.readouterr().out.splitlines()
    assert {Path(path).suffix for path in written} == {".html", ".png", ".pdf"}
    (row,) = panel.make(tmp_path, load_all([tmp_path]), Target(0.5)).rows()
    assert f"Mime took {row.mean[0]:.0f} rounds, in the mean over 3 seeds." in (tmp_path / "report.html").read_text()


def test_a_damaged_comparison_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "Mime-seed0", "Mime", rounds=6)
    (tmp_path / "compare.json").write_text("[")
    with pytest.raises(DataError, match=r"compare\.json' is damaged"):
        panel.load(tmp_path)
