"""A deployed run: gather the clients, then run the engine's loop with a back end that asks them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmime import engine
from fedmime.aggregation.chains import Aggregation
from fedmime.algorithms.algorithm import Algorithm
from fedmime.deploy import affine
from fedmime.deploy.backend import Deployed
from fedmime.deploy.directory import alone, known, write
from fedmime.deploy.fleet import Fleet, Registered, Registry
from fedmime.deploy.messages import AFFINE, Hello
from fedmime.deploy.roster import Owners, Roster
from fedmime.deploy.secret import Secret
from fedmime.deploy.secure.options import SecureSum, check_secure, fields_of
from fedmime.deploy.secure.suitable import check_terms
from fedmime.deploy.terms import Terms, public, terms_of
from fedmime.deploy.transport import Transport
from fedmime.engine import Gate, Info, Participation, Run, Saving
from fedmime.engine.arguments import MOST_EXAMPLES
from fedmime.engine.backends.randomized import draws_random_numbers
from fedmime.engine.samplers import over_selected
from fedmime.errors import ConfigError
from fedmime.experiments import messages, recipes, tasks, train
from fedmime.experiments.setting import Setting
from fedmime.runs import identity
from fedmime.trackers import Callback
from fedmime.validation import NON_NEGATIVE, POSITIVE, count, made, real
from fedmime.version import exact

_NONE = "0" * 32  # in place of an identity or a nonce that is not there yet


@dataclasses.dataclass(frozen=True)
class Waiting:
    """For whom a server waits, and how long.

    Args:
        nodes: clients that must have joined before the first round; all that have joined by then belong to the run. By
            default as many as a round asks.
        joining: seconds to wait for them.
        deadline: seconds after which an exchange ends, whoever has replied.
        most_examples: that a client may claim to have. Where weights follow from examples, nobody can check how many a
            client has: the bound should not be much above the number that the largest one is known to have.
    """

    nodes: int | None = None
    joining: float = 600.0
    deadline: float = 600.0
    most_examples: int = 1_000_000

    def __post_init__(self) -> None:
        if self.nodes is not None:
            count("waiting", "nodes", self.nodes, least=1)
        real("waiting", "joining", self.joining, NON_NEGATIVE)
        real("waiting", "deadline", self.deadline, POSITIVE)
        count("waiting", "most_examples", self.most_examples, 1, MOST_EXAMPLES)


EVERY_ROUND = Saving(every=1)
"""The default of a deployed run: a round costs its clients more than a checkpoint costs the server."""


def run(
    transport: Transport,
    algorithm: Algorithm,
    problem: Any,
    rounds: int,
    cohort_size: int,
    batch_size: int | None = 10,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    *,
    test: Mapping[str, np.ndarray] | None = None,
    waiting: Waiting | None = None,
    weights: str = "examples",
    participation: Participation | None = None,
    evaluate_every: int = 10,
    initial: Any = None,
    run_dir: str | os.PathLike[str] | None = None,
    saving: Saving | None = None,
    gate: Gate | None = None,
    aggregation: Aggregation | None = None,
    config: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    on_round: Callable[[Info, Mapping[str, float]], None] | None = None,
    stop: Callable[[], int | None] | None = None,
    drift: bool = False,
    secure: SecureSum | None = None,
) -> Run:
    """Train with real clients, as `fm.simulate` does with simulated ones; arguments not listed here are the same.

    Nodes must bring the same algorithm, aggregation and problem. With the same clients in the same order the numbers
    are those of a simulation, but for the noise of private runs, which nobody can predict.

    Args:
        transport: reaches the nodes.
        test: columns of the server's own test set, if it has one.
        waiting: for how many nodes to wait, and how long.
        run_dir: where the run is written; the same call goes on where an earlier one was broken off.
        saving: how often; after every round by default.
        stop: as in `fm.simulate`; it is also called while nodes are waited for, and then ends the wait.
        secure: mask messages, so that the server learns sums only. Nodes that insist on masks must accept it.
    """
    epochs = 1 if epochs is None and steps is None else epochs
    taking, saving = participation or Participation(), saving or EVERY_ROUND

    def begin(fleet: Fleet, backend: Deployed, directory: Path | None, dry_run: bool) -> Run:
        return engine.simulate(
            algorithm,
            problem,
            fleet,
            rounds,
            cohort_size,
            batch_size,
            epochs,
            steps,
            seed,
            weights=weights,
            participation=taking,
            evaluate_every=evaluate_every,
            initial=initial,
            run_dir=directory,
            saving=saving,
            gate=gate,
            aggregation=aggregation,
            config=config,
            callbacks=callbacks,
            on_round=on_round,
            stop=stop,
            drift=drift,
            backend=backend,
            dry_run=dry_run,
        )

    made("deploy", "algorithm", algorithm, Algorithm, "come from fm.algorithms")
    terms = terms_of(algorithm, aggregation, problem, initial, check_secure("deploy", secure))
    hello = Hello(_NONE, _NONE, exact(), seed, batch_size, epochs, steps, drift, terms.configuration, None)
    hello = hello._replace(secure=fields_of(secure))
    plan = _Plan(transport, terms, hello, cohort_size, taking, saving, waiting or Waiting(), test, None, stop)
    return _carried_out(plan, None if run_dir is None else Path(run_dir), begin)


def run_setting(
    transport: Transport,
    setting: Setting,
    *,
    test: Mapping[str, np.ndarray] | None = None,
    waiting: Waiting | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    saving: Saving | None = None,
    gate: Gate | None = None,
    name: str | None = None,
    on_round: Callable[[Info, Mapping[str, float]], None] | None = None,
    stop: Callable[[], int | None] | None = None,
    secure: SecureSum | None = None,
    owners: Owners | None = None,
) -> Run:
    """Train what a setting names with real clients, which build it from the same names; see `run`.

    Nodes need the task's problem and data of their own, and no algorithm.

    Args:
        setting: a task, an algorithm and numbers; what it leaves open is filled in by the task.
        name: what the run is called in reports; by default the method's name.
        secure: as in `run`.
        owners: whose keys nodes have, if the server knows; a node then speaks for that client and no other.
    """
    s = recipes.resolved(setting, task := tasks.get(setting.task))
    if s.target_gap is not None:
        raise ConfigError(f"deploy: target_gap={s.target_gap!r} needs the training loss, which only clients know")
    algorithm, aggregation, problem = recipes.algorithm(s), messages.aggregator(s), tasks.problem(s.task)
    taking, saving = Participation(**dataclasses.asdict(s.participation)), saving or EVERY_ROUND

    def begin(fleet: Fleet, backend: Deployed, directory: Path | None, dry_run: bool) -> Run:
        population: Any = fleet
        prepared = train.Prepared(s, problem, population, algorithm, aggregation)
        given = {"saving": saving, "gate": gate, "name": name, "on_round": on_round, "stop": stop}
        return train.run(prepared, directory, backend=backend, dry_run=dry_run, **given)

    assert s.cohort is not None
    terms = terms_of(algorithm, aggregation, problem, secure=check_secure("deploy", secure))
    rule = s.seed, s.batch, s.epochs, s.steps, s.drift
    told = public(s, task.name)
    hello = Hello(_NONE, _NONE, exact(), *rule, terms.configuration, told, secure=fields_of(secure))
    plan = _Plan(transport, terms, hello, s.cohort, taking, saving, waiting or Waiting(), test, owners, stop)
    return _carried_out(plan, None if run_dir is None else Path(run_dir), begin)


class _Plan(NamedTuple):
    """What a deployed run needs to know before its clients are there."""

    transport: Transport
    terms: Terms
    hello: Hello
    cohort_size: int
    participation: Participation
    saving: Saving
    waiting: Waiting
    test: Mapping[str, np.ndarray] | None
    owners: Owners | None = None
    stop: Callable[[], int | None] | None = None


Begin = Callable[[Fleet, Deployed, Path | None, bool], Run]


def _carried_out(plan: _Plan, directory: Path | None, begin: Begin) -> Run:
    """Check the arguments, gather the clients, and run.

    Args:
        plan: what was asked for.
        directory: the run's.
        begin: runs the engine, or with its last argument true only has it check its arguments.
    """
    nodes, secret = _nodes(plan), Secret.fresh()
    anybody = Registry(_NONE, tuple(Registered(str(number), 1, _NONE) for number in range(nodes)))
    begin(*_parts(plan, secret, anybody, _roster(plan, secret, anybody.run), None), None, True)  # before anybody comes
    with contextlib.nullcontext() if directory is None else alone(directory):
        found = None if directory is None else known(directory, plan.saving, plan.terms.secure)
        if found is not None:
            secret, registry = found
            roster = _roster(plan, secret, registry.run)
            roster.enrol(registry.clients)
            roster.gather(min(nodes, len(registry.clients)), plan.waiting.joining)
        else:
            roster = _roster(plan, secret, run := secrets.token_hex(16))
            registry = Registry(run, roster.gather(nodes, plan.waiting.joining), plan.terms.secure)
            roster.enrol(registry.clients)
            if directory is not None:
                write(directory, plan.saving, secret, registry)
        return begin(*_parts(plan, secret, registry, roster, directory), directory, False)


def _nodes(plan: _Plan) -> int:
    """How many clients must have joined before the first round; what cannot be deployed is refused."""
    name = type(plan.terms.algorithm).__name__
    if plan.terms.algorithm.pooled:
        raise ConfigError(f"deploy: {name} pools the data of all clients, which stays with them; choose another one")
    if plan.participation.sampler == "with_replacement":
        raise ConfigError("deploy: sampler='with_replacement' may draw a client twice, which replies once")
    asked = over_selected(count("deploy", "cohort_size", plan.cohort_size, 1), plan.participation.over_selection)
    if plan.terms.secure is not None and plan.participation.uses_losses:
        raise ConfigError("deploy: secure sums hide the losses of single clients, which a function as sampler needs")
    check_terms(plan.terms, asked)
    nodes = plan.waiting.nodes or asked
    if nodes < plan.cohort_size:
        raise ConfigError(f"deploy: nodes={nodes} is less than cohort_size={plan.cohort_size}; wait for more")
    return nodes


def _roster(plan: _Plan, secret: Secret, run_id: str) -> Roster:
    hello = plan.hello._replace(run=run_id, arrays=identity.shapes(plan.terms.model))
    known = plan.terms.parameters, _obstacles(plan), secret.pseudonym, plan.owners, plan.waiting.most_examples
    return Roster(plan.transport, hello, *known, plan.stop)


def _obstacles(plan: _Plan) -> dict[str, str]:
    """Why clients that speak a dialect cannot take part, for the dialects to which this applies."""
    algorithm, aggregator, problem, model, secure = plan.terms
    if secure is not None:
        return {AFFINE: "secure sums need clients written in JAX, which mask their messages"}
    random = plan.test is not None and draws_random_numbers(problem, model, plan.test)
    try:
        affine.check(algorithm, aggregator, model, random=random)
    except ConfigError as error:
        return {AFFINE: str(error)}
    return {}


def _parts(
    plan: _Plan, secret: Secret, registry: Registry, roster: Roster, directory: Path | None
) -> tuple[Fleet, Deployed]:
    """The population and the back end of a run. Who takes part in a private round must not follow from the seed."""
    private = plan.terms.aggregator.privacy is not None
    fleet = registry.fleet(secret, secret.sampling_seed if private else plan.hello.seed, plan.test)
    saving = None if directory is None else plan.saving
    options = plan.participation, plan.waiting.deadline, saving, plan.terms.secure
    return fleet, Deployed(plan.transport, roster, fleet, registry.run, secret, *options)
