"""`evaluate`: a model on the test set, client by client, and after fine-tuning on each client's own data."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmime.compilation import prepare
from fedmime.engine.backends.backend import Backend
from fedmime.engine.backends.specification import Choice, Expected, Needs, chosen
from fedmime.engine.evaluation import Evaluation
from fedmime.engine.finetune import Finetuning, schedule_of, tuned_models
from fedmime.engine.intake import Intake
from fedmime.engine.metrics import BATCH, Sums, client_sums, means, pooled, stream_metrics, sums, width_of
from fedmime.engine.sampling import Clients
from fedmime.engine.simulate import TrainableProblem
from fedmime.engine.subjects import Chosen, Subjects, subjects, tunable_subjects
from fedmime.errors import ConfigError
from fedmime.validation import LARGEST_SEED, POSITIVE, Range, choice, count, floating, offers, real, started

_FRACTION = Range(lambda v: 0 < v < 1, "lie in (0, 1)")


def evaluate(
    problem: TrainableProblem,
    params: Any,
    population: Clients,
    clients: Chosen = None,
    split: str = "test",
    *,
    batch_size: int = BATCH,
    finetune: int | None = None,
    finetune_eta: float | None = None,
    finetune_batch_size: int | None = 10,
    hold_out: float = 0.2,
    seed: int = 0,
    backend: Choice = "local",
    devices: int | None = None,
) -> Evaluation:
    """Evaluate a model over all examples and client by client, and after fine-tuning on each client's own data.

    Pooled metrics are those of `population.test`. Clients are measured on their own test examples
    (`population.test_clients`); if a population has none, on their training examples, over which metrics are then
    pooled, too, unless there is a test set. The result says which examples were taken.

    Fine-tuning is measured on examples that it does not see. Clients with test examples are trained on their training
    examples. Where a population has no test examples by client, or where its test clients are not those who train, a
    fraction of each client's examples is held out; clients are then measured on these, before and after. The model may
    have been trained on them before: such figures tell what fine-tuning gains, not how well the model generalises.

    Nothing but the examples of a few clients is in memory at a time, and clients of all sizes share compiled programs.

    Args:
        params: the model, such as `run.params`.
        clients: who is measured: None for all, a number for so many, evenly spaced, or a list of ids.
        split: `"train"` takes training examples in any case.
        batch_size: examples that are evaluated at once.
        finetune: steps of SGD that each client takes, from the model; None for no fine-tuning.
        finetune_eta: their rate, which `finetune` needs.
        finetune_batch_size: examples in their mini-batches; None takes all of a client's examples at every step.
        hold_out: the fraction of a client's examples to hold out, where examples must be held out.
        seed: of mini-batches, of random numbers of the loss such as dropout, and of what is held out.
        backend: where clients run: `"local"`, `"reference"`, or one of `fm.backends`.
        devices: how many local devices to use; all by default.
    """
    offers("evaluate", "problem", problem, ("loss", "check", "init", "metrics"), "come from fm.models")
    offers("evaluate", "population", population, ("sizes", "client_at"), "come from fm.data")
    started("evaluate", "params", floating("evaluate", "params", params), problem.init)
    choice("evaluate", "split", split, ("test", "train"))
    count("evaluate", "batch_size", batch_size, least=1)
    hold_out = real("evaluate", "hold_out", hold_out, _FRACTION)
    seed = count("evaluate", "seed", seed, most=LARGEST_SEED)
    tuning = _tuning(finetune, finetune_eta, finetune_batch_size, seed, split)
    prepare()  # before anything is compiled
    if check := getattr(population, "check", None):
        check()
    if tuning is None:
        who = subjects(population, clients, split)
    else:
        who = tunable_subjects(population, clients, hold_out, seed)
    intake = Intake.of_run(problem.check, pooled=False)
    intake.look_at_first(who.measured)
    needs = Needs(intake, expected=None if tuning is None else _expected(who, tuning, params))
    with contextlib.closing(chosen("evaluate", backend, devices).start(problem, params, needs)) as running:
        each = client_sums(running, params, who.measured, who.positions, batch_size)
        overall, overall_on = _pooled(running, params, population, who, each, split, batch_size, intake)
        after = None if tuning is None else _finetuned(running, params, who, tuning, batch_size)
    return Evaluation(
        overall,
        overall_on,
        means(each),
        who.on,
        who.ids,
        np.asarray(who.measured.sizes)[who.positions],
        after,
        tuning,
        hold_out if who.on == "held out" else None,
    )


def _tuning(steps: Any, eta: Any, batch_size: Any, seed: int, split: str) -> Finetuning | None:
    """How to fine-tune, after its arguments were checked; None if nobody is to be fine-tuned."""
    if steps is None:
        return None
    if split != "test":
        words = "finetune is measured on examples that it does not see, so split must be 'test'"
        raise ConfigError(f"evaluate: {words}, got {split!r}")
    if eta is None:
        raise ConfigError(f"evaluate: finetune={steps!r} needs finetune_eta, the rate of its steps; got None")
    if batch_size is not None:
        count("evaluate", "finetune_batch_size", batch_size, least=1)
    rate = real("evaluate", "finetune_eta", eta, POSITIVE)
    return Finetuning(count("evaluate", "finetune", steps, least=1), rate, batch_size, seed)


def _expected(who: Subjects, tuning: Finetuning, params: Any) -> Expected:
    """What fine-tuning will ask of the back end."""
    schedule, sizes = schedule_of(tuning, params), who.training.sizes
    groups = -(-len(who.positions) // schedule.cohort_size)
    return Expected(who.training, schedule.cohort_size, groups, schedule.lengths(sizes[sizes > 0]))


def _pooled(
    backend: Backend,
    params: Any,
    population: Any,
    who: Subjects,
    each: Sums,
    split: str,
    batch_size: int,
    intake: Intake,
) -> tuple[Mapping[str, float], str]:
    """Every metric over all examples, and which examples these are.

    A test set that consists of the test clients is read client by client, and once if all of them were measured.
    """
    tested = getattr(population, "test_clients", None)
    if split == "test" and getattr(population, "has_own_test", True) and population.test is not None:
        intake.accept("test set", population.test)
        examples = len(next(iter(population.test.values())))
        return stream_metrics(backend, params, [population.test], examples, batch_size), "test"
    if split == "test" and tested is not None:
        everyone = np.flatnonzero(tested.sizes)
        if who.measured is not tested or len(who.positions) < len(everyone):
            each = client_sums(backend, params, tested, everyone, batch_size)
        return pooled(each), "test"
    return pooled(each), who.on


def _finetuned(
    backend: Backend, params: Any, who: Subjects, tuning: Finetuning, batch_size: int
) -> dict[str, np.ndarray]:
    """Every metric of every client [clients] after fine-tuning.

    Every client has its own model, so no batch holds examples of two of them. All batches have the width of a client
    of the average size, so that clients of all sizes share one program.
    """
    sizes, found = who.measured.sizes[who.positions], {}
    width = width_of(int(np.ceil(sizes.mean())), batch_size)
    assert who.homes is not None
    models = tuned_models(backend, params, who.training, who.homes, tuning)
    for place, (position, model) in enumerate(zip(who.positions.tolist(), models, strict=True)):
        if model is None:
            continue
        own = means(sums(backend, model, [(0, who.measured.client_at(position))], 1, width))
        for name, (value,) in own.items():
            found.setdefault(name, np.full(len(sizes), np.nan))[place] = value
    return found
