"""Cohorts whose every mini-batch is given: `Cohort.from_batches`, and the checks of what it is called with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedmime.engine.cohort import Batches, Cohort, Columns, Given, Member, given
from fedmime.errors import ConfigError, DataError
from fedmime.validation import count, quote, whole

_LAST_POSITION = 2**31 - 1  # positions in the population are sent to the devices as int32


def explicit_cohort(
    batches: Sequence[Columns],
    mask: Sequence[Any] | None,
    weights: Sequence[float] | None,
    full: Sequence[Columns] | None,
    gradient_weights: Sequence[float] | None,
    ids: Sequence[int] | None,
    population: int | None,
) -> Cohort:
    """A cohort from explicit mini-batches; `Cohort.from_batches` explains the arguments."""
    batches = _entries("batches", () if batches is None else batches)
    if not batches:
        raise DataError("from_batches: the cohort is empty; give at least one client")
    clients = len(batches)
    indices = _ids(ids, clients)
    masks = [None] * clients if mask is None else _entries("mask", mask, clients)
    probing = [] if full is None else _full(full, indices)
    sizes = [m.size for m, _, _ in probing] if len(probing) == clients else [None] * clients
    training = [
        _member(index, fields, m, n, sends_gradient=full is None)
        for index, fields, m, n in zip(indices, batches, masks, sizes, strict=True)
    ]
    _same_fields(training, probing)
    least = max(indices) + 1
    cohort = given(
        [*training, *probing],
        least if population is None else count("from_batches", "population", population, least),
    )
    return dataclasses.replace(
        cohort,
        explicit=True,
        weights=_weights("weights", weights, clients),
        gradient_weights=_weights("gradient_weights", gradient_weights, clients if full is None else len(probing)),
    )


def _member(index: int, fields: Columns, mask: Any, size: int | None, sends_gradient: bool) -> Given:
    arrays = _columns(f"client {index}", fields)
    shapes = {name: a.shape[:2] for name, a in arrays.items()}
    steps, width = next(iter(shapes.values()), (0, 0)) if all(a.ndim >= 2 for a in arrays.values()) else (0, 0)
    if len(set(shapes.values())) != 1 or not steps * width:
        raise DataError(f"from_batches: client {index} needs arrays [steps, batch, ...] of one length, got {shapes}")
    real = np.ones((steps, width), bool) if mask is None else _mask(index, mask)
    if real.shape != (steps, width):
        raise DataError(f"from_batches: mask of client {index} must have shape {(steps, width)}, got {real.shape}")
    if not real.any():
        raise DataError(f"from_batches: client {index} has no examples: its mask is false everywhere")
    # Real rows first, the first of them repeated as padding; a mini-batch without real rows is no step.
    real_steps = real.any(axis=1)
    order = np.argsort(~real, axis=1, kind="stable")[real_steps]
    counts = real.sum(axis=1)[real_steps]
    rows = np.where(np.arange(width) < counts[:, None], order, order[:, :1])
    rows = rows + np.flatnonzero(real_steps)[:, None] * width
    flat = {name: a.reshape(steps * width, *a.shape[2:]) for name, a in arrays.items()}
    keep, position = np.flatnonzero(real.reshape(-1)), np.cumsum(real.reshape(-1)) - 1  # what is masked goes nowhere
    flat, rows = {name: a[keep] for name, a in flat.items()}, position[rows]
    n = int(counts.sum()) if size is None else size
    batches = Batches(rows.astype(np.int32), counts.astype(np.int32))
    return Member(index, n, len(counts), 0, sends_gradient), flat, batches


def _full(full: Sequence[Columns], indices: Sequence[int]) -> list[Given]:
    """The clients that are asked for their full gradient: the same as those that train if there are as many."""
    entries = _entries("full", full)
    if not entries:
        raise DataError(f"from_batches: full must have at least one client, or be None, got {quote(full)}")
    owners = indices if len(entries) == len(indices) else range(len(entries))
    members: list[Given] = []
    for i, (index, fields) in enumerate(zip(owners, entries, strict=True)):
        data = _columns(f"full[{i}]", fields)
        shapes = {name: a.shape[:1] for name, a in data.items()}
        if len(set(shapes.values())) != 1 or () in shapes.values():
            raise DataError(f"from_batches: full[{i}] needs arrays [n, ...] of one length, got {shapes}")
        n = len(next(iter(data.values())))
        if not n:
            raise DataError(f"from_batches: full[{i}] has no examples")
        members.append((Member(index, n, 0, 0, True), data, None))
    return members


def _entries(name: str, values: Any, clients: int | None = None) -> list[Any]:
    """A list with an entry for each client."""
    listed = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    if not listed and not getattr(values, "ndim", 0):
        raise DataError(f"from_batches: {name} must be a list with an entry per client, got {quote(values)}")
    if clients is not None and len(values) != clients:
        raise DataError(f"from_batches: {name} must have one entry per client ({clients}), got {len(values)}")
    return list(values)


def _columns(where: str, fields: Any) -> dict[str, np.ndarray]:
    """One client's data as arrays of numbers."""
    if not isinstance(fields, Mapping):
        raise DataError(f"from_batches: {where} must be a dict {{field: array}}, got {type(fields).__name__}")
    if not fields:
        raise DataError(f"from_batches: {where} has no fields, got {fields!r}")
    return {name: _numbers(f"{name!r} of {where}", value) for name, value in fields.items()}


def _numbers(what: str, value: Any) -> np.ndarray:
    """An array of numbers or truth values."""
    try:
        array = np.asarray(value)
    except ValueError:  # nested lists of unequal lengths
        array = np.asarray(None)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (np.number, np.bool_)):
        raise DataError(f"from_batches: {what} must be an array of numbers, got {array.dtype}: {quote(value)}")
    return array


def _mask(index: int, mask: Any) -> np.ndarray:
    given = _numbers(f"mask of client {index}", mask)
    real = given.astype(bool)
    if (real != given).any():
        wrong = given[real != given].flat[0]
        raise DataError(f"from_batches: mask of client {index} must be true or false everywhere, got {quote(wrong)}")
    return real


def _same_fields(training: Sequence[Given], probing: Sequence[Given]) -> None:
    def kind(given: Given) -> dict[str, tuple[Any, ...]]:
        return {name: (a.shape[1:], str(a.dtype)) for name, a in given[1].items()}

    first = kind(training[0])
    for place, members in (("entry {}", training), ("full[{}]", probing)):
        for i, member in enumerate(members):
            if kind(member) != first:
                raise DataError(f"from_batches: {place.format(i)} has fields {kind(member)}, others have {first}")


def _weights(name: str, weights: Sequence[float] | None, clients: int) -> np.ndarray | None:
    if weights is None:
        return None
    values = _numbers(name, weights).astype(np.float64)
    if values.shape != (clients,):
        raise DataError(f"from_batches: {name} must have one number per client ({clients}), got shape {values.shape}")
    if not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
        raise DataError(f"from_batches: {name} must be finite, not negative and not all zero, got {values.tolist()}")
    return values


def _ids(ids: Sequence[int] | None, clients: int) -> list[int]:
    if ids is None:
        return list(range(clients))
    values = _entries("ids", ids)
    positions = all(whole(i) and 0 <= i <= _LAST_POSITION for i in values)
    if not positions or not len(values) == len(set(values)) == clients:
        raise ConfigError(
            f"from_batches: ids must be {clients} different positions in the population, got {quote(ids)}"
        )
    return [int(i) for i in values]
