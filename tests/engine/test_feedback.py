"""Samplers of the user's: what they are told, what they may answer, and that runs with them are exact."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedmime as fm
from engine.setting import KINDS, PROBLEM, close, model, population, same
from fedmime.engine import samplers
from fedmime.engine.backends.reference import ReferenceBackend
from fedmime.engine.intake import Intake

SIZES = (5, 9, 0, 14, 3, 7, 8, 2, 11)
CLIENTS = population(SIZES)


@dataclasses.dataclass(frozen=True)
class Highest:
    """The clients of highest loss, unknown ones first; it also notes what it is told."""

    told: list[tuple[int, np.ndarray]] = dataclasses.field(default_factory=list, compare=False)

    def __call__(self, t: int, sizes: np.ndarray, losses: np.ndarray, rng: np.random.Generator) -> list[int]:
        self.told.append((t, losses.copy()))
        losses[:] = np.nan  # its own copy
        order = np.argsort(-np.nan_to_num(self.told[-1][1], nan=np.inf), kind="stable")
        return [int(i) for i in order if sizes[i]]


def run(sampler: Any, rounds: int = 4, algorithm: Any = None, **others: Any) -> fm.Run:
    given = {"cohort_size": 4, "batch_size": 3, "seed": 1, "evaluate_every": 100, "initial": model()} | others
    taking = fm.Participation(sampler=sampler)
    return fm.simulate(algorithm or KINDS["fedavg"], PROBLEM, CLIENTS, rounds, participation=taking, **given)


def test_a_client_is_told_of_by_the_mean_loss_of_its_last_local_steps() -> None:
    sampler, whole = Highest(), {"batch_size": None, "steps": 1}
    last = run(sampler, 3, **whole)
    assert [t for t, _ in sampler.told] == [0, 1, 2]
    assert np.isnan(sampler.told[0][1]).all()
    models = [model(), *(run(Highest(), t, **whole).params for t in (1, 2))]  # before each round
    expected = np.full(len(SIZES), np.nan)
    for t, params in enumerate(models):
        np.testing.assert_allclose(sampler.told[t][1], expected, rtol=1e-6)
        order = np.argsort(-np.nan_to_num(sampler.told[t][1], nan=np.inf), kind="stable")
        for client in [i for i in order if SIZES[i]][:4]:
            expected[client] = PROBLEM.loss(params, CLIENTS.client_at(client), jax.random.key(0)).mean()
    np.testing.assert_allclose(last.state.losses, expected, rtol=1e-6)
    assert np.isnan(last.state.losses[2])  # who has no examples is never asked
    assert np.isfinite(np.delete(last.state.losses, 2)).all()


@pytest.mark.parametrize("kind", ["mime-adam", "mime_lite-split", "server_only"])
def test_back_ends_tell_the_same(kind: str) -> None:
    ours, theirs = (run(Highest(), 2, KINDS[kind], epochs=2, backend=b).state for b in ("local", "reference"))
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-6)
    close(ours.server, theirs.server)
    assert np.isnan(ours.losses).all() == (kind == "server_only")  # whose clients do not train


def test_a_resumed_run_draws_the_cohorts_of_an_unbroken_one(tmp_path: Path) -> None:
    whole = run(fm.samplers.power_of_choice(6), 6, run_dir=tmp_path / "whole")
    calls: Iterator[int | None] = iter([None, None, 15])
    saving = fm.Saving(every=2)
    with pytest.raises(fm.Stopped):
        run(fm.samplers.power_of_choice(6), 6, run_dir=tmp_path / "broken", saving=saving, stop=lambda: next(calls))
    resumed = run(fm.samplers.power_of_choice(6), 6, run_dir=tmp_path / "broken", saving=saving)
    assert same((whole.state.server, whole.state.losses), (resumed.state.server, resumed.state.losses))
    np.testing.assert_array_equal(whole.history["loss"], resumed.history["loss"])
    with pytest.raises(fm.CheckpointError, match=r"sampler\.candidates: 6 -> 5"):
        run(fm.samplers.power_of_choice(5), 6, run_dir=tmp_path / "broken")


def test_to_be_told_losses_changes_no_bit_of_a_round() -> None:
    def again(t: int, sizes: np.ndarray, losses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        there = np.flatnonzero(sizes)
        return there[samplers.uniform(len(there), 4, 1, t)]

    for kind in ("scaffold", "mime-adam"):
        ours, named = run(again, algorithm=KINDS[kind]), run("uniform", algorithm=KINDS[kind])
        assert same(ours.state.server, named.state.server)
        assert named.state.losses == ()


def test_power_of_choice_asks_the_candidates_of_highest_loss() -> None:
    sizes, rng = np.arange(40) % 4, np.random.default_rng
    losses = np.random.default_rng(0).random(40).astype(np.float32)
    losses[::5] = np.nan
    asked = fm.samplers.power_of_choice(12)(0, sizes, losses, rng(3))
    assert len(set(asked.tolist())) == 12
    assert sizes[asked].all()
    known = losses[asked]
    unknown = int(np.isnan(known).sum())
    assert 0 < unknown < 12
    assert np.isnan(known[:unknown]).all()
    assert (np.diff(known[unknown:]) <= 0).all()
    everybody = fm.samplers.power_of_choice(100)(0, sizes, losses, rng(3))
    assert sorted(everybody) == np.flatnonzero(sizes).tolist()
    draws = [fm.samplers.power_of_choice(1)(0, sizes, losses, rng(seed))[0] for seed in range(2000)]
    chances = np.bincount(sizes[draws], minlength=4) / 2000  # ten clients of each size: chances 0, 1/6, 2/6, 3/6
    np.testing.assert_allclose(chances, np.arange(4) / 6, atol=0.04)
    for candidates in (0, 2.5, True):
        with pytest.raises(fm.ConfigError, match="candidates must be a positive integer"):
            fm.samplers.power_of_choice(candidates)  # pyright: ignore[reportArgumentType]


def test_fewer_clients_than_wanted_are_a_smaller_cohort_or_an_abandoned_round() -> None:
    assert run(lambda t, sizes, losses, rng: [0, 1], 1).history["clients"].tolist() == [2]
    assert run(lambda t, sizes, losses, rng: [0], 1).history["abandoned"].all()
    assert run(lambda t, sizes, losses, rng: [], 1).history["abandoned"].all()
    assert run(lambda t, sizes, losses, rng: np.flatnonzero(sizes), 1).history["clients"].tolist() == [4]


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        ([0, 9], "round 0 drew client 9; accepted are positions from 0 to 8"),
        ([-1], "drew client -1"),
        ([1, 3, 1], "drew client 1 twice"),
        ([2], "drew client 2, which has no examples"),
        ([0.5], "must return positions of clients"),
        (7, "must return positions of clients"),
        (None, "must return positions of clients"),
    ],
)
def test_what_is_no_cohort_is_refused(drawn: Any, words: str) -> None:
    with pytest.raises(fm.ConfigError, match=words):
        run(lambda *_: drawn)


def test_what_is_no_sampler_is_refused() -> None:
    for sampler in (7, None, "best"):
        with pytest.raises(fm.ConfigError, match="sampler must be one of"):
            fm.Participation(sampler=sampler)  # pyright: ignore[reportArgumentType]
    noise = fm.aggregation.gaussian(1.0, 1.0, delta=1e-5)
    with pytest.raises(fm.ConfigError, match="gaussian needs sampler='uniform' or 'poisson'"):
        run(fm.samplers.power_of_choice(5), weights="uniform", aggregation=noise)


def test_a_back_end_that_cannot_tell_is_refused() -> None:
    class Silent(ReferenceBackend):
        def ask(self, *given: Any, **named: Any) -> Any:
            return super().ask(*given, **named)._replace(losses=None)

    class Specification:
        def start(self, problem: Any, model: Any, needs: Any) -> Silent:
            return Silent(problem, model, needs.intake or Intake(problem.check), needs.drift)

    run("uniform", 1, backend=Specification())
    with pytest.raises(fm.ConfigError, match="reports no losses of single clients"):
        run(Highest(), 1, backend=Specification())
