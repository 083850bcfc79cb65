"""Points of a sweep side by side: one pool of data, one layout of every cohort, one compiled round for all of them."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from fedmime.algorithms.abstract import anchor_of
from fedmime.algorithms.algorithm import params
from fedmime.engine import Gate, Info, Participation
from fedmime.engine.arguments import aggregator_of_run, intake_of
from fedmime.engine.backends.backend import Backend, Work
from fedmime.engine.backends.specification import Needs, Specification
from fedmime.engine.cohort import Cohort
from fedmime.engine.memory import remembered
from fedmime.engine.metrics import mean_metrics
from fedmime.engine.prefetch import Prefetch
from fedmime.engine.round import play
from fedmime.engine.sampling import Schedule
from fedmime.engine.work import run_key, work_of
from fedmime.errors import ConfigError
from fedmime.experiments import grid as grids
from fedmime.experiments import recipes
from fedmime.experiments.setting import Setting, plain
from fedmime.experiments.sweep_trial import Shelf, Trial
from fedmime.experiments.train import Prepared
from fedmime.runs import identity

Stop = Callable[[], Any] | None
"""Whether to end early: a signal's number, or anything else that is true."""

_FORMAT = 2  # of what is kept on disk
_SAVE_SECONDS = 60.0
# What does not decide a trial's numbers.
_UNIMPORTANT = ("target", "target_gap", "optimum", "clients_every", "drift", "rounds", "evaluate_every")


class Lockstep:
    """The trials of a grid, all at the same seed."""

    def __init__(
        self,
        prepared: Sequence[Prepared],
        values: Sequence[grids.Values],
        evaluations: Iterable[int],
        shelf: Shelf,
        backend: Specification,
    ) -> None:
        first, self._gate = prepared[0], Gate()
        self._problem, self._population = first.problem, first.population
        self._algorithms = [each.algorithm for each in prepared]
        if len({jax.tree.structure(algorithm) for algorithm in self._algorithms}) > 1:
            raise ConfigError("sweep: points must be of one algorithm; vary its numbers only")
        s = first.setting
        taking = Participation(**dataclasses.asdict(s.participation))
        assert s.cohort is not None
        self._schedule = Schedule(s.cohort, s.batch, s.epochs, s.steps, s.seed, s.weights, taking)
        self._key = run_key(s.seed)
        self._evaluations, self._shelf, self._specification = frozenset(evaluations), shelf, backend
        initial = first.initial
        self._model = self._problem.init(jax.random.fold_in(self._key, 0)) if initial is None else initial
        rounds = max(self._evaluations, default=1)
        intake = intake_of(self._problem, first.algorithm.pooled, self._model, self._population)
        intake.say()
        expected = None if first.algorithm.pooled else self._schedule.expected(self._population, rounds)
        self._needs = Needs(intake, expected=expected)
        server = first.algorithm.init(self._model).server
        self._anchor = anchor_of(first.algorithm, server)
        given = (server, self._schedule, self._population, rounds)
        self._aggregators = [aggregator_of_run(p.aggregation, p.algorithm, *given)[0] for p in prepared]
        if len({jax.tree.structure(aggregator) for aggregator in self._aggregators}) > 1:
            raise ConfigError("sweep: points must share their kind of aggregation; vary its numbers only")
        data = identity.data(self._population)
        start = {} if initial is None else {"initial": identity.digest_arrays(jax.tree.leaves(initial))}
        names = [_name(each.setting, data, recipes.sources(each.setting), start) for each in prepared]
        self.trials = [Trial(point, name) for point, name in zip(values, names, strict=True)]
        for trial in self.trials:
            self._shelf.recall(trial)

    @functools.cached_property
    def _backend(self) -> Backend:
        """Started when the first round needs it: points that others train need none here."""
        return self._specification.start(self._problem, self._model, self._needs)

    def advance(self, chosen: Sequence[Trial], until: int, on_round: Callable[[], None], stop: Stop = None) -> Any:
        """Run trials until so many rounds are done; those that diverge stop.

        Args:
            on_round: called after each round of a trial.
            stop: called after `on_round`; what is true ends it early, saved, and is returned.
        """
        for trial in chosen:
            if trial.unfinished(until) and trial.state is None:
                self._load(trial)
        going = [trial for trial in chosen if trial.unfinished(until)]
        if not going:
            return None
        saved = time.monotonic()
        start = min(trial.done for trial in going)
        prefetch = Prefetch(self._work, self._backend, start, until)
        for _ in range(start, until):
            work = prefetch.take()
            for trial in going:
                if trial.done == work.round and not trial.diverged:
                    self._step(trial, work, prefetch.prepare)
                    on_round()
                    if ended := stop and stop():
                        self._save(going)
                        return ended
            if time.monotonic() - saved > _SAVE_SECONDS:
                self._save(going)
                saved = time.monotonic()
            if all(trial.diverged for trial in going):
                break
        self._save(going)
        return None

    def close(self) -> None:
        """Let go of the back end."""
        if "_backend" in self.__dict__:
            self._backend.close()

    def _load(self, trial: Trial) -> None:
        place = self.trials.index(trial)
        algorithm, aggregator = self._algorithms[place], self._aggregators[place]
        start = algorithm.init(self._model)._replace(aggregation=aggregator.start())
        self._shelf.load(trial, start, remembered(algorithm, aggregator, start.server))

    def _step(self, trial: Trial, work: Work, meanwhile: Callable[[], object]) -> None:
        place = self.trials.index(trial)
        assert trial.state is not None
        work = self._work_of(place, work.round, work.cohort, trial.state.primes(self._algorithms[place]))
        given = {"largest": self._gate.largest, "meanwhile": meanwhile}
        trial.state, info = play(self._backend, work, trial.state, **given)
        trial.done += 1
        self._count_abandoned(trial, info)
        if trial.done in self._evaluations and self._population.test is not None:
            found = mean_metrics(self._backend, params(trial.state), self._population.test)
            trial.rounds.append(trial.done)
            for name in ("accuracy", "loss"):
                if name in found:
                    getattr(trial, name).append(found[name])

    def _count_abandoned(self, trial: Trial, info: Info) -> None:
        """A trial that loses as many rounds in a row as the gate has patience for has diverged."""
        if info.clients:
            trial.abandoned = trial.abandoned + 1 if info.abandoned else 0
        trial.diverged = trial.abandoned >= self._gate.patience

    def _work(self, t: int) -> Work:
        """A round as the first point has it if none of its gradient-only rounds was abandoned."""
        algorithm = self._algorithms[0]
        cohort = self._schedule.cohort(algorithm, self._population, t)
        return self._work_of(0, t, cohort, prime=t < algorithm.gradient_rounds)

    def _work_of(self, place: int, t: int, cohort: Cohort, prime: bool) -> Work:
        algorithm, aggregator = self._algorithms[place], self._aggregators[place]
        return work_of(algorithm, self._anchor, t, cohort, self._key, aggregator, prime=prime)

    def _save(self, trials: Iterable[Trial]) -> None:
        for trial in trials:
            self._shelf.save(trial)


def _name(setting: Setting, data: dict[str, object], sources: dict[str, str], start: dict[str, str]) -> str:
    """The digest of what decides a trial's numbers: not how long it goes on, unless its rate falls with that.

    Sources are those of the user's own code, so that points of another version of a model are never taken for this one.
    """
    facts = {name: value for name, value in plain(setting).items() if name not in _UNIMPORTANT}
    facts |= {
        "falls over": None if setting.decay == "constant" else setting.rounds,
        "data": data,
        "format": _FORMAT,
        **start,
    }
    facts |= {"sources": sources} if sources else {}
    facts["float64"] = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    return identity.digest(facts)
