"""Every algorithm × base optimizer × mode, beside its NumPy transcription: the table that the contract tests walk."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import fedmime as fm
from reference import algorithms as ref
from reference import optimizers as ref_opt

BASES: dict[str, tuple[Any, Any]] = {
    "sgd": (fm.optimizers.sgd(), ref_opt.sgd()),
    "momentum": (fm.optimizers.momentum(0.8), ref_opt.momentum(0.8)),
    "adagrad": (fm.optimizers.adagrad(0.1, 1e-3), ref_opt.adagrad(0.1, 1e-3)),
    "adam": (fm.optimizers.adam(0.8, 0.9, 1e-2), ref_opt.adam(0.8, 0.9, 1e-2)),
    "adam-corrected": (
        fm.optimizers.adam(0.8, 0.9, 1e-2, bias_correction=True),
        ref_opt.adam(0.8, 0.9, 1e-2, bias_correction=True),
    ),
    "adam-floor": (fm.optimizers.adam(0.8, 0.9, 1e-7, floor=0.05), ref_opt.adam(0.8, 0.9, 1e-7, floor=0.05)),
    "rmsprop": (fm.optimizers.rmsprop(0.9, 1e-2), ref_opt.rmsprop(0.9, 1e-2)),
    "yogi": (fm.optimizers.yogi(0.8, 0.9, 1e-2, 1e-4), ref_opt.yogi(0.8, 0.9, 1e-2, 1e-4)),
    "sm3": (fm.optimizers.sm3(1e-2), ref_opt.sm3(0.0, 1e-2)),
    "adafactor": (fm.optimizers.adafactor(0.8, 1e-30, 1e-2), ref_opt.adafactor(0.0, 0.8, 1e-30, 1e-2)),
}
NESTEROV = fm.optimizers.nesterov(0.7), ref_opt.nesterov(0.7)  # where clients apply it
SPLIT = ("sgd", "momentum", "adam")  # split cohorts change who sends what, not what a base does with it


class Case(NamedTuple):
    """An algorithm and the same in NumPy: `start(x)` and `step(state, clients, gradient_clients, grad, round)`."""

    name: str
    algorithm: Any
    start: Callable[[Any], Any]
    step: Callable[..., Any]
    split: bool = False


def covering(cases: Sequence[Case], together: int) -> list[Case]:
    """Cases that among them have every combination of so many words in which a name says algorithm, base and mode.

    They are looked at in a random order, or a base's later modes would be left to the algorithms that come first.
    """
    chosen, seen = [], set()
    for case in random.Random(0).sample(cases, len(cases)):
        new = set(itertools.combinations(enumerate(case.name.split("/")), together)) - seen
        chosen += [case] * bool(new)
        seen |= new
    return chosen


ETA, ETA_SERVER = 0.05, 0.7
CLIENTS = 3
VARIANTS = ("adam-corrected", "adam-floor", "nesterov")  # options of a base: shown where clients apply it
CASES: list[Case] = []


def _add(name: str, algorithm: Any, start: Any, step: Any, split: bool = False) -> None:
    CASES.append(Case(name, algorithm, start, step, split))


def _server(
    name: str,
    factory: Any,
    reference: Any,
    start: Any,
    *numbers: Any,
    population: bool = False,
    modes: Any = ("lookahead",),
    bases: Sequence[str] = tuple(BASES),
) -> None:
    """An algorithm with a server optimizer, once for every base and mode."""
    for base_name, (base, ref_base) in ((name, BASES[name]) for name in bases):
        for apply in () if base_name in VARIANTS else modes:
            count = (CLIENTS,) if population else ()

            def step(state, clients, others, grad, t, ref_base=ref_base, apply=apply, count=count):
                options = {"server": ref_base, "eta_server": ETA_SERVER, "apply": apply}
                return reference(state, clients, grad, ETA, *numbers, *count, **options)

            _add(
                f"{name}/{base_name}/{apply}",
                factory(ETA, *numbers, server=base, eta_server=ETA_SERVER, apply=apply),
                lambda x, ref_base=ref_base: start(x, ref_base),
                step,
            )


_server("fedavg", fm.algorithms.fedavg, ref.fedavg, ref.fedavg_init, modes=("lookahead", "frozen"))
_server("fedprox", fm.algorithms.fedprox, ref.fedprox, ref.fedavg_init, 0.3)
_server("scaffold", fm.algorithms.scaffold, ref.scaffold, ref.scaffold_init, population=True)
_server("feddyn", fm.algorithms.feddyn, ref.feddyn, ref.feddyn_init, 0.4, population=True)

_FEW = ("adam",)  # what a server optimizer does is shown above
_server("fedcm", fm.algorithms.fedcm, ref.fedcm, ref.momentum_init, 0.3, bases=_FEW)
_server("ghbm", fm.algorithms.ghbm, ref.ghbm, ref.ghbm_init, 0.8, 2, bases=_FEW)
_server("fednova", fm.algorithms.fednova, ref.fednova, ref.fedavg_init, 0.0, bases=_FEW)
_server("fedvarp", fm.algorithms.fedvarp, ref.fedvarp, ref.fedvarp_init, population=True, bases=_FEW)


def _single(name: str, algorithm: Any, reference: Any, start: Any, *numbers: Any, **options: Any) -> None:
    """An algorithm without variants."""

    def step(state, clients, others, grad, t):
        return reference(state, clients, grad, ETA, *numbers, **options)

    _add(name, algorithm, lambda x: start(x, options.get("server")), step)


_single(
    "fednova/momentum and penalty",
    fm.algorithms.fednova(ETA, 2.0, fm.optimizers.momentum(0.7)),
    ref.fednova,
    ref.fedavg_init,
    2.0,
    0.7,
)
_single("fedexp", fm.algorithms.fedexp(ETA, 1e-4), ref.fedexp, ref.fedavg_init, 1e-4)
_single("fedexp/capped", fm.algorithms.fedexp(ETA, 1e-4, 1.05), ref.fedexp, ref.fedavg_init, 1e-4, 1.05)
_single("fedacg", fm.algorithms.fedacg(ETA, 0.8, 0.5), ref.fedacg, ref.momentum_init, 0.8, 0.5)
_ADAMW = ref_opt.adam(0.8, 0.9, 1e-2, bias_correction=True)
_single(
    "diloco",
    fm.algorithms.diloco(ETA, 0.6, ETA_SERVER, fm.optimizers.adamw(0.8, 0.9, 1e-2, weight_decay=0.3)),
    ref.local_optimizer,
    ref.fedavg_init,
    _ADAMW,
    0.3,
    server=ref_opt.nesterov(0.6),
    eta_server=ETA_SERVER,
)
for _name in ("momentum", "adam"):
    _base, _ref_base = BASES[_name]
    _single(
        f"fedavg/client {_name}",
        fm.algorithms.fedavg(ETA, client=_base),
        ref.local_optimizer,
        ref.fedavg_init,
        _ref_base,
    )


def _mime_step(reference, base, apply, statistics, primes, split, state, clients, others, grad, t):
    options = {"eta_server": ETA_SERVER, "apply": apply, "statistics": statistics, "prime": t < primes}
    return reference(state, clients, grad, base, ETA, gradient_clients=others if split else None, **options)


for _base_name, (_base, _ref_base) in {**BASES, "nesterov": NESTEROV}.items():
    for _apply in ("frozen", "lookahead"):
        _prime = int(_base.adaptive and _apply == "frozen")
        for _name, _factory, _reference in (
            ("mime", fm.algorithms.mime, ref.mime),
            ("mime_lite", fm.algorithms.mime_lite, ref.mime_lite),
        ):
            for _state in ("fixed",) if _base_name in VARIANTS else ("fixed", "local"):
                for _split in (False, True) if _base_name in SPLIT else (False,):
                    _step = functools.partial(_mime_step, _reference, _ref_base, _apply, _state, _prime, _split)
                    _options = {"eta_server": ETA_SERVER, "apply": _apply, "state": _state, "split": _split}
                    _add(
                        f"{'loc_' * (_state == 'local')}{_name}{'-split' * _split}/{_base_name}/{_apply}",
                        _factory(_base, ETA, **_options),
                        lambda x, b=_ref_base: ref.mime_init(x, b),
                        _step,
                        _split,
                    )
        for _name, _factory, _reference in (
            ("server_only", fm.algorithms.server_only, ref.server_only),
            ("centralized", fm.algorithms.centralized, ref.centralized),
        ):
            if _base_name in VARIANTS:
                continue

            def _step(state, clients, others, grad, t, r=_reference, b=_ref_base, a=_apply, p=_prime):
                return r(state, clients, grad, b, ETA, apply=a, prime=t < p)

            _add(
                f"{_name}/{_base_name}/{_apply}",
                _factory(_base, ETA, apply=_apply),
                lambda x, b=_ref_base: ref.mime_init(x, b),
                _step,
            )

for _name, _factory, _reference in (
    ("mime_mvr", fm.algorithms.mime_mvr, ref.mime_mvr),
    ("mime_lite_mvr", fm.algorithms.mime_lite_mvr, ref.mime_lite_mvr),
):
    for _anchor in ("previous", "current"):
        for _rounds in (0, 2):
            for _split in (False, True):

                def _step(state, clients, others, grad, t, r=_reference, a=_anchor, p=_rounds, split=_split):
                    options = {"eta_server": ETA_SERVER, "anchor": a, "prime": t < p}
                    return r(state, clients, grad, ETA, 0.7, gradient_clients=others if split else None, **options)

                _options = {"anchor": _anchor, "eta_server": ETA_SERVER, "init_rounds": _rounds, "split": _split}
                _add(
                    f"{_name}{'-split' * _split}/{_anchor}/T0={_rounds}",
                    _factory(ETA, 0.7, **_options),
                    lambda x: ref.mvr_init(x),
                    _step,
                    _split,
                )

for _rounds in (0, 2):

    def _step(state, clients, others, grad, t, p=_rounds):
        return ref.server_only_mvr(state, clients, grad, ETA, 0.7, prime=t < p)

    _add(
        f"server_only_mvr/T0={_rounds}",
        fm.algorithms.server_only_mvr(ETA, 0.7, init_rounds=_rounds),
        lambda x: ref.mvr_init(x),
        _step,
    )
