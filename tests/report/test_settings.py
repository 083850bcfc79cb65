"""What differs between runs, under names that all of them have."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fedmime as fm
from fedmime.cli.main import main
from fedmime.report import comparable, settings
from fedmime.report.recorded import load
from report.tables import table

COHORT = 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same task with FedAvg, once by the command line and once in Python, at another rate."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMIME_NO_COMPILATION_CACHE", "1")
        words = ["train", "--task", "digits-logistic", "--algorithm", "fedavg", "--cohort", str(COHORT), "--eta", "0.1"]
        assert main([*words, "--rounds", "2", "--quiet", "--out", str(folder / "typed")]) == 0
        fm.simulate(
            fm.algorithms.fedavg(0.3),
            fm.models.logistic(input_shape=(8, 8, 1), classes=10),
            fm.data.digits(clients=50, alpha=0.1, seed=0),
            rounds=3,
            cohort_size=COHORT,
            drift=True,
            clients_every=0,
            run_dir=folder / "written",
        )
        yield folder


def test_only_what_really_differs_is_shown(runs: Path) -> None:
    found = {"algorithm.eta": ["0.1", "0.3"], "rounds": ["2", "3"]}
    assert settings.differing(load(runs)) == found
    shared = settings.shared(load(runs))
    assert (shared["algorithm"], shared["schedule.cohort_size"]) == ("FedAvg", str(COHORT))
    assert main(["report", str(runs)]) == 0
    text = (runs / "report.html").read_text()
    assert table(text, "differing") == [[name, *values] for name, values in found.items()]


def test_runs_of_one_task_are_compared(runs: Path) -> None:
    assert comparable.warning(load(runs)) == ""


def test_a_run_alone_keeps_the_names_of_its_maker(runs: Path) -> None:
    assert settings.shared(load(runs / "typed"))["task"] == "digits-logistic"
    assert settings.shared(load(runs / "written"))["algorithm"] == "FedAvg"
