"""`fedmime diagnose`: what it measures, what it says, and in which forms."""

import dataclasses
import json

import pytest

import fedmime as fm
from fedmime.cli.main import main
from fedmime.experiments import tasks
from fedmime.experiments.diagnose import advise, diagnose
from fedmime.experiments.diagnose_report import constant_rows, figure, rate_rows, section, write
from fedmime.experiments.diagnose_words import as_json, caveats, words
from fedmime.theory import Constants

TASK = "digits-logistic"


@pytest.fixture(scope="module")
def measured():
    return diagnose(TASK, clients=5, curvature_clients=2, along=1)


def _told(**changed):
    """A diagnosis of constants that are given, not measured."""
    given = Constants(
        **{"G2": 0.5, "sigma2": 2.0, "L": 4.0, "delta": 0.1, "loss": 2.0, "deltas": (0.1, 0.02)} | changed
    )
    sizes = tasks.get(TASK).population(None).sizes
    return advise(TASK, tasks.get(TASK), sizes, [(0, given)], 0.1, 10, 0)


def test_measures_along_a_run(measured):
    assert [at for at, _ in measured.points] == [0, 1]
    first, second = (one for _, one in measured.points)
    assert first.loss > second.loss > 0
    assert measured.worst.delta == max(first.delta, second.delta)
    assert first.loss == measured.F
    assert measured.eps == pytest.approx(0.1 * first.gradient_norm2)
    assert measured.cohort == tasks.get(TASK).cohort


def test_alike_clients_favour_local_steps():
    found = _told()
    assert found.suggested_steps == 40
    assert found.favoured.method == "MimeMVR"
    assert found.factor > 5
    said = " ".join(words(found))
    assert "alike enough for local steps" in said
    assert "K = 40 local steps" in said
    assert f"MimeMVR, {found.factor:.3g} times fewer than Server-only" in said
    assert "Adam's rate stalls" not in said


def test_clients_that_differ_do_not():
    found = _told(delta=8.0, G2=5.0)
    assert found.favoured.method.startswith("Server-only")
    said = " ".join(words(found))
    assert "promises nothing from local steps" in said
    assert "Adam's rate stalls there; it needs cohorts of 51 clients" in said
    assert any("0.02" in line or "within" in line for line in caveats(found))


def test_tables(measured):
    assert [row[0] for row in constant_rows(measured)] == ["G²", "σ²", "L", "δ"]
    assert all("along the run" in row[2] for row in constant_rows(measured))
    rows = rate_rows(measured)
    assert len(rows) == 11
    assert rows[-1][0] == "any server-only method"
    assert constant_rows(_told())[0][1:3] == ("0.5", "–")


def test_is_plain_data(measured):
    found = json.loads(json.dumps(as_json(measured), allow_nan=False))
    assert found["constants"]["L"] == measured.worst.L
    assert [point["round"] for point in found["points"]] == [0, 1]
    assert found["points"][0]["cost"]["products"] > 0
    assert {"method", "terms", "dominating", "rounds"} <= set(found["table"][0])
    assert found["favoured"]["method"] == measured.favoured.method


def test_writes_files(measured, tmp_path):
    written = [path.name for path in write(measured, tmp_path / "out")]
    assert written == ["diagnosis.json", "diagnosis.html", "constants.png", "constants.pdf"]
    page = (tmp_path / "out" / "diagnosis.html").read_text()
    assert "MimeMVR" in page
    assert "<svg" in page
    assert figure(_told()) is None
    assert len(section(_told())) == 2


def test_command_line(capsys, monkeypatch, measured):
    asked = {}

    def remember(task, **options):
        asked.update(options, task=task)
        return measured

    monkeypatch.setattr("fedmime.experiments.diagnose.diagnose", remember)
    assert main(["diagnose", "--task", TASK, "--cohort", "7", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "MimeMVR" in told
    assert "What this does not say" in told
    assert (asked["task"], asked["cohort"], asked["along"]) == (TASK, 7, 0)
    assert main(["diagnose", "--task", TASK, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == TASK


def test_refuses_what_makes_no_sense(capsys):
    assert main(["diagnose", "--task", "digit-logistic"]) == 2
    assert "did you mean 'digits-logistic'?" in capsys.readouterr().err
    with pytest.raises(fm.ConfigError, match="diagnose: eps must be positive, got -1"):
        diagnose(TASK, eps=-1.0)
    with pytest.raises(fm.ConfigError, match="diagnose: along must be a whole number of at least 0, got -1"):
        diagnose(TASK, along=-1)


def test_worst_constants_are_the_largest_of_each(measured):
    small, large = measured.points[0][1], measured.points[1][1]
    both = [(0, dataclasses.replace(small, G2=9.0, L=1.0)), (1, dataclasses.replace(large, G2=1.0, L=9.0))]
    worst = advise(TASK, tasks.get(TASK), tasks.get(TASK).population(None).sizes, both, 0.1, 10, 0).worst
    assert (worst.G2, worst.L) == (9.0, 9.0)
