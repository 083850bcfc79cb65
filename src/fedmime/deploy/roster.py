"""The roster: which node speaks for which client.

The transport authenticates nodes; which client a node speaks for, it says itself, once. Where the server knows whose
key a node has, it accepts no other name. Elsewhere a name belongs to the node that comes first. From then on nobody
else can speak for that client as long as the node is connected: one node, one client, one update a round.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from fedmime.aggregation.gate import Reason
from fedmime.deploy.fleet import Registered, in_order
from fedmime.deploy.messages import Hello, Profile, Refusal, is_a, opened, packed
from fedmime.deploy.protocol import FrameError, unpack
from fedmime.deploy.terms import examples_of_round
from fedmime.deploy.transport import Failure, Transport
from fedmime.engine.arguments import MOST_EXAMPLES
from fedmime.errors import ClusterError, Stopped
from fedmime.runs.notes import notes, warnings

_PAUSE = 0.2  # seconds between looks at who is connected, while there are too few
_SHORTEST, _LONGEST, _GROWTH = 5.0, 20.0, 2.0  # seconds that greeted nodes have before others are greeted, too
Owners = Callable[[], Mapping[int, str]]
"""Gives the client to whom each node's key belongs, as far as keys are known now; other nodes are not spoken to yet."""

_MOST_PAYLOAD = 1 << 30  # a late answer of an earlier round is passed over and not opened, however long it is


class Roster:
    """The nodes of a run.

    Args:
        transport: reaches them.
        hello: what they are told, but for the nonce.
        parameters: the digest of the model's arrays, which they must share.
        obstacles: for dialects whose nodes cannot take part, the reason.
        pseudonym: what a client is called in logs, by its name.
        owners: whose keys nodes have; None where the server does not know.
        most_examples: that a client may claim to have, since they are its weight.
        stop: gives the number of a signal for which nobody is to be waited for any more, if there is one.
    """

    def __init__(
        self,
        transport: Transport,
        hello: Hello,
        parameters: str,
        obstacles: Mapping[str, str],
        pseudonym: Callable[[str], str],
        owners: Owners | None = None,
        most_examples: int = MOST_EXAMPLES,
        stop: Callable[[], int | None] | None = None,
    ) -> None:
        self._most_examples, self._stop = most_examples, stop or (lambda: None)
        self._transport, self._hello, self._parameters = transport, hello, parameters
        self._obstacles, self._pseudonym = obstacles, pseudonym
        self._read_owners = owners
        self._owners: Mapping[int, str] = {}
        self._profiles: dict[int, Profile] = {}  # of nodes that take part
        self._refused: set[int] = set()  # nodes that are not greeted again until they have left
        self._doubted: set[int] = set()  # nodes that have failed and must introduce themselves again
        self._greeted: dict[int, set[str]] = {}  # nodes whose introduction is awaited, with the nonces they were sent
        self._members: dict[str, Registered] | None = None  # by name, once the run has begun

    def gather(self, nodes: int, seconds: float) -> tuple[Registered, ...]:
        """Wait until so many clients have introduced themselves, and return all that have, in the order of their names.

        Raises:
            ClusterError: there are fewer when the time is over.
            Stopped: there is a signal to stop.
        """
        if not self.wait(lambda: len(self._profiles) >= nodes, time.monotonic() + seconds):
            if number := self._stop():
                raise Stopped(f"stopped by signal {number} while nodes were waited for", number)
            words = f"{len(self._profiles)} of {nodes} nodes joined within {seconds:g} s"
            raise ClusterError(f"deploy: {words}; start more of them, or wait for fewer")
        return in_order(Registered(p.client, p.examples, p.data) for p in self._profiles.values())

    def enrol(self, clients: Collection[Registered]) -> None:
        """From now on, only these clients take part, as they were when the run began."""
        self._members = {client.name: client for client in clients}
        for node, profile in list(self._profiles.items()):
            if words := self._foreign(profile):
                self._refuse(node, words)

    def wait(self, enough: Callable[[], bool], end: float) -> bool:
        """Greet nodes as they come until there are enough of them; whether there are when the time is over.

        A signal ends the wait, too. A node that stays silent is greeted again after a while, and does not keep others
        from being greeted.

        Args:
            enough: looks at the roster.
            end: when the time is over, by the monotonic clock.
        """
        self._look()
        patience = _SHORTEST
        while not enough():
            if self._stop():
                return False
            for node, reply in self._exchange(min(end - time.monotonic(), patience)):
                self.meet(node, reply)
                if enough():
                    return True
            patience = min(patience * _GROWTH, _LONGEST)
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(_PAUSE, left))
            self._look()
        return True

    def greetings(self) -> dict[int, bytes]:
        """What to send to nodes that were not seen before or have failed, by node; `meet` takes their replies."""
        requests = {}
        for node in sorted(self._look() - self._refused - (self._profiles.keys() - self._doubted)):
            nonce = secrets.token_hex(16)
            self._greeted.setdefault(node, set()).add(nonce)
            requests[node] = packed(self._hello._replace(nonce=nonce))
        return requests

    def meet(self, node: int, reply: bytes | Failure) -> bool:
        """Take a node on, or refuse it, if its introduction is awaited; whether it was.

        A reply that is none to a greeting is passed over: an answer of an earlier round may have come late.
        """
        nonces = self._greeted.get(node)
        if nonces is None:
            return False
        try:
            profile = None if isinstance(reply, Failure) else self._profile(reply, nonces)
            if profile is not None:
                self._check(node, profile)
                self._profiles[node] = profile
                self._doubted.discard(node)
                del self._greeted[node]
                notes.info("node %d speaks for %s", node, self._pseudonym(profile.client))
        except FrameError as error:
            self._refuse(node, str(error))
        return True

    def nodes(self) -> dict[str, int]:
        """The nodes that speak for clients now, by the clients' names."""
        return {p.client: node for node, p in self._profiles.items() if node not in self._doubted}

    def dialect(self, node: int) -> str:
        """The dialect of a node."""
        return self._profiles[node].dialect

    def doubt(self, node: int) -> None:
        """Have a node introduce itself again before it is asked for anything: it has failed, or was started anew."""
        self._doubted.add(node)

    def _look(self) -> set[int]:
        """The nodes that are connected; others are forgotten, and may come back as anybody."""
        connected = set(self._transport.nodes())
        if self._read_owners is not None:
            self._owners = self._read_owners()
            connected &= self._owners.keys()
        self._refused &= connected
        self._doubted &= connected
        self._profiles = {node: profile for node, profile in self._profiles.items() if node in connected}
        self._greeted = {node: nonces for node, nonces in self._greeted.items() if node in connected}
        return connected

    def _exchange(self, seconds: float) -> Iterator[tuple[int, bytes | Failure]]:
        requests = self.greetings()
        return self._transport.exchange(requests, max(seconds, 0.0)) if requests else iter(())

    def _profile(self, reply: bytes, nonces: Collection[str]) -> Profile | None:
        """What a node says of itself; None if it answers something else. `FrameError` if it cannot take part."""
        frame, hello = unpack(reply, _MOST_PAYLOAD), self._hello
        if is_a(frame, Refusal):
            refusal = opened(frame, Refusal)
            if refusal.nonce and refusal.nonce not in nonces:
                return None
            raise FrameError(f"it refuses: {refusal.words}")
        if not is_a(frame, Profile):
            return None
        profile = opened(frame, Profile)
        if profile.run != hello.run or profile.nonce not in nonces:
            return None
        for what, theirs, ours in (
            ("version", profile.version, hello.version),
            ("configuration", profile.configuration, hello.configuration),
            ("model", profile.parameters, self._parameters),
        ):
            if theirs != ours:
                raise FrameError(f"its {what} is {theirs[:24]!r}, the server's {ours[:24]!r}")
        if words := self._obstacles.get(profile.dialect):
            raise FrameError(words)
        return profile

    def _check(self, node: int, profile: Profile) -> None:
        """Refuse a node that claims too many examples, or to speak for whom it must not."""
        name = self._pseudonym(profile.client)
        if self._owners.get(node, profile.client) != profile.client:
            raise FrameError(f"it has the key of {self._pseudonym(self._owners[node])} and claims to be {name}")
        owner = next((other for other, p in self._profiles.items() if p.client == profile.client), node)
        if owner != node:
            raise FrameError(f"it claims to be {name}, for whom node {owner} speaks")
        before = self._profiles.get(node, profile)
        if before.client != profile.client:
            raise FrameError(f"it was {self._pseudonym(before.client)} and now claims to be {name}")
        if words := self._excess(profile.examples) or self._foreign(profile):
            raise FrameError(words)

    def _excess(self, examples: int) -> str | None:
        """Why a client has too many examples; None if it has not.

        They are all that the server knows of them, and would be its weight for the whole run.
        """
        accepted = f"{Reason.WEIGHT.label}: it claims {examples:,} examples; accepted are at most"
        if examples > self._most_examples:
            return f"{accepted} {self._most_examples:,} (most_examples)"
        if (taken := examples_of_round(self._hello, examples)) > MOST_EXAMPLES:
            return f"{accepted} as many as a round takes {MOST_EXAMPLES:,} of, and it would take {taken:,}"
        return None

    def _foreign(self, profile: Profile) -> str | None:
        """Why a client does not belong to the run that has begun; None if it does."""
        if self._members is None:
            return None
        member, name = self._members.get(profile.client), self._pseudonym(profile.client)
        if member is None:
            return f"{name} did not belong to the run when it began"
        if (member.examples, member.data) != (profile.examples, profile.data):
            return f"{name} has other data than when the run began"
        return None

    def _refuse(self, node: int, words: str) -> None:
        self._profiles.pop(node, None)
        self._greeted.pop(node, None)
        self._doubted.discard(node)
        self._refused.add(node)
        warnings.warning("node %d is refused: %s", node, words)
