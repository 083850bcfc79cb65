"""Wrong arguments of every algorithm, of the model it starts from, and schedules that go wrong in some round."""

import math

import numpy as np
import optax
import pytest

import fedmime as fm
from refusals.refusal import Wrong, check, check_all, choices, counts, flags, numbers, wrong

a, o = fm.algorithms, fm.optimizers
UNIT, POSITIVE, NON_NEGATIVE = "[0, 1)", "positive", "not negative"
BASE = {"base": o.momentum(), "eta": 0.1}
MVR = {"eta": 0.1, "beta": 0.9}
RATES = {"eta": POSITIVE, "eta_server": POSITIVE}

NUMBERS: list[Wrong] = [
    *numbers("fedavg", a.fedavg, RATES, eta=0.1),
    *numbers("fedprox", a.fedprox, RATES | {"mu": NON_NEGATIVE}, eta=0.1, mu=0.1),
    *numbers("scaffold", a.scaffold, RATES, eta=0.1),
    *numbers("feddyn", a.feddyn, RATES | {"alpha": POSITIVE}, eta=0.1, alpha=0.1),
    *numbers("diloco", a.diloco, RATES | {"beta": UNIT}, eta=0.1),
    *numbers("fednova", a.fednova, RATES | {"mu": NON_NEGATIVE}, eta=0.1),
    *numbers("fedvarp", a.fedvarp, RATES, eta=0.1),
    *numbers("fedexp", a.fedexp, {"eta": POSITIVE, "eps": POSITIVE}, eta=0.1),
    *numbers("fedcm", a.fedcm, RATES, eta=0.1),
    *numbers("ghbm", a.ghbm, RATES | {"beta": UNIT}, eta=0.1),
    *numbers("fedacg", a.fedacg, {"eta": POSITIVE, "beta": UNIT, "mu": NON_NEGATIVE}, eta=0.1),
    *(wrong(lambda v=v: a.fedcm(0.1, v), "alpha", v, "fedcm.alpha") for v in (0, -0.5, 1.5, "1", None)),
    *(wrong(lambda v=v: a.fedexp(0.1, cap=v), "cap", v, "fedexp.cap") for v in (0.5, 0, -math.inf, math.nan, "2")),
    *numbers("mime", a.mime, RATES, **BASE),
    *numbers("mime_lite", a.mime_lite, RATES, **BASE),
    *numbers("mime_mvr", a.mime_mvr, RATES | {"beta": UNIT}, **MVR),
    *numbers("mime_lite_mvr", a.mime_lite_mvr, RATES | {"beta": UNIT}, **MVR),
    *numbers("server_only", a.server_only, {"eta": POSITIVE}, **BASE),
    *numbers("server_only_mvr", a.server_only_mvr, {"eta": POSITIVE, "beta": UNIT}, **MVR),
    *numbers("centralized", a.centralized, {"eta": POSITIVE}, **BASE),
]


def test_numbers_are_refused() -> None:
    check_all(NUMBERS)


SERVED = {
    "fedavg": {"eta": 0.1},
    "fedprox": {"eta": 0.1, "mu": 0.1},
    "scaffold": {"eta": 0.1},
    "feddyn": {"eta": 0.1, "alpha": 0.1},
    **{name: {"eta": 0.1} for name in ("fednova", "fedvarp", "fedcm", "ghbm")},
}
INNER = ("fedavg", "fednova", "diloco")
BASED = ("mime", "mime_lite", "server_only", "centralized")
MODES: list[Wrong] = [
    *(case for name, good in SERVED.items() for case in choices(name, getattr(a, name), "apply", **good)),
    *(case for name in BASED for case in choices(name, getattr(a, name), "apply", **BASE)),
    *(case for name in BASED for case in counts(name, getattr(a, name), "prime_rounds", 0, **BASE)),
    *(case for name in ("mime", "mime_lite") for case in choices(name, getattr(a, name), "state", **BASE)),
    *(case for name in ("mime", "mime_lite") for case in flags(name, getattr(a, name), "split", **BASE)),
    *(
        case
        for name in ("mime_mvr", "mime_lite_mvr")
        for make in [getattr(a, name)]
        for case in (
            *choices(name, make, "anchor", **MVR),
            *choices(name, make, "output", **MVR),
            *flags(name, make, "split", **MVR),
            *counts(name, make, "init_rounds", 0, **MVR),
        )
    ),
    *counts("ghbm", a.ghbm, "tau", 1, eta=0.1),
    *counts("server_only_mvr", a.server_only_mvr, "init_rounds", 0, **MVR),
]


def test_modes_are_refused() -> None:
    check_all(MODES)


NOT_BASES = ["adam", 0.9, o.adam, optax.sgd(0.1)]


def test_only_base_optimizers_are_bases() -> None:
    check_all(
        [
            *(
                wrong(lambda n=n, v=v: getattr(a, n)(**SERVED[n], server=v), "server", v, f"{n}.server")
                for n in SERVED
                for v in NOT_BASES
            ),
            *(
                wrong(lambda n=n, v=v: getattr(a, n)(0.1, client=v), "client", v, f"{n}.client")
                for n in INNER
                for v in NOT_BASES
            ),
            *(
                wrong(lambda v=v: a.fednova(0.1, client=v), "client", v, "fednova.client")
                for v in (o.adam(), o.nesterov())
            ),
            *(
                wrong(lambda n=n, v=v: getattr(a, n)(**BASE | {"base": v}), "base", v, f"{n}.base")
                for n in BASED
                for v in (*NOT_BASES, None)
            ),
        ]
    )


@pytest.mark.parametrize("name", [*BASED, *SERVED])
@pytest.mark.parametrize("base", [o.from_optax(optax.adam(0.1)), o.adamw()], ids=["optax", "adamw"])
def test_bases_that_are_not_linear_cannot_be_frozen(name: str, base) -> None:
    good = SERVED[name] | {"server": base} if name in SERVED else BASE | {"base": base}
    check(wrong(lambda: getattr(a, name)(**good, apply="frozen"), "apply", "frozen"))


@pytest.mark.parametrize("name", [*BASED, *SERVED])
def test_transformations_of_optax_are_to_be_wrapped(name: str) -> None:
    """Also where the rate is left out, since it is inside the transformation."""
    adam, factory = optax.adam(1e-2), getattr(a, name)
    calls = [lambda: factory(adam), lambda: factory(base=adam), lambda: factory(adam, 1.0)]
    for call in [lambda: factory(**SERVED[name], server=adam)] if name in SERVED else calls:
        with pytest.raises(fm.ConfigError, match=rf"^{name}: .* fm\.optimizers\.from_optax\(optax") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "good"), [("mime_lite", BASE), ("mime_lite_mvr", MVR), ("mime_mvr", MVR)])
def test_messages_name_the_factory_that_was_called(name: str, good: dict) -> None:
    with pytest.raises(fm.ConfigError, match=rf"^{name}: eta"):
        getattr(a, name)(**good | {"eta": -1.0})


GRID = np.arange(200).reshape(20, 10)
NOT_MODELS = [
    None,
    {},
    [],
    3,
    0.5,
    {"w": np.arange(3)},
    {"w": GRID},
    {"w": np.ones(2), "b": np.array([True])},
    {"w": np.ones(2) * 1j},
    {"w": "a"},
]


def test_models_are_floating_point_arrays() -> None:
    check_all(wrong(lambda v=v: a.fedavg(0.1).init(v), "params", v, shown=repr(v)[:12]) for v in NOT_MODELS)


def _late(value, good: float = 0.5):
    """A schedule that is fine but in round 3."""
    return lambda t: value if t == 3 else good


def _in_round_3(algorithm) -> None:
    problem = fm.models.from_functions(lambda key: None, lambda p, batch, key: batch["z"] @ p["x"])
    state = algorithm.init({"x": np.zeros(2)})._replace(round=3)
    fm.run_round(algorithm, problem, state, fm.Cohort.from_batches([{"z": np.zeros((1, 1, 2))}]))


SCHEDULED = {
    "eta": lambda s: a.fedavg(s),
    "eta_server": lambda s: a.mime(o.sgd(), 0.1, s),
    "mu": lambda s: a.fedprox(0.1, s),
    "alpha": lambda s: a.feddyn(0.1, s),
    "beta": lambda s: a.mime(o.momentum(s), 0.1),
    "beta2": lambda s: a.server_only(o.rmsprop(s), 0.1),
    "eps": lambda s: a.fedavg(0.1, o.adam(eps=s)),
    "decay": lambda s: a.centralized(o.adafactor(s), 0.1),
}


def test_schedules_are_held_to_the_same_ranges() -> None:
    check_all(
        wrong(lambda n=n, v=v: _in_round_3(SCHEDULED[n](_late(v))), f"{n}(3)", v)
        for n in SCHEDULED
        for v in (-1.0, float("nan"), float("inf"), None, "a", [0.5])
    )
