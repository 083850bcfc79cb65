"""The default back end: compiled programs on the devices of this process."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedmime.aggregation.gate import Reason
from fedmime.algorithms.algorithm import Message
from fedmime.compilation import prepare
from fedmime.engine.backends.backend import Answer, Backend, ClientMessages, Problem, Totals, Work
from fedmime.engine.backends.local import programs
from fedmime.engine.backends.local.devices import REPLICATED, SHARDED, add_parts, lanes, mesh, replicate, shard
from fedmime.engine.backends.local.layout import Layout, Loaded, Tables, in_words
from fedmime.engine.backends.local.pool import Pool
from fedmime.engine.backends.randomized import draws_random_numbers
from fedmime.engine.backends.specification import Expected
from fedmime.engine.cohort import Cohort, Columns, first_column
from fedmime.engine.contract import check_metrics, example_metrics
from fedmime.engine.intake import Intake
from fedmime.errors import ConfigError
from fedmime.vector import Vector, nbytes

WAVE_BYTES = 512 << 20  # of examples that are on the devices at the same time
CACHE_BYTES = 4 << 30  # of gradients that one round may record for its local steps
MESSAGE_BYTES = 4 << 30  # of messages that one round may hold for a combiner that needs all of them


class Wave(NamedTuple):
    """Members of a cohort whose data is on the devices at the same time."""

    pool: Mapping[str, jax.Array]
    tables: Tables
    clients: list[list[int]]
    """The clients that each lane trains, in order."""
    gradient_clients: list[list[int]]
    """The clients that each lane asks for gradients, in order."""


class Laid(NamedTuple):
    """A cohort after its data was checked and, if it fits in one wave, its index tables were prepared for one round."""

    cohort: Cohort
    groups: list[list[int]]
    """Places in the cohort of the members of each wave; nearly always one wave."""
    wave: Wave | None
    """The only wave, laid out on the devices. None if there are several, which are laid out when their turn comes."""
    refused: list[int]
    """Clients whose data cannot be used."""
    share: float
    """The sum of the gradient shares of the clients whose data was accepted."""
    clients: int
    """The number of members whose data can be used."""
    trains: bool
    """Whether anybody is left that trains."""
    options: programs.Options
    random: bool
    """Whether the loss draws random numbers."""


class LocalBackend(Backend):
    """Clients as compiled loops, spread over the local devices.

    Args:
        problem: what clients train.
        model: the model, or its shapes.
        devices: how many local devices to use; all by default.
        intake: looks at clients' data before it is used.
        drift: also measure the mean of ‖y − x‖² over all local steps.
        layout: padded sizes of the tables, to share between back ends.
        expected: what a run will ask for; its tables are then sized for all rounds.
    """

    def __init__(
        self,
        problem: Problem,
        model: Any,
        devices: int | None,
        intake: Intake,
        drift: bool,
        layout: Layout | None = None,
        expected: Expected | None = None,
    ) -> None:
        prepare()
        self.problem, self._model, self._intake, self._drift = problem, model, intake, drift
        self._mesh = mesh(devices)
        self.layout = in_words(self._mesh.size)
        self._layout = layout or Layout(self._mesh.size * lanes(), problem.chunk)
        self._pool = None
        if expected is not None:
            sizes = expected.population.sizes
            self._layout.reserve(sizes[sizes > 0], expected.steps, expected.cohort_size)
            self._pool = Pool.of(expected.population, expected.rounds, expected.cohort_size, self._mesh)
        self._laid: dict[int, Laid] = {}  # by round: the current one, and the next, which is laid out meanwhile
        self._loss_facts: tuple[bool, int] | None = None  # see _inspect_loss
        self._at_anchor: Any = ()  # what the gradients of this round recorded for its local steps
        self._trained: list[tuple[Wave, programs.Gathered]] = []  # waves with what their clients keep
        self._refusals: list[tuple[list[Slot], Any]] = []  # clients with the reasons to refuse them, of both phases

    def prepare(self, work: Work) -> None:
        """See `Backend.prepare`."""
        self._lay_out(work)

    def ask(
        self, work: Work, points: tuple[Vector, ...] = (), message: Message | None = None, bound: Any = np.inf
    ) -> Answer:
        """See `Backend.ask`."""
        laid = self._lay_out(work)
        check_messages(work, self._model)
        aggregator, bound = replicate((work.aggregator, jnp.asarray(bound)), self._mesh)
        work = work._replace(aggregator=aggregator)
        gradients, share, unclipped = (), laid.share, 0
        if points and laid.share:
            gradients, share, unclipped = self._gradients(work, laid, points, bound)
        totals = self._train(work, laid, message, bound) if message is not None and laid.trains else None
        refused = functools.partial(_refused, laid.refused, self._refusals)
        losses = functools.partial(_losses, work.cohort, self._trained)
        return Answer(gradients, share, totals, laid.clients, refused, unclipped, losses=losses)

    def settle(self, work: Work, accepted: bool) -> None:
        """See `Backend.settle`."""
        trained, self._trained, self._refusals, self._at_anchor = self._trained, [], [], ()
        if self.memory is None or not accepted:
            return
        for wave, gathered in trained:
            new, left_out = jax.device_get((gathered.kept, gathered.refused))
            good = [(client, slot) for client, slot in _slots(wave.clients) if not left_out[slot]]
            values = [jax.tree.map(lambda leaf, slot=slot: leaf[slot], new) for _, slot in good]
            self.memory = self.memory.write([client for client, _ in good], values)

    def metrics(self, params: Any, batch: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """See `Backend.metrics`. Each device takes its part of the batch, which is padded to equal parts."""
        n = len(first_column(batch))
        width = -(-n // self._mesh.size) * self._mesh.size
        padded = {name: column[np.minimum(np.arange(width), n - 1)] for name, column in batch.items()}
        found = jax.device_get(_metrics(self.problem, replicate(params, self._mesh), padded, self._mesh))
        return jax.tree.map(lambda values: values[:n], found)

    def _gradients(self, work: Work, laid: Laid, points: tuple[Vector, ...], bound: Any) -> tuple[Any, Any, Any]:
        """The gradients of `Answer`, their share, and how many clients were not clipped."""
        points = replicate(points, self._mesh)
        parts, waves = [], []
        for wave in self._waves(work, laid):
            sums, gathered = programs.gradients(
                self.problem, work.aggregator, points, wave.pool, wave.tables, work.key, bound, laid.options
            )
            self._at_anchor = gathered.recorded
            parts.append(sums)
            waves.append((wave.gradient_clients, wave.tables.gradient_shares, gathered))
            if work.aggregator.by_client:
                self._refusals.append((_slots(wave.gradient_clients), gathered.refused))
        gradients, (weight, unclipped) = add_parts(parts, self._mesh)
        if not work.aggregator.by_client:
            return gradients, laid.share, 0
        if not work.aggregator.combiner.linear:
            sent, weights = self._gathered(work, waves)
            gradients = tuple(ClientMessages(each, weights) for each in sent)
        return gradients, weight, unclipped

    def _train(self, work: Work, laid: Laid, message: Message, bound: Any) -> Totals:
        message = replicate(message, self._mesh)
        parts, waves, self._trained = [], [], []
        for wave in self._waves(work, laid):
            at_anchor, self._at_anchor = self._at_anchor, ()
            totals, gathered = programs.training(
                self.problem, work.algorithm, work.aggregator, message, at_anchor, self._kept(wave), wave.pool,
                wave.tables, work.key, work.pick, bound, laid.options,
            )  # fmt: skip
            parts.append(totals)
            waves.append((wave.clients, wave.tables.shares, gathered))
            self._trained.append((wave, gathered))
            self._refusals.append((_slots(wave.clients), gathered.refused))
        totals: Totals = add_parts(parts, self._mesh)
        return totals if work.aggregator.combiner.linear else totals._replace(messages=self._gathered(work, waves))

    def _gathered(
        self, work: Work, waves: Sequence[tuple[list[list[int]], jax.Array, programs.Gathered]]
    ) -> ClientMessages:
        """The messages of all clients of all waves on the first device, with the weights of those accepted.

        They are in the order of the cohort on any layout: Krum takes the first of equal scores.
        """
        places = {member.client: place for place, member in enumerate(work.cohort.members)}
        ranks = []
        for clients, shares, _ in waves:
            rank = np.full(shares.shape, len(places))
            for client, slot in _slots(clients):
                rank[slot] = places[client]
            ranks.append(rank.ravel())
        order = np.argsort(np.concatenate(ranks), kind="stable")
        collected = [(shares, gathered.refused, gathered.messages) for _, shares, gathered in waves]
        return _gather(*jax.device_put((collected, order), self._mesh.devices.flat[0]))

    def _kept(self, wave: Wave) -> Any:
        """What the clients of a wave have kept, as arrays [lanes, clients, ...]."""
        if self.memory is None:
            return ()
        slots, shape = _slots(wave.clients), wave.tables.shares.shape
        values = self.memory.read([client for client, _ in slots])
        table = jax.tree.map(lambda leaf: np.zeros((*shape, *np.shape(leaf)), leaf.dtype), values[0])
        for (_, slot), value in zip(slots, values, strict=True):
            jax.tree.map(lambda all_, leaf, slot=slot: all_.__setitem__(slot, leaf), table, value)
        return shard(table, self._mesh)

    def _lay_out(self, work: Work) -> Laid:
        laid = self._laid.get(work.round)
        if laid is None or laid.cohort is not work.cohort:
            laid = self._laid[work.round] = self._admit(work)
            for old in list(self._laid)[:-2]:  # in the order in which they were laid out: a sweep goes back, too
                del self._laid[old]
        return laid

    def _admit(self, work: Work) -> Laid:
        """Look at the clients' data, and lay those out that can be used."""
        cohort, refused, places = work.cohort, [], []
        for place, member in enumerate(cohort.members):
            if self._intake.refuses(cohort, place):
                refused.append(member.client)
            else:
                places.append(place)
        if self._loss_facts is None and places:
            self._loss_facts = self._inspect_loss(cohort.source.examples(places[0]))
        random, example = self._loss_facts or (False, 0)
        nbytes_each = [example * cohort.members[place].size for place in places]
        groups = _groups(places, nbytes_each)
        laid = Laid(
            cohort,
            groups,
            None,
            refused,
            float(work.gradient_shares[np.asarray(places, int)].sum()),
            len(places),
            any(cohort.members[place].steps for place in places),
            self._options(work, random, len(groups)),
            random,
        )
        return laid._replace(wave=self._wave(work, laid, groups[0])) if len(groups) == 1 else laid

    def _inspect_loss(self, sample: Columns) -> tuple[bool, int]:
        """Whether the loss draws random numbers, and the bytes of one example; the same for all clients."""
        random = draws_random_numbers(self.problem, self._model, sample)
        return random, sum(column[:1].nbytes for column in sample.values())

    def _options(self, work: Work, random: bool, groups: int) -> programs.Options:
        """How gradients at the anchor are found depends on the cohort, never on the number of devices."""
        cohort, anchor = work.cohort, work.anchor
        at_anchor = None
        if anchor.point is not None and groups == 1 and all(m.sends_gradient for m in cohort.training):
            if self.problem.factors is not None:
                at_anchor = "factors"
            elif cohort.batches_cover_gradient and nbytes(self._model) * cohort.steps <= CACHE_BYTES:
                at_anchor = "cache"
        return programs.Options(
            self._mesh,
            self._layout.lanes // self._mesh.size,
            self._layout.chunk_of(work, random),
            at_anchor,
            work.by_steps(random),
            anchor.point,
            anchor.start,
            self._drift,
            jax.tree.leaves(self._model)[0].dtype.name,
            work.wants_losses,
        )

    def _waves(self, work: Work, laid: Laid) -> Iterator[Wave]:
        """The waves of a round. One that holds the whole cohort is laid out once, others when their turn comes."""
        if laid.wave is not None:
            yield laid.wave
        else:
            for group in laid.groups:
                yield self._wave(work, laid, group)

    def _wave(self, work: Work, laid: Laid, group: list[int]) -> Wave:
        source = work.cohort.source
        members = [work.cohort.members[place] for place in group]
        if self._pool is not None:
            pool, starts, lengths = self._pool.columns, [self._pool.starts[m.client] for m in members], None
        else:
            pool, starts, lengths = self._copied([source.examples(place) for place in group])
        loaded = []
        for i, (place, m) in enumerate(zip(group, members, strict=True)):
            batches = source.batches(place) if m.steps else None
            length = m.size if lengths is None else lengths[i]
            loaded.append(Loaded(place, m.client, length, starts[i], batches, m.sends_gradient, m.before))
        tables, lanes = self._layout.tables(work, loaded, random=laid.random)
        clients = [[m.client for m in lane if m.steps] for lane in lanes]
        gradient_clients = [[m.client for m in lane if m.sends_gradient] for lane in lanes]
        return Wave(pool, shard(tables, self._mesh), clients, gradient_clients)

    def _copied(self, columns: Sequence[Columns]) -> tuple[Mapping[str, jax.Array], list[int], list[int]]:
        """The examples of some clients one after another on the devices, where those of each begin, and how many."""
        lengths = [len(first_column(c)) for c in columns]
        *starts, end = itertools.accumulate(lengths, initial=0)
        size = self._layout.size("pool", end)
        pool = {}
        for name, like in columns[0].items():
            pool[name] = np.empty((size, *like.shape[1:]), like.dtype)  # no table points at the rows left unfilled
            np.concatenate([c[name] for c in columns], out=pool[name][:end])
        return replicate(pool, self._mesh), starts, lengths


def check_messages(work: Work, model: Any) -> None:
    """Refuse a cohort whose messages are too large to hold them all, before anything is computed."""
    size = len(work.cohort.members) * nbytes(model) * max(work.anchor.points, 1)
    if not work.aggregator.combiner.linear and size > MESSAGE_BYTES:
        name = type(work.aggregator.combiner).__name__
        raise ConfigError(
            f"aggregation: {name} keeps the messages of all {len(work.cohort.members)} clients, {size:,} bytes; "
            f"accepted are at most {MESSAGE_BYTES:,}: lower the cohort, or clip and take the mean"
        )


def _groups(places: Sequence[int], nbytes_each: Sequence[int]) -> list[list[int]]:
    """Consecutive members in groups whose examples fit on the devices together."""
    groups: list[list[int]] = []
    load = 0
    for place, size in zip(places, nbytes_each, strict=True):
        if not groups or load + size > WAVE_BYTES:
            groups.append([])
            load = 0
        groups[-1].append(place)
        load += size
    return groups


Slot = tuple[int, tuple[int, int]]


def _slots(clients: Sequence[Sequence[int]]) -> list[Slot]:
    """The clients of every lane, each with its place (lane, number) in arrays [lanes, clients, ...]."""
    return [(client, (i, j)) for i, lane in enumerate(clients) for j, client in enumerate(lane)]


def _refused(unusable: Sequence[int], refusals: Sequence[tuple[list[Slot], Any]]) -> dict[int, Reason]:
    """Clients that were left out, by their data or by a message of theirs, with the reason."""
    found = dict.fromkeys(unusable, Reason.DATA)
    for slots, reasons in refusals:
        codes = np.asarray(reasons)
        found |= {client: Reason(codes[slot]) for client, slot in slots if codes[slot]}
    return found


def _losses(cohort: Cohort, trained: Sequence[tuple[Wave, programs.Gathered]]) -> dict[int, float]:
    """The mean loss over its local steps of every client whose update was accepted."""
    steps, found = {member.client: member.steps for member in cohort.training}, {}
    for wave, gathered in trained:
        sums, reasons = jax.device_get((gathered.losses, gathered.refused))
        good = [(client, slot) for client, slot in _slots(wave.clients) if not reasons[slot]]
        found |= {client: float(sums[slot]) / steps[client] for client, slot in good}
    return found


@jax.jit
def _gather(waves: list[tuple[jax.Array, jax.Array, Any]], order: jax.Array) -> ClientMessages:
    """Join arrays [lanes, clients, ...] of all waves to arrays [clients, ...] in a given order."""
    joined = lambda *leaves: jnp.concatenate([leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves])[order]
    weights = joined(*(jnp.where(refused == Reason.ACCEPTED, shares, 0) for shares, refused, _ in waves))
    return ClientMessages(jax.tree.map(joined, *(messages for _, _, messages in waves)), weights)


@functools.partial(jax.jit, static_argnames=("problem", "mesh"))
def _metrics(problem: Problem, params: Any, batch: Any, mesh: Mesh) -> dict[str, tuple[jax.Array, jax.Array]]:
    check_metrics(problem, params, batch)  # once, when the program is traced
    specs = {"mesh": mesh, "in_specs": (REPLICATED, SHARDED), "out_specs": SHARDED, "check_vma": False}
    return jax.shard_map(functools.partial(example_metrics, problem), **specs)(params, batch)
