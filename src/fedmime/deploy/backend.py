"""The back end of a deployed run: it asks real clients for what a simulation would compute.

It is the server's half of a deployment. `round.py` and `simulate.py` of the engine run as they do in a simulation; this
module turns their questions into requests, lets the gate decide which replies count, and adds these up in the order of
the cohort, so that the sums do not depend on who was first.
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedmime.aggregation.encoder import GRADIENT, UPDATE
from fedmime.aggregation.gate import Reason
from fedmime.algorithms.algorithm import Message
from fedmime.deploy.affine import AffineDialect
from fedmime.deploy.dialect import Dialect, JaxDialect, Offer
from fedmime.deploy.fleet import Fleet
from fedmime.deploy.layout import Layout, layout_of
from fedmime.deploy.messages import AFFINE, JAX, NEVER, NOTHING, POINTS, PRIME, Ask
from fedmime.deploy.replies import Asked, Inbox, Opener
from fedmime.deploy.roster import Roster
from fedmime.deploy.secret import Secret
from fedmime.deploy.secure.options import SecureSum
from fedmime.deploy.transport import Transport
from fedmime.engine.backends.backend import Accepted, Answer, Backend, Problem, Scalars, Work
from fedmime.engine.backends.local.backend import LocalBackend
from fedmime.engine.backends.specification import NO_NEEDS, Needs
from fedmime.engine.intake import Intake
from fedmime.engine.participation import Participation
from fedmime.errors import ConfigError
from fedmime.runs.directory import Saving
from fedmime.runs.notes import notes
from fedmime.vector import Vector

_SILENT = (Reason.DATA, Reason.FAILED, Reason.LATE)  # why a client has sent nothing


@dataclasses.dataclass(frozen=True)
class Deployed:
    """A deployed back end that has not been started yet; see `fedmime.engine.backends.specification`.

    Attributes:
        transport: reaches the nodes.
        roster: says which node speaks for which client.
        fleet: the clients of the run.
        run: the run's identity.
        secret: the server's.
        participation: how many clients are asked, and how many must report.
        deadline: seconds after which an exchange ends, whoever has replied.
        saving: how often the run is saved; None if it is not, so that no resumed server will look back.
        secure: how messages are masked; None if they are not.
    """

    transport: Transport
    roster: Roster
    fleet: Fleet
    run: str
    secret: Secret
    participation: Participation
    deadline: float
    saving: Saving | None = None
    secure: SecureSum | None = None

    def start(self, problem: Problem, model: Any, needs: Needs = NO_NEEDS) -> DeployedBackend:
        """See `Specification.start`."""
        from fedmime.deploy.secure.backend import SecureBackend

        return (DeployedBackend if self.secure is None else SecureBackend)(problem, model, needs, self)

    def since(self, round_number: int) -> int:
        """The oldest round from which a resumed server may go on: that of the oldest checkpoint, or one before it."""
        if self.saving is None:
            return round_number
        return max(0, (round_number // self.saving.every - self.saving.keep) * self.saving.every)


class Round:
    """What a back end remembers of the round that is going on."""

    def __init__(self, work: Work, layout: Layout) -> None:
        self.work, self.layout = work, layout
        self.dialects: dict[str, Dialect] = {JAX: JaxDialect(layout), AFFINE: AffineDialect()}
        self.refused: dict[int, Reason] = {}
        self.strays: list[Reason] = []
        self.probed: set[int] | None = None  # places of the clients whose gradients have arrived
        self.heard: set[int] = set()  # clients that have sent something, sound or not
        self.trained: list[int] = []  # clients whose update was accepted

    def note(self, inbox: Inbox) -> None:
        """Remember who has sent a message, and who is left out."""
        self.refused |= inbox.refused
        self.strays += inbox.strays
        self.heard |= {self.work.cohort.members[place].client for place in inbox.received}
        self.heard |= {client for client, reason in inbox.refused.items() if reason not in _SILENT}


class DeployedBackend(Backend):
    """Clients elsewhere, who look at their own data; the transport belongs to the caller.

    Args:
        problem: for evaluations, which happen here.
        model: the model, or its shapes.
        needs: what the run needs.
        options: how clients are reached.
    """

    layout = "one client after another"

    def __init__(self, problem: Problem, model: Any, needs: Needs, options: Deployed) -> None:
        self.problem, self._model, self._needs, self._options = problem, model, needs, options
        self._layout: Layout | None = None  # the same in all rounds
        self._round: Round | None = None

    def stored(self, blank: Any) -> Any:
        """See `Backend.stored`. Clients keep their values themselves; the server keeps from which round they are."""
        if not jax.tree.leaves(blank):
            return blank
        if any(np.any(leaf) for leaf in jax.tree.leaves(blank)):
            raise ConfigError("deploy: Algorithm.remember must be zeros, which clients can make themselves")
        return np.asarray(NEVER, np.int32)

    def noise_key(self, key: jax.Array) -> jax.Array:
        """See `Backend.noise_key`. Clients know the round's key, so the noise follows from the server's secret."""
        return self._options.secret.noise_key(key)

    def ask(
        self, work: Work, points: tuple[Vector, ...] = (), message: Message | None = None, bound: Any = np.inf
    ) -> Answer:
        """See `Backend.ask`."""
        current = self._entered(work)
        assert self.broadcaster is not None
        offer = Offer(work, points, message, self.broadcaster)
        inbox = self._exchanged(current, offer, bound)
        current.note(inbox)
        if points:
            current.probed = {place for place, found in inbox.received.items() if found.gradients}
        return self._added(current, inbox, len(points))

    def settle(self, work: Work, accepted: bool) -> None:
        """See `Backend.settle`. What clients have kept of an abandoned round does not count."""
        current, self._round = self._round, None
        if current is not None and self.memory is not None and accepted:
            number = np.asarray(work.round, np.int32)
            self.memory = self.memory.write(current.trained, [number] * len(current.trained))

    def metrics(self, params: Any, batch: Mapping[str, np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """See `Backend.metrics`. The server's test set is here, and so are its evaluations."""
        return self._here.metrics(params, batch)

    @functools.cached_property
    def _here(self) -> LocalBackend:
        return LocalBackend(self.problem, self._model, None, self._needs.intake or Intake(self.problem.check), False)

    def _entered(self, work: Work) -> Round:
        """The round that is going on, or a new one."""
        if self._round is None or self._round.work.cohort is not work.cohort:
            self._layout = self._layout or layout_of(work.algorithm, self._model)
            self._round = Round(work, self._layout)
        return self._round

    def _exchanged(self, current: Round, offer: Offer, bound: Any) -> Inbox:
        """Ask the clients of one exchange, and take their replies."""
        options, work = self._options, offer.work
        end = time.monotonic() + options.deadline
        wanted = self._wanted(current, offer)
        self._await(offer, wanted, end)
        requests = options.roster.greetings()
        asked, absent = self._reached(wanted)
        requests |= {node: self._request(current, offer, node, each) for node, each in asked.items()}
        opener = Opener(current.layout, work.aggregator, work.key, bound)
        log = functools.partial(self._log, work, asked)
        inbox = Inbox(options.run, work.round, asked, self._targets(offer, wanted), opener, log)
        if asked:
            self._collect(requests, inbox, end)
        inbox.close(absent)
        return inbox

    def _reached(self, wanted: Sequence[Asked]) -> tuple[dict[int, Asked], list[Asked]]:
        """The clients of an exchange by node, and those whose node is not connected."""
        nodes, clients = self._options.roster.nodes(), self._options.fleet.clients
        there = [(nodes.get(clients[each.member.client].name), each) for each in wanted]
        return {node: each for node, each in there if node is not None}, [each for node, each in there if node is None]

    def _request(self, current: Round, offer: Offer, node: int, asked: Asked) -> bytes:
        """What a node is sent."""
        dialect = current.dialects[self._options.roster.dialect(node)]
        return dialect.request(self._ask(offer.work, asked), offer)

    def _collect(self, requests: Mapping[int, bytes], inbox: Inbox, end: float) -> None:
        """Send requests and take what arrives until nothing is left to wait for, or the time is over."""
        for node, reply in self._options.transport.exchange(requests, max(end - time.monotonic(), 0.0)):
            if not self._options.roster.meet(node, reply):
                inbox.take(node, reply)
            if inbox.complete:
                break

    def _wanted(self, current: Round, offer: Offer) -> list[Asked]:
        """The clients of an exchange. Who was left out of a round's first exchange is left out of its second."""
        wanted = []
        for place, member in enumerate(offer.work.cohort.members):
            gradients = len(offer.points) if member.sends_gradient else 0
            train = offer.message is not None and member.steps > 0
            missed = train and not gradients and member.sends_gradient and current.probed is not None
            if member.client in current.refused or (missed and place not in (current.probed or ())):
                continue
            if gradients or train:
                wanted.append(Asked(place, member, secrets.token_hex(16), gradients, train))
        return wanted

    def _targets(self, offer: Offer, wanted: Sequence[Asked]) -> dict[str, int]:
        """How many replies an exchange waits for: all, or with over-selection as many as were planned."""
        roles = (GRADIENT,) * bool(offer.points) + (UPDATE,) * (offer.message is not None)
        counts = {role: sum(role in each.roles for each in wanted) for role in roles}
        if self._options.participation.over_selection == 1:
            return counts
        return {role: min(number, planned(offer.work)) for role, number in counts.items()}

    def _await(self, offer: Offer, wanted: Sequence[Asked], end: float) -> None:
        """Wait until enough of these clients are connected for the round to be carried out, or the deadline comes."""
        clients, roster, least = self._options.fleet.clients, self._options.roster, self._least(offer.work)

        def enough() -> bool:
            nodes = roster.nodes()
            there = [each for each in wanted if clients[each.member.client].name in nodes]
            return all(sum(role in each.roles for each in there) >= least for role in self._targets(offer, wanted))

        roster.wait(enough, end)

    def _least(self, work: Work) -> float:
        """How many clients must report for a round to be carried out, for each kind of message."""
        return self._options.participation.minimum * planned(work)

    def _ask(self, work: Work, asked: Asked) -> Ask:
        """The request to a client, but for what belongs to a dialect."""
        member = asked.member
        pick = work.pick - member.before if work.algorithm.draws else -1
        kept_from = NEVER if self.memory is None else int(self.memory.read([member.client])[0])
        norms = None
        if work.aggregator.adaptive:
            norms = float(work.aggregator.clip_norm(UPDATE)), float(work.aggregator.clip_norm(GRADIENT))
        return Ask(
            self._options.run,
            work.round,
            asked.nonce,
            member.client,
            (PRIME if work.prime else POINTS) if asked.gradients else NOTHING,
            asked.train,
            pick if 0 <= pick < member.steps else -1,
            kept_from,
            self._options.since(work.round),
            norms=norms,
        )

    def _log(self, work: Work, asked: Mapping[int, Asked], node: int, reason: Reason, words: str) -> None:
        """Write down what is refused, and have a node that has failed introduce itself again."""
        name = self._options.fleet.ids[asked[node].member.client] if node in asked else f"node {node}"
        notes.info("round %d refuses %s (%s): %s", work.round, name, reason.label, words)
        if reason is Reason.FAILED:
            self._options.roster.doubt(node)

    def _added(self, current: Round, inbox: Inbox, points: int) -> Answer:
        """The sums over the sound replies of an exchange, in the order of the cohort."""
        work, linear = current.work, current.work.aggregator.combiner.linear
        cancelled = any(number < self._least(work) for number in inbox.reported.values())
        if cancelled:
            return Answer((), 0.0, None, 0, lambda: current.refused, strays=current.strays, cancelled=True)
        rows = max(planned(work), len(inbox.received))
        gradients, updates = [Accepted(linear, rows) for _ in range(points)], Accepted(linear, rows)
        unclipped, losses = 0, {}
        for place, found in sorted(inbox.received.items()):
            answer, member = found.answer, work.cohort.members[place]
            for part, gradient in zip(gradients, found.gradients, strict=False):
                part.add(float(work.gradient_shares[place]), gradient)
            unclipped += bool(found.gradients) and answer.gradients_unclipped
            if found.update is not None:
                (send, add), w = found.update, float(work.update_shares[place])
                steps = member.steps
                scalars = Scalars(w, answer.loss, answer.drift, steps, w * steps, 1, answer.update_unclipped)
                updates.add(w, send, add, jnp.stack([jnp.asarray(scalar, float) for scalar in scalars]))
                current.trained.append(member.client)
                losses[member.client] = answer.loss / steps
        share = gradients[0].weight if gradients else 0.0
        return Answer(
            tuple(part.collected for part in gradients) if share else (),
            share,
            updates.totals,
            len(current.heard),
            lambda: current.refused,
            unclipped,
            current.strays,
            losses=lambda: losses,
        )


def planned(work: Work) -> int:
    """How many clients a round was to have for each kind of message."""
    return work.cohort.denominator(work.algorithm.split)
