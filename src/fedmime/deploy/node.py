"""The node of a client that runs JAX: it answers a server's requests from its own data, which never leaves it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmime.aggregation.chains import Aggregation
from fedmime.aggregation.gate import Reason
from fedmime.algorithms.algorithm import Algorithm
from fedmime.compilation import prepare
from fedmime.deploy.kept import DiskShelf, MemoryShelf, Shelf
from fedmime.deploy.messages import JAX, Ask, Hello, Mask, Profile, is_a, opened, packed, refusal
from fedmime.deploy.protocol import FrameError, unpack
from fedmime.deploy.secure.disclosures import Disclosures
from fedmime.deploy.secure.options import MaskError, SecureSum, agreed, check_secure, of_fields
from fedmime.deploy.session import Refused, Session
from fedmime.deploy.terms import Terms, built, terms_of
from fedmime.engine.backends.specification import Choice, Local, chosen
from fedmime.engine.cohort import Columns, first_column
from fedmime.errors import ConfigError, DataError
from fedmime.runs import identity
from fedmime.runs.notes import warnings
from fedmime.validation import made, offers, quote
from fedmime.version import exact

_UNKNOWN = 1 << 30  # bytes of a request to a node that was started anew, which it refuses unread


class JaxNode:
    """A client's half of a deployment; see `fedmime.deploy.protocol.Node`.

    Args:
        problem: what is trained, from `fm.models`.
        data: the client's examples, `{field: array[n, ...]}`.
        name: the client's name. It stays the same when the node is started again, and no other node has it.
        algorithm: the server's, which is compared with it; None builds it from the names and numbers that the server
            sends, for servers that run a named task.
        aggregation: the server's, if `algorithm` is given.
        state: a directory in which the client keeps what belongs to it between rounds; None keeps it in memory, where
            it is lost when the process ends.
        backend: where the client is computed, `"local"` (compiled, on one device) or `"reference"`.
        secure: the masks that the client insists on: it takes part in no run with a smaller `minimum` or `threshold`,
            and sends nothing without masks. None masks messages if the server asks for it.
        own: this machine's copies of the code that the server has of its own, by `"algorithm"` and `"base"`, each as
            `module:name` or `file.py:name`; the names that the server sends are never loaded.
    """

    def __init__(
        self,
        problem: Any,
        data: Columns,
        name: str,
        *,
        algorithm: Algorithm | None = None,
        aggregation: Aggregation | None = None,
        state: str | os.PathLike[str] | None = None,
        backend: Choice = "local",
        secure: SecureSum | None = None,
        own: Mapping[str, str] | None = None,
    ) -> None:
        offers("node", "problem", problem, ("init", "loss", "check", "metrics"), "come from fm.models")
        if not isinstance(name, str) or not 1 <= len(name) <= 64 or not name.isprintable():
            raise ConfigError(f"node: name must have 1 to 64 printable characters, got {quote(name)}")
        if algorithm is None and aggregation is not None:
            raise ConfigError(f"node: aggregation goes with an algorithm, got {quote(aggregation)} and none")
        prepare()
        self._problem, self._name, self._columns = problem, name, _columns(data)
        self._where = Local(devices=1) if backend == "local" else chosen("node", backend, None)
        self._given = dict(own or {})
        self._own = None if algorithm is None else (algorithm, aggregation)
        self._data = identity.digest({field: identity.digest_arrays([a]) for field, a in self._columns.items()})
        self._state = None if state is None else Path(state)
        self._secure = check_secure("node", secure)
        self._shelves: dict[str, Shelf] = {}  # by run
        self._disclosures: dict[str, Disclosures] = {}  # by run
        self._session: Session | None = None

    def answer(self, request: bytes) -> bytes:
        """The reply to a request. What goes wrong becomes a refusal in one line, which tells nothing of the data."""
        nonce = ""
        try:
            frame = unpack(request, _UNKNOWN if self._session is None else self._session.most_payload)
            message = opened(frame, next((kind for kind in (Hello, Mask) if is_a(frame, kind)), Ask))
            nonce = message.nonce
            return self._reply(message, frame.payload)
        except Refused as error:
            return refusal(nonce, error.reason.label, error)
        except MaskError as error:
            return refusal(nonce, Reason.MASKS.label, error)
        except FrameError as error:
            return refusal(nonce, Reason.STRUCTURE.label, error)
        except ConfigError as error:  # in what the server has sent
            return refusal(nonce, Reason.FAILED.label, error)
        except Exception as error:  # a request must never end a node, and a message might quote the client's data
            warnings.warning("client %r could not answer: %s: %s", self._name, type(error).__name__, error)
            reason = Reason.DATA if isinstance(error, DataError) else Reason.FAILED
            return refusal(nonce, reason.label, f"a {type(error).__name__}, of which the node's own log says more")

    def _reply(self, message: Hello | Mask | Ask, payload: bytes) -> bytes:
        if isinstance(message, Hello):
            return packed(self._greet(message))
        session = self._in(message.run)
        return session.masked(message, payload) if isinstance(message, Mask) else session.answer(message, payload)

    def _in(self, run: str) -> Session:
        """The client's part in a run that it has agreed on."""
        if self._session is None or run != self._session.run:
            raise Refused(Reason.FAILED, f"this node does not know run {run}; say hello first")
        return self._session

    def _greet(self, hello: Hello) -> Profile:
        """Agree on a run, or refuse it; the operator of the node then learns why."""
        try:
            return self._agreed(hello)
        except (Refused, ConfigError) as error:
            warnings.warning("client %r takes no part in run %s: %s", self._name, hello.run, error)
            raise

    def _agreed(self, hello: Hello) -> Profile:
        if hello.version != exact():
            words = f"this node has version {exact()} of fedmime, the server {hello.version}"
            raise Refused(Reason.FAILED, f"{words}; they must be the same")
        terms = self._terms(hello)
        if terms.configuration != hello.configuration:
            words = "the algorithm, aggregation, masks, problem or precision of this node is not the server's"
            raise Refused(Reason.FAILED, f"{words}; start both from one configuration")
        if hello.run not in self._shelves:
            place = None if self._state is None else self._state / hello.run
            self._shelves[hello.run] = MemoryShelf() if place is None else DiskShelf(place)
            self._disclosures[hello.run] = Disclosures(None if place is None else place / "revealed")
        kept = self._shelves[hello.run], self._disclosures[hello.run]
        self._session = Session(hello, terms, self._columns, self._name, self._where, *kept)
        own = self._name, len(first_column(self._columns)), self._data
        return Profile(hello.run, hello.nonce, *own, hello.version, JAX, terms.configuration, terms.parameters)

    def _terms(self, hello: Hello) -> Terms:
        """What this node would compute in the server's run."""
        secure = agreed(self._secure, of_fields(hello.secure))
        if self._own is not None:
            return terms_of(*self._own, self._problem, secure=secure)
        if hello.setting is None:
            raise Refused(Reason.FAILED, "this node brings no algorithm, and the server names none")
        return terms_of(*built(hello.setting, self._given), self._problem, secure=secure)


def _columns(data: Any) -> dict[str, np.ndarray]:
    """A client's examples, by field in alphabetical order."""
    made("node", "data", data, Mapping, "be a dict of arrays")
    columns = {str(field): np.asarray(data[field]) for field in sorted(data)}
    lengths = {field: len(column) if column.ndim else 0 for field, column in columns.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise DataError(f"node: fields of data must have one number of examples, and at least one, got {lengths}")
    if ragged := [field for field, column in columns.items() if column.dtype == object]:
        raise DataError(f"node: field {ragged[0]!r} must hold examples of one length, got ragged ones; pad them")
    return columns
