"""Wrong arguments of every base optimizer."""

import optax

import fedmime as fm
from refusals.refusal import NEARLY_NUMBERS, Wrong, check, check_all, flags, numbers, wrong

o = fm.optimizers
UNIT, POSITIVE, NON_NEGATIVE = "[0, 1)", "positive", "not negative"
DENOMINATOR = {"eps": NON_NEGATIVE, "floor": NON_NEGATIVE}
MOMENTS = {"beta1": UNIT, "beta2": UNIT, "initial": NON_NEGATIVE} | DENOMINATOR

CASES: list[Wrong] = [
    *numbers("momentum", o.momentum, {"beta": UNIT}),
    *numbers("adagrad", o.adagrad, {"initial": NON_NEGATIVE} | DENOMINATOR),
    *numbers("adam", o.adam, MOMENTS),
    *numbers("adamw", o.adamw, MOMENTS | {"weight_decay": NON_NEGATIVE}),
    *numbers("nesterov", o.nesterov, {"beta": UNIT}),
    *numbers("rmsprop", o.rmsprop, {"beta2": UNIT, "initial": NON_NEGATIVE} | DENOMINATOR),
    *numbers("yogi", o.yogi, MOMENTS),
    *numbers("sm3", o.sm3, DENOMINATOR),
    *numbers("adafactor", o.adafactor, {"decay": POSITIVE} | DENOMINATOR),
    *flags("adam", o.adam, "bias_correction"),
]


def test_numbers_are_refused() -> None:
    check_all(CASES)


def test_what_only_looks_like_a_number_is_refused() -> None:
    check_all(numbers("momentum", o.momentum, {"beta": UNIT}, NEARLY_NUMBERS)[-len(NEARLY_NUMBERS) :])


PARTS = {"init": lambda x: (), "update": lambda g, s: g, "track": lambda g, s: s}


def test_custom_needs_functions() -> None:
    check_all(
        wrong(lambda n=n, v=v: o.custom(**PARTS | {n: v}), n, v, f"custom.{n}") for n in PARTS for v in (None, 3, "f")
    )


def test_from_optax_needs_a_transformation() -> None:
    check_all(wrong(lambda v=v: o.from_optax(v), "transformation", v) for v in (None, 0.1, "adam", {}))


def test_from_optax_names_a_factory_that_was_not_called() -> None:
    check(wrong(lambda: o.from_optax(optax.adam), "transformation", optax.adam))
