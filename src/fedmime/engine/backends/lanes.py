"""A function on every lane of every device, and sums over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from fedmime import native
from fedmime.engine.devices import AXIS, EVERYWHERE, LANE, SPREAD
from fedmime.engine.plan import Packed

SHORT = range(1 << 14, 1 << 17)  # entries of models whose local steps are short, and not all of a round
COPIES = 4  # of a program, at most


class Wave(NamedTuple):
    """Clients that are on the devices together."""

    tables: Packed
    kept: Any  # [devices, clients, ...] what the clients had kept


class Options(NamedTuple):
    """What a compiled round is specialised for."""

    mesh: Mesh
    chunk: int
    prime: bool
    drift: bool
    random: bool  # whether the loss draws random numbers
    lanes: int  # clients side by side on each device
    masked: int | None  # None: loops take as many trips as there are; else the longest client's, the rest masked
    widths: int  # in how many widths there is a step's program
    common: int  # clients that any device may train, at most
    control: str  # how a local step finds its gradient at the anchor: "twice", "factors", "step factors" or "cache"
    donate: bool = False  # whether the new server state may take the memory of the old one, which is then gone


def on_devices(
    options: Options,
    inside: Callable[..., Any],
    replicated: Any,
    wave: Wave,
    out: tuple[Any, ...],
    scratch: tuple[Any, ...] = (),
) -> Any:
    """Call `inside(replicated, tables, kept, *scratch)` in every lane; `out`: which results are the lane's own."""

    def opened(replicated: Any, own: tuple[Any, ...]) -> Any:
        wave, *scratch = own
        return inside(replicated, wave.tables.opened(), wave.kept, *scratch)

    def parts(own: Any, common: Any) -> tuple[Any, ...]:
        """What is each lane's own, and what all have in common, each marked as such."""
        return Wave(wave.tables.with_own(lambda _: own, lambda _: common), own), *(own for _ in scratch)

    def on_device(replicated: Any, own: tuple[Any, ...]) -> Any:
        if options.lanes == 1:  # without an axis of lanes: a CPU would copy the model at every step
            wave, *scratch = own
            tables = wave.tables.with_own(_first, lambda pool: pool)
            results = opened(replicated, (Wave(tables, _first(wave.kept)), *_first(scratch)))
            return tuple(_stack(r) if spec == SPREAD else r for r, spec in zip(results, out, strict=True))
        in_axes, out_axes = (None, parts(0, None)), tuple(0 if spec == SPREAD else None for spec in out)
        return jax.vmap(opened, in_axes=in_axes, out_axes=out_axes, axis_name=LANE)(replicated, own)

    in_specs = (EVERYWHERE, parts(SPREAD, EVERYWHERE))
    specs = {"mesh": options.mesh, "in_specs": in_specs, "out_specs": out, "check_vma": False}
    return jax.shard_map(on_device, **specs)(replicated, (wave, *scratch))


def apart(options: Options, model: Any, function: Callable[[], Any]) -> Any:
    """What a function gives, with a copy of its program for each device where local steps are short.

    XLA has a pool of frames for each call of a kernel in a program, and devices that come to the same call wait for it.
    """
    copies = min(options.mesh.size, COPIES) if options.lanes == 1 and native.usable() else 1
    if copies == 1 or sum(leaf.size for leaf in jax.tree.leaves(model)) not in SHORT:
        return function()
    return lax.switch(lax.axis_index(AXIS) % copies, [function] * copies)


def add_up(tree: Any, options: Options, after: Any = (), filled: Any = None, rows: Any = None) -> Any:
    """Over all lanes of all devices, and then over rows that they filled; where there is another sum, `after` it."""
    if options.lanes > 1:
        return lax.psum(tree, (AXIS, LANE))
    leaves, structure = jax.tree.flatten(tree)
    if options.mesh.size > 1 and leaves and native.totals(*leaves):
        given = (lax.axis_index(AXIS), options.mesh.size, leaves, jax.tree.leaves(after))
        return jax.tree.unflatten(structure, native.total(*given, filled, jax.tree.leaves(rows)))
    if rows is None:
        return lax.psum(tree, AXIS)
    rows = jax.tree.map(lambda leaf: jnp.where(filled.reshape(-1, *(leaf.ndim - 1) * [1]), leaf, 0), rows)
    return jax.tree.map(lambda total, all_: total + all_.sum(0, dtype=all_.dtype), *lax.psum((tree, rows), AXIS))


def _first(tree: Any) -> Any:
    """A device's own part without the axis of devices."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _stack(tree: Any) -> Any:
    """Give a device's own results the axis of devices."""
    return jax.tree.map(lambda leaf: leaf[None], tree)
