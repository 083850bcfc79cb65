"""`fedmime diagnose`: what it measures, what it says, and in which forms."""

import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest

import fedmime as fm
from fedmime.cli.main import main
from fedmime.experiments import tasks
from fedmime.experiments.diagnose import advise, diagnose
from fedmime.experiments.diagnose_report import constant_rows, figure, rate_rows, section, write
from fedmime.experiments.diagnose_words import as_json, caveats, disagreements, words
from fedmime.theory import Constants

TASK = "digits-logistic"


@pytest.fixture(scope="module")
def measured():
    return diagnose(TASK, clients=5, curvature_clients=2, along=1)


@functools.cache
def _sizes():
    return tasks.get(TASK).clients().sizes


def _told(epochs=1, steps=None, eps=0.1, S=10, **changed):
    """A diagnosis of constants that are given, not measured."""
    given = Constants(
        **{"G2": 0.5, "sigma2": 2.0, "L": 4.0, "delta": 0.1, "loss": 2.0, "deltas": (0.1, 0.02)} | changed
    )
    return advise(tasks.get(TASK), _sizes(), [(0, given)], eps, S, 0, epochs, steps)


def test_measures_along_a_run(measured):
    assert [at for at, _ in measured.points] == [0, 1]
    first, second = (one for _, one in measured.points)
    assert first.loss > second.loss > 0
    assert measured.worst.delta == max(first.delta, second.delta)
    assert first.loss == measured.F
    assert measured.eps == pytest.approx(0.1 * first.gradient_norm2)
    assert measured.cohort == tasks.get(TASK).cohort


def test_alike_clients_favour_local_steps():
    found = _told(epochs=None, steps=40)
    assert found.suggested_steps == 40
    assert found.favoured.method == "MimeMVR"
    assert found.factor > 5
    said = " ".join(words(found))
    assert f"local steps pay: MimeMVR takes {found.factor:.3g} times fewer rounds than Server-only" in said
    assert "K = L/δ = 40 local steps. An average client takes 40, about as many" in said
    assert "Adam's rate stalls" not in said


def test_clients_that_differ_do_not():
    found = _told(delta=8.0, G2=5.0)
    assert found.favoured.method.startswith("Server-only")
    said = " ".join(words(found))
    assert "local steps do not pay" in said
    assert "Adam's rate stalls there; it needs cohorts of 51 clients, more than there are" in said
    assert any("0.02" in line or "within" in line for line in caveats(found))


@pytest.mark.parametrize("delta", [0.01, 1.0, 2.1, 3.9, 4.0, 8.0])
@pytest.mark.parametrize("G2", [0.01, 0.5, 50.0])
def test_says_nothing_that_the_table_contradicts(G2, delta):
    for steps, eps, S, sigma2 in itertools.product((1, 2, 50), (1e-3, 0.1, 2.0), (1, 10, 50), (0.0, 9.0)):
        found = _told(None, steps, eps, S, G2=G2, delta=delta, sigma2=sigma2)
        rounds = {row.method: row.rounds for row in found.table}
        verdict, *others = words(found)
        assert ("local steps do not pay" in verdict) != ("times fewer" in verdict)
        assert ("times fewer" in verdict) == (rounds[found.local.method] < rounds[found.server_only.method])
        assert (found.favoured.method == found.local.method) == ("times fewer" in verdict)
        assert f"{found.favoured.method} takes" in verdict
        assert not any(claim in line for line in others for claim in ("times fewer", "pay off", "promises", "not pay"))
        assert ("LF/(Kε)" in found.local.terms) <= any("fewer, for which" in line for line in others)
        stalls = any("Adam's rate stalls" in line for line in others)
        assert stalls == (rounds["Mime Adam"] == float("inf"))


def test_judges_the_local_steps_that_run(measured):
    batches = float(np.ceil(_sizes()[_sizes() > 0] / 10).mean())
    assert _told().steps == pytest.approx(batches)
    ten = _told(epochs=10)
    assert (ten.steps, ten.K) == (pytest.approx(10 * batches), round(10 * batches))
    assert f"takes {10 * batches:.3g} in 10 epochs of batches of 10, fewer" in " ".join(words(_told(10, delta=0.01)))
    assert "9.4 times as many" in " ".join(words(_told(None, 47, delta=0.8)))
    few, many = (_told(None, steps, delta=0.1) for steps in (2, 40))
    row = {found.K: next(row for row in found.table if row.method == "MimeMVR") for found in (few, many)}
    assert not row[2].holds
    assert row[40].holds
    assert row[2].rounds > row[40].rounds
    assert few.mvr != many.mvr
    assert measured.epochs == 1
    assert diagnose(TASK, clients=2, curvature_clients=1, eps=0.1, steps=7).steps == 7


def test_momentum_has_rows_and_is_explained():
    found = _told()
    assert {"Server-only momentum", "MimeLite momentum", "Mime momentum"} <= {row[0] for row in rate_rows(found)}
    assert any("read Mime with momentum as MimeMVR" in line for line in words(found))


def test_says_that_a_sizeable_cohort_has_less_noise():
    assert "noise of sampling them is 0 times" in disagreements(_told(S=50))[-1]
    assert not any("noise of sampling" in line for line in disagreements(_told(S=5)))
    assert "larger cohorts" not in " ".join(words(_told(S=50)))


def test_tables(measured):
    assert [row[0] for row in constant_rows(measured)] == ["G²", "σ²", "L", "δ"]
    assert all("along the run" in row[2] for row in constant_rows(measured))
    rows = rate_rows(measured)
    assert len(rows) == 14
    assert (rows[-1][0], rows[-1][-1]) == ("any server-only method", "lower bound")
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
    assert main(["diagnose", "--task", TASK, "--cohort", "7", "--epochs", "3", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "MimeMVR" in told
    assert "What this does not say" in told
    assert "Where runs did otherwise" in told
    assert (asked["task"], asked["cohort"], asked["along"]) == (TASK, 7, 0)
    assert (asked["epochs"], asked["steps"]) == (3, None)
    assert main(["diagnose", "--task", TASK, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == TASK


def test_refuses_what_makes_no_sense(capsys):
    assert main(["diagnose", "--task", "digit-logistic"]) == 2
    assert "did you mean 'digits-logistic'?" in capsys.readouterr().err
    with pytest.raises(fm.ConfigError, match="diagnose: eps must be positive, got -1"):
        diagnose(TASK, eps=-1.0)
    with pytest.raises(fm.ConfigError, match=r"diagnose: give epochs or steps, not both \(epochs=1, steps=2\)"):
        diagnose(TASK, epochs=1, steps=2)
    with pytest.raises(fm.ConfigError, match="diagnose: steps must be a whole number of at least 1, got 0"):
        diagnose(TASK, steps=0)
    with pytest.raises(fm.ConfigError, match="diagnose: along must be a whole number of at least 0, got -1"):
        diagnose(TASK, along=-1)


def test_worst_constants_are_the_largest_of_each(measured):
    small, large = measured.points[0][1], measured.points[1][1]
    both = [(0, dataclasses.replace(small, G2=9.0, L=1.0)), (1, dataclasses.replace(large, G2=1.0, L=9.0))]
    worst = advise(tasks.get(TASK), _sizes(), both, 0.1, 10, 0, 1, None).worst
    assert (worst.G2, worst.L) == (9.0, 9.0)
