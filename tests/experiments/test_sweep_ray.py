"""Sweeps on Ray: points on workers, or every point on all of them, and what happens when workers die."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedmime as fm

pytest.importorskip("ray", reason="the extra fedmime[ray] is not installed")

from fedmime.engine.backends.ray import cluster
from fedmime.engine.backends.ray.worker import Facts
from fedmime.errors import ClusterError, ConfigError
from fedmime.experiments import grid, sweep_share
from fedmime.experiments.setting import Setting
from fedmime.experiments.sweep import Swept, sweep
from fedmime.experiments.sweep_ray import Actors, OnRay, ShareActor
from fedmime.experiments.sweep_rounds import Lockstep
from fedmime.experiments.sweep_spread import Spread
from fedmime.experiments.sweep_trial import Shelf

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("ray")]
RATES = {"eta": (1.0, 0.1, 0.01)}
SETTING = Setting(task="digits-logistic", algorithm="scaffold", rounds=4, cohort=5, evaluate_every=2, drift=False)
ONE, TWO = fm.backends.local(devices=1), fm.backends.ray(workers=2)


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[None]:
    """One Ray for all tests of this file."""
    cluster.CLUSTER.take(None)
    yield
    cluster.CLUSTER.release()


@pytest.fixture(scope="module")
def whole() -> Swept:
    return sweep(SETTING, RATES, workers=1, backend=ONE)


def test_points_on_workers_have_the_bits_of_one_process(whole: Swept, tmp_path: Path, caplog) -> None:
    """One of the two workers is killed before it has trained anything."""
    import ray

    values = grid.points(RATES)
    steps = Lockstep(sweep_share.prepare(SETTING, values, None, None), values, {2, 4}, Shelf(tmp_path), ONE)
    on_ray, rounds = OnRay(TWO), []
    actors = on_ray.start(sweep_share.job(SETTING, values, {2, 4}, None, None, tmp_path, 1), tmp_path)
    spread = Spread(steps.trials, lambda: actors)
    ray.kill(actors._alive[0])
    with caplog.at_level(logging.WARNING):
        spread.advance(steps.trials, 4, lambda: rounds.append(1))
    assert [trial.loss for trial in steps.trials] == [trial.loss for trial in whole.trials]
    assert len(rounds) == 12
    assert [message.split(" (")[0] for message in caplog.messages] == ["sweep: a Ray worker is lost"]
    ray.kill(actors._alive[0])
    with pytest.raises(ClusterError, match="no Ray worker is left"):
        spread.advance(steps.trials, 6, lambda: None)
    spread.close()
    on_ray.close()


def test_a_point_on_all_workers_agrees_with_one_process_which_can_go_on_with_it(tmp_path: Path) -> None:
    """The parts of a round are prepared once for all points; the rates are each point's own."""
    said: list[str] = []
    mime = Setting(task="digits-logistic", algorithm="mime", cohort=5, rounds=2, evaluate_every=1, drift=False)
    both = {"eta": (0.1, 0.01)}
    sweep(mime, both, backend=fm.backends.ray(workers=3), cache=tmp_path, say=said.append)
    assert said == ["sweep: 2 points in turn, each on 3 Ray workers, because 3 workers are more than that"]
    longer = dataclasses.replace(mime, rounds=4)
    found, alone = (sweep(longer, both, workers=1, cache=cache) for cache in (tmp_path, None))
    for ours, theirs in zip(found.trials, alone.trials, strict=True):
        np.testing.assert_allclose(ours.loss, theirs.loss, 1e-10)


def test_workers_without_the_directory_or_with_other_versions_are_refused(tmp_path: Path) -> None:
    ours = Facts.here()
    assert ShareActor().hello(ours, str(tmp_path))
    with pytest.raises(ConfigError, match=r"is not there on .*; name a directory that all machines share"):
        ShareActor().hello(ours, str(tmp_path / "mark"))
    with pytest.raises(ConfigError, match=r"has numpy '.*', the driver has '1.0'"):
        ShareActor().hello(ours._replace(numpy="1.0"), str(tmp_path))


def test_actors_claim_what_workers_of_a_run_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With two GPUs there is room for two of three actors, each with a device of its own."""
    import ray

    claimed: list[dict[str, Any]] = []
    actors = SimpleNamespace(remote=lambda: SimpleNamespace(hello=SimpleNamespace(remote=lambda *_: object())))
    monkeypatch.setattr(
        ray, "remote", lambda _: SimpleNamespace(options=lambda **given: claimed.append(given) or actors)
    )
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 2.0})
    monkeypatch.setattr(Actors, "_answers", lambda *_: [])
    started = Actors(fm.backends.ray(workers=3, address="10.0.0.1:6379", cores_per_worker=2), "", tmp_path)
    assert (claimed[0]["num_cpus"], claimed[0]["num_gpus"], started.count) == (2, 1, 2)
