"""The driver before its workers start."""

from __future__ import annotations

import dataclasses

import jax
import pytest

import fedmime as fm
from engine.setting import PROBLEM
from fedmime.engine.backends.ray.driver import RayBackend, _name


def test_starting_a_back_end_starts_no_process() -> None:
    pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")
    started = fm.backends.ray(workers=5).start(PROBLEM, PROBLEM.init(jax.random.key(0)))
    assert isinstance(started, RayBackend)
    assert started._crew is None
    started.close()


def test_workers_know_a_problem_by_its_origin_or_by_the_object() -> None:
    """A name never stands for two problems; models of the library have the same name in every process."""
    twin = dataclasses.replace(PROBLEM)
    assert _name(PROBLEM) == _name(PROBLEM) != _name(twin)
    ours, equal, other = (fm.models.logistic((4,), classes) for classes in (3, 3, 2))
    assert _name(ours) == _name(equal) != _name(other)
