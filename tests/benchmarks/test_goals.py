"""Goals are judged by medians, and what was not measured is never called reached."""

import threading

import pytest
from benchmarks.goals import Goal, evaluate, run
from benchmarks.peer import Pair


@pytest.fixture
def goals(results):
    return {goal.name: goal for goal in evaluate(results)}


def test_times_faster_than_a_peer(goals):
    goal = goals["FedAvg on mlp: times faster than pytorch"]
    assert goal.figures == {"cpu": pytest.approx(3.5), "wall": pytest.approx(7.0)}
    assert goal.verdict == "reached"
    assert goals["FedAvg on mlp: times faster than fedjax"].verdict == "missed in cpu"
    assert goals["FedAvg on logistic: times faster than fedjax"].verdict == "not measured"


def test_limits_differ_by_model(goals):
    assert goals["FedAvg on cnn: times faster than fedjax"].verdict == "reached"
    assert goals["Mime on mlp, E=1: times our FedAvg"].verdict == "reached"
    assert goals["Mime on cnn, E=1: times our FedAvg"].verdict == "missed in cpu"
    assert goals["second core on mlp: times faster"].figures["wall"] == pytest.approx(1.8)
    assert goals["second core on mlp: times faster"].beside == pytest.approx(1.5)


def test_memory_and_compilations(goals):
    assert goals["peak memory of 342,477 clients over 2,000"].figures["number"] == pytest.approx(1.25)
    assert goals["programs compiled after round 2, random cohorts"].verdict == "reached"
    assert goals["programs compiled after the first round, same cohort"].figures["number"] == 0


def test_nothing_measured_reaches_nothing():
    judged = run({})
    assert judged["reached"] == 0
    assert {goal["verdict"] for goal in judged["goals"]} == {"not measured"}


def test_a_limit_may_be_met_exactly():
    assert Goal("", {"cpu": 1.0}, 1.0).verdict == "reached"
    assert Goal("", {"cpu": 1.0}, 1.0, at_least=False).verdict == "reached"
    assert Goal("", {"cpu": 0.9, "wall": 0.8}, 1.0).verdict == "missed"


def test_a_pair_is_asked_at_once_and_answers_with_the_mean():
    meeting = threading.Barrier(2, timeout=20)

    class Stub:
        def __init__(self, wall):
            self.wall = wall

        def ask(self, **request):
            if "out" not in request:
                meeting.wait()  # neither answers before the other was asked
            return {"wall": self.wall}

    pair = Pair(Stub(1.0), Stub(3.0))
    assert pair.ask(do="stretch", case="FedAvg", seconds=0) == {"wall": 2.0}
    assert pair.ask(do="check", case="FedAvg", rounds=1, out="weights") == {"wall": 1.0}


def test_two_processes_of_a_sweep_are_held_against_one():
    def judged(sections):
        return next(goal for goal in evaluate(sections) if "two processes" in goal.name)

    assert judged({"workers": {"ratio": 0.55}}).verdict == "reached"
    assert judged({"workers": {"ratio": 0.7}}).verdict == "missed"
    assert judged({}).verdict == "not measured"


def test_ray_is_held_against_local():
    local, ray = {"wall": 0.1, "cpu": 0.2}, {"wall": 0.125, "cpu": 0.25, "compiled": 0}
    rows = [{"task": "t", "algorithm": name, "local": local, "ray": ray} for name in ("FedAvg", "Mime")]
    judged = [(goal.name, *goal.figures, goal.verdict) for goal in evaluate({"cluster": {"rounds": rows}})[-5:]]
    assert judged == [
        ("FedAvg on t, Ray: times local", "wall", "reached"),
        ("FedAvg on t, Ray: programs compiled after round 2", "number", "reached"),
        ("Mime on t, Ray: times local", "wall", "reached"),
        ("Mime on t, Ray: times local", "cpu", "missed"),
        ("Mime on t, Ray: programs compiled after round 2", "number", "reached"),
    ]
