"""Checks before anything is computed: the schedule of a run, what clients keep, and the arguments of a round."""

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import PROBLEM, a, columns, model, o, population
from fedmime.aggregation.aggregator import PLAIN
from fedmime.engine.arguments import blank_memory, check_round, check_run, intake_of, schedule_of
from fedmime.engine.cohort import Cohort
from fedmime.engine.memory import remembered
from fedmime.engine.sampling import Schedule
from fedmime.errors import ConfigError, DataError

CLIENTS = population([3, 0, 4, 5])


def _schedule(**changes) -> Schedule:
    given = {
        "algorithm": a.fedavg(0.1),
        "population": CLIENTS,
        "rounds": 2,
        "cohort_size": 2,
        "batch_size": 4,
        "epochs": None,
        "steps": None,
        "seed": 0,
        "weights": "examples",
        "participation": None,
    }
    return schedule_of(**given | changes)


def test_one_epoch_is_the_default() -> None:
    assert (_schedule().epochs, _schedule().steps) == (1, None)
    assert (_schedule(steps=5).epochs, _schedule(steps=5).steps) == (None, 5)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"epochs": 1, "steps": 1}, ConfigError, r"give epochs or steps, not both \(epochs=1, steps=1\)"),
        ({"cohort_size": 4}, ConfigError, "cohort_size=4 exceeds the 3 clients with examples; lower it"),
        ({"algorithm": a.mime(o.sgd(), 0.1, split=True), "cohort_size": 3}, ConfigError, "must be even, got 3"),
        ({"steps": 2**27}, ConfigError, "the largest client would take 536,870,912 examples in a round"),
        ({"population": population([0, 0])}, DataError, "no client of the population has an example"),
        ({"algorithm": "fedavg"}, ConfigError, "algorithm must come from fm.algorithms"),
        ({"weights": "sizes"}, ConfigError, "weights must be one of 'examples', 'uniform'"),
        ({"rounds": 0}, ConfigError, "rounds must be a whole number of at least 1, got 0"),
    ],
)
def test_what_makes_no_schedule_is_refused(changes: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"^simulate: .*{words}"):
        _schedule(**changes)


@pytest.mark.parametrize(
    ("flags", "optional", "words"),
    [
        ({"drift": 1}, {}, "drift must be True or False, got 1"),
        ({}, {"gate": 3}, "gate must be an fm.Gate, got 3"),
        ({}, {"on_round": 3}, "on_round must be a function, got 3"),
        ({}, {"run_dir": 3}, "run_dir must be a path, got 3"),
    ],
)
def test_options_of_a_run_are_checked(flags: dict, optional: dict, words: str) -> None:
    check_run(PROBLEM, model(), {"drift": True}, {"gate": fm.Gate(), "on_round": None, "run_dir": "run"})
    with pytest.raises(ConfigError, match=words):
        check_run(PROBLEM, None, flags, optional)


def test_a_model_of_other_shapes_is_refused() -> None:
    with pytest.raises(ConfigError, match="initial"):
        check_run(PROBLEM, {"w": np.zeros((4, 3)), "b": np.zeros(4)}, {}, {})


def test_clients_that_keep_a_value_cannot_be_drawn_twice() -> None:
    twice = _schedule(participation=fm.Participation(sampler="with_replacement"))
    kept, nothing = (remembered(each, PLAIN, each.init(model()).server) for each in (a.scaffold(0.1), a.fedavg(0.1)))
    assert blank_memory(kept, _schedule()) is kept
    assert blank_memory(nothing, twice) == ()
    with pytest.raises(ConfigError, match="may draw a client twice"):
        blank_memory(kept, twice)


def test_clients_and_test_set_are_looked_at_before_the_first_round() -> None:
    problem, rng = fm.models.logistic((4,), 3), np.random.default_rng(0)
    params = problem.init(jax.random.key(0))
    good, bad = columns(rng, 3), columns(rng, 3)
    bad["y"][1] = 7
    look = lambda clients: intake_of(problem, False, params, clients)
    look(fm.data.from_arrays({"a": good}, test=good))
    with pytest.raises(DataError, match=r"^test set: logistic: field 'y' must hold labels in \[0, 2\], got 7"):
        look(fm.data.from_arrays({"a": good}, test=bad))
    with pytest.raises(DataError, match=r"^client 'b': logistic: field 'y' must hold labels in \[0, 2\], got 7"):
        look(fm.data.from_arrays({"a": good, "b": bad}))


def _cohort(**options) -> Cohort:
    rng = np.random.default_rng(0)
    return Cohort.from_batches([{name: column[None] for name, column in columns(rng, 3).items()}], **options)


def _check(algorithm=None, state=None, cohort=None, key=None, memory=None, drift=False) -> None:
    algorithm = algorithm or a.fedavg(0.1)
    check_round(algorithm, PROBLEM, state or algorithm.init(model()), cohort or _cohort(), key, memory, drift)


def test_a_round_of_its_own_state_is_accepted() -> None:
    for algorithm in (a.fedavg(0.1), a.mime(o.adam(), 0.1), a.scaffold(0.1)):
        _check(algorithm)
    full = [columns(np.random.default_rng(1), 4)] * 2
    _check(a.mime(o.sgd(), 0.1, split=True), cohort=_cohort(full=full), key=jax.random.key(0), drift=True)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"state": a.scaffold(0.1).init(model())}, ConfigError, "init of this very FedAvg, got a ScaffoldState"),
        ({"state": a.fedavg(0.1).init({"w": np.zeros(3)})}, ConfigError, "params"),
        ({"cohort": "all"}, ConfigError, "cohort must come from fm.Cohort.from_batches"),
        ({"key": 3}, ConfigError, "key"),
        ({"memory": 3}, ConfigError, "memory must be a client memory"),
        ({"drift": None}, ConfigError, "drift must be True or False"),
        ({"algorithm": a.mime(o.sgd(), 0.1, split=True)}, DataError, r"give them as full=\[...\]"),
    ],
)
def test_what_makes_no_round_is_refused(given: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"^run_round: .*{words}"):
        _check(**given)
