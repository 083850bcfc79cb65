"""What every refusal must be: one of our errors, in one line that names the field, quotes the value, says what goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedmime as fm

_ADVICE = re.compile(
    r"must|needs?\b|give|at least|accepted|start from|lower|below|missing|(has|have|is) no|others have|no client"
)


class Wrong(NamedTuple):
    """A call that must be refused, the field its message names and the value it quotes."""

    name: str
    call: Callable[[], Any]
    field: str
    shown: str


def wrong(call: Callable[[], Any], field: str, value: Any, name: str = "", shown: str | None = None) -> Wrong:
    """A refusal whose message quotes the value as Python writes it, unless said otherwise."""
    label = re.sub(r" at 0x\w+|\n", "", f"{value!r:.40}")  # the same in every process
    return Wrong(f"{name or field}={label}", call, field, repr(value) if shown is None else shown)


def check(case: Wrong) -> None:
    """Assert that a call is refused as it should be."""
    with pytest.raises((ValueError, TypeError)) as caught:
        case.call()
    message = str(caught.value)
    assert isinstance(caught.value, fm.FedmimeError), f"{type(caught.value).__name__}: {message}"
    assert "\n" not in message
    assert re.search(rf"(?<!\w){re.escape(case.field)}(?!\w)", message), message
    assert case.shown in message
    assert _ADVICE.search(message), message


def check_all(cases: Iterable[Wrong]) -> None:
    """Check every case, and tell all that are not refused as they should be together."""
    listed, accepted = list(cases), []
    for case in listed:
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            accepted.append(f"{case.name}: {type(error).__name__}: {error}")
    assert listed
    assert not accepted, "\n".join([f"{len(accepted)} of {len(listed)} are not refused as they should be:", *accepted])


NOT_NUMBERS = ["0.1", None, True, [0.1], 1j, np.array([0.1, 0.2])]
NEARLY_NUMBERS = [np.bool_(True), np.str_("a"), np.complex128(1j), 10**400]
NOT_FINITE = [float("nan"), float("inf"), float("-inf")]
OUTSIDE = {
    "positive": [0, 0.0, -1, -1e-9, np.float32(-0.5), *NOT_FINITE],
    "not negative": [-1, -1e-9, np.float64(-0.5), *NOT_FINITE],
    "[0, 1)": [-0.1, 1, 1.0, 1.5, *NOT_FINITE],
}
NOT_COUNTS = [-1, 1.5, 2.0, "1", True, [1], float("nan"), float("inf")]
NOT_POSITIVE_COUNTS = [0, *NOT_COUNTS]


def quoted(value: Any) -> str:
    """A number as messages quote it: NumPy's as the Python number it holds."""
    return repr(float(value)) if isinstance(value, np.floating) else repr(value)[:20]


def numbers(
    owner: str, factory: Callable[..., Any], ranges: dict[str, str], types: Iterable[Any] = NOT_NUMBERS, **others: Any
) -> list[Wrong]:
    """Every number of a factory, out of its range and of another type, the other arguments being good."""
    return [
        wrong(
            lambda name=name, value=value: factory(**others | {name: value}),
            name,
            value,
            f"{owner}.{name}",
            quoted(value),
        )
        for name, accepted in ranges.items()
        for value in (*OUTSIDE[accepted], *types)
    ]


def counts(owner: str, factory: Callable[..., Any], name: str, least: int, **others: Any) -> list[Wrong]:
    """Every wrong value of a whole number."""
    values = NOT_POSITIVE_COUNTS if least else NOT_COUNTS
    return [wrong(lambda v=v: factory(**others | {name: v}), name, v, f"{owner}.{name}") for v in values]


def choices(owner: str, factory: Callable[..., Any], name: str, **others: Any) -> list[Wrong]:
    """Names of modes that do not exist."""
    values = ["unknown", "", 3]
    return [wrong(lambda v=v: factory(**others | {name: v}), name, v, f"{owner}.{name}") for v in values]


def flags(owner: str, factory: Callable[..., Any], name: str, **others: Any) -> list[Wrong]:
    """Flags that are neither true nor false: a `"no"` must not count as true."""
    return [wrong(lambda: factory(**others | {name: "no"}), name, "no", f"{owner}.{name}")]
