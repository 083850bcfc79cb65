"""What a server and a node say to each other: the fields of every request and reply, and what each field may hold.

    Hello  ->  Profile    once, when a node is first seen: who it is, and whether both sides mean the same run
    Ask    ->  Answer     one exchange of a round: full gradients, training, or both
    Mask   ->  Masked     the same in a secure run: one of four stages, of which the third carries an Ask
    any    ->  Refusal    the node could not do what it was asked for

`packed` turns a message into the bytes of a frame, `opened` reads one back. Whatever a peer may have put into a header,
`opened` returns a message whose fields have the types and lie within the bounds below, or raises `FrameError`. Neither
side needs JAX for it. What a payload holds is not described by the message: receivers know it before it arrives.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from fedmime.deploy.protocol import Frame, FrameError, pack

JAX, AFFINE = DIALECTS = ("jax", "affine")
NOTHING, POINTS, PRIME = GRADIENTS = ("nothing", "points", "prime")
NEVER = -1  # as the round of a kept value: the client was never seen before

_LARGEST = 2**31 - 1  # rounds, clients, steps and examples are int32 on devices
_MOST_ARRAYS = 4096  # in one request
MOST_CLIENTS = 128  # of one masked sum: every client exchanges keys with every other one


class Stage(enum.StrEnum):
    """The stages of a masked sum, in order."""

    KEYS = "keys"
    SHARES = "shares"
    INPUT = "input"
    REVEAL = "reveal"


class Hello(NamedTuple):
    """The server asks a node who it is, and tells it what the run is about."""

    run: str
    """The run's identity, 32 hexadecimal digits; kept values belong to it."""
    nonce: str
    """32 hexadecimal digits that no other request has; the reply repeats them."""
    version: str
    """Of the library, `fedmime.version.exact`: another one may draw other random numbers."""
    seed: int
    """Of mini-batches and of clients' random numbers."""
    batch_size: int | None
    """Examples of a mini-batch; None takes all of them."""
    epochs: int | None
    """Local passes over the data; None where `steps` says how long to train."""
    steps: int | None
    """Local steps, instead of epochs."""
    drift: bool
    """Whether clients measure how far they drift."""
    configuration: str
    """Digest of everything that both sides must agree on."""
    setting: Mapping[str, Any] | None
    """Names and numbers of a resolved `fedmime.experiments.setting.Setting`, for nodes that build the algorithm from
    it; None if nodes bring their own."""
    arrays: Mapping[str, Any] | None = None
    """Type and shape of every array of the model by its place, in the order in which they travel, such as
    `{"dense0.w": "float32[62, 784]"}`: affine nodes pair them with their own."""
    secure: Mapping[str, Any] | None = None
    """The numbers of a `fedmime.deploy.secure.options.SecureSum`; None where messages are not masked."""


class Profile(NamedTuple):
    """A node's reply to `Hello`."""

    run: str
    nonce: str
    client: str
    """The client's name, the same whenever its node comes back."""
    examples: int
    """n_i, the number of its examples, which is its weight for the whole run."""
    data: str
    """SHA-256 of its examples. A client whose data has changed is no longer the same one."""
    version: str
    dialect: str
    """`"jax"`, or `"affine"` for a node that takes `Ask.affine`."""
    configuration: str
    """As in `Hello`; an affine node, which has no algorithm to compare, repeats what it was told."""
    parameters: str
    """`parameters_digest` of the names, types and shapes of its model's arrays."""


class Ask(NamedTuple):
    """The server asks one client for full gradients, for training, or for both.

    The payload holds arrays, packed one after another in the order of `arrays`. An array that went to the client
    earlier in the round is not sent again; the node keeps it until a request of another round comes.
    """

    run: str
    round: int
    nonce: str
    client: int
    """The client's position in the population, by which its random numbers are drawn."""
    gradients: str
    """Where full gradients are asked for: `"nothing"`, the algorithm's `"points"`, or those of a `"prime"` round."""
    train: bool
    """Whether to train from the message."""
    pick: int
    """The local step whose iterate the server drew, or -1."""
    kept_from: int
    """The round whose kept value the client starts from, or `NEVER`."""
    since: int
    """No resumed server will ask for values that were superseded before this round."""
    arrays: tuple[tuple[int, int], ...] = ()
    """For each array of the payload its slot (see `fedmime.deploy.layout`) and the number of the random stream by which
    it was encoded, or -1 where it goes as it is."""
    norms: tuple[float, float] | None = None
    """The clipping norms of updates and of gradients, where they adapt from round to round."""
    affine: Mapping[str, Any] | None = None
    """For affine nodes: the numbers of the affine contract; the payload then holds what these say."""


class Answer(NamedTuple):
    """A node's reply to `Ask`. The payload holds the encoded gradients in order, then the encoded update."""

    run: str
    round: int
    nonce: str
    examples: int
    """n_i again; a server refuses any number but the one of the client's profile."""
    steps: int
    """The local steps that were taken; zero where nobody trained."""
    loss: float
    """The sum of the mini-batch losses before each local step."""
    drift: float
    """The sum of ‖y − x‖² over local steps; zero where it was not measured."""
    gradients_unclipped: bool
    """Whether no gradient was clipped."""
    update_unclipped: bool
    """Whether the update was not clipped."""


class Mask(NamedTuple):
    """The server asks one client for its part in a stage of a masked sum; see `fedmime.deploy.secure`.

    The payload is that of the stage. In the stage for messages, the bytes of an `Ask` follow it.
    """

    run: str
    round: int
    nonce: str
    exchange: str
    """32 hexadecimal digits that all stages of one exchange have, and no other exchange has."""
    stage: str
    client: int
    """As in `Ask`; so are the next two."""
    gradients: str
    train: bool
    clients: tuple[int, ...]
    """Who takes part in this stage, by position in the population, in increasing order."""
    weights: tuple[float, float]
    """Of the client's update and its gradients, in [0, 1], as fractions of the largest ones of the cohort."""


class Masked(NamedTuple):
    """A node's reply to `Mask`. The payload is that of the stage; scalars such as the loss are part of the sum."""

    run: str
    round: int
    nonce: str


class Refusal(NamedTuple):
    """A node's reply to what it cannot do."""

    nonce: str
    """Of the request; empty where the request could not be read."""
    reason: str
    """The label of a `fedmime.aggregation.gate.Reason`, such as `"data"`."""
    words: str
    """Why, in one line. Receivers log it and do not act on it."""


Message = Hello | Profile | Ask | Answer | Mask | Masked | Refusal
M = TypeVar("M", bound=Message)


class _Field(NamedTuple):
    """What a field may hold, as a test and in words."""

    accepts: Callable[[Any], bool]
    words: str


def _whole(least: int, most: int = _LARGEST) -> _Field:
    return _Field(lambda v: type(v) is int and least <= v <= most, f"a whole number from {least} to {most}")


def _text(pattern: str, words: str) -> _Field:
    return _Field(lambda v: isinstance(v, str) and re.fullmatch(pattern, v) is not None, words)


def _printable(least: int, most: int) -> _Field:
    words = f"{least} to {most} printable characters"
    return _Field(lambda v: isinstance(v, str) and least <= len(v) <= most and v.isprintable(), words)


def _one_of(*names: str) -> _Field:
    return _Field(lambda v: isinstance(v, str) and v in names, f"one of {', '.join(map(repr, names))}")


def _optional(field: _Field) -> _Field:
    return _Field(lambda v: v is None or field.accepts(v), f"null or {field.words}")


def _list(field: _Field, least: int, most: int, words: str) -> _Field:
    return _Field(lambda v: isinstance(v, list) and least <= len(v) <= most and all(map(field.accepts, v)), words)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


_HEX = _text(r"[0-9a-f]{32}", "32 hexadecimal digits")
_DIGEST = _text(r"[0-9a-f]{64}", "64 hexadecimal digits")
_VERSION = _text(r"[0-9A-Za-z.+_-]{1,64}", "a version")
_FLAG = _Field(lambda v: isinstance(v, bool), "true or false")
_NUMBER = _Field(_is_number, "a finite number")
_OBJECT = _Field(lambda v: isinstance(v, dict), "an object")
_NAME = _printable(1, 64)
_LINE = _printable(0, 500)
_UNIT = _Field(lambda v: _is_number(v) and 0 <= v <= 1, "a number in [0, 1]")
_PLACE = _list(_whole(-1), 2, 2, "a slot and a stream")

_FIELDS: dict[type, dict[str, _Field]] = {
    Hello: {
        "run": _HEX,
        "nonce": _HEX,
        "version": _VERSION,
        "seed": _whole(0, 2**63 - 1),
        "batch_size": _optional(_whole(1)),
        "epochs": _optional(_whole(1)),
        "steps": _optional(_whole(1)),
        "drift": _FLAG,
        "configuration": _DIGEST,
        "setting": _optional(_OBJECT),
        "arrays": _optional(_OBJECT),
        "secure": _optional(_OBJECT),
    },
    Profile: {
        "run": _HEX,
        "nonce": _HEX,
        "client": _NAME,
        "examples": _whole(1),
        "data": _DIGEST,
        "version": _VERSION,
        "dialect": _one_of(*DIALECTS),
        "configuration": _DIGEST,
        "parameters": _DIGEST,
    },
    Ask: {
        "run": _HEX,
        "round": _whole(0),
        "nonce": _HEX,
        "client": _whole(0),
        "gradients": _one_of(*GRADIENTS),
        "train": _FLAG,
        "pick": _whole(-1),
        "kept_from": _whole(NEVER),
        "since": _whole(0),
        "arrays": _list(_PLACE, 0, _MOST_ARRAYS, "a list of slots and streams"),
        "norms": _optional(_list(_NUMBER, 2, 2, "two numbers")),
        "affine": _optional(_OBJECT),
    },
    Answer: {
        "run": _HEX,
        "round": _whole(0),
        "nonce": _HEX,
        "examples": _whole(1),
        "steps": _whole(0),
        "loss": _NUMBER,
        "drift": _NUMBER,
        "gradients_unclipped": _FLAG,
        "update_unclipped": _FLAG,
    },
    Mask: {
        "run": _HEX,
        "round": _whole(0),
        "nonce": _HEX,
        "exchange": _HEX,
        "stage": _one_of(*Stage),
        "client": _whole(0),
        "gradients": _one_of(*GRADIENTS),
        "train": _FLAG,
        "clients": _list(_whole(0), 1, MOST_CLIENTS, f"1 to {MOST_CLIENTS} positions"),
        "weights": _list(_UNIT, 2, 2, "two numbers in [0, 1]"),
    },
    Masked: {"run": _HEX, "round": _whole(0), "nonce": _HEX},
    Refusal: {
        "nonce": _text(r"([0-9a-f]{32})?", "32 hexadecimal digits or nothing"),
        "reason": _text(r"[a-z_]{1,32}", "the label of a reason"),
        "words": _LINE,
    },
}
_KINDS: dict[type, str] = {
    Hello: "hello",
    Profile: "profile",
    Ask: "ask",
    Answer: "answer",
    Mask: "mask",
    Masked: "masked",
    Refusal: "refusal",
}


def packed(message: Message, payload: bytes = b"") -> bytes:
    """The bytes of a message and its payload.

    Raises:
        FrameError: a field of the message is not what receivers accept, for example a loss that is not finite.
    """
    fields = json.loads(json.dumps(message._asdict()))  # tuples become lists, as they arrive
    _check(type(message), fields)
    return pack(Frame(_KINDS[type(message)], fields, payload))


def opened(frame: Frame, kind: type[M]) -> M:
    """The message in a frame that must hold one of this kind.

    Raises:
        FrameError: it is of another kind, or a field is missing, foreign or not what it may hold.
    """
    if frame.kind != _KINDS[kind]:
        raise FrameError(f"it must be of kind {_KINDS[kind]!r}, got {frame.kind[:32]!r}")
    _check(kind, frame.fields)
    return kind(**{name: _tupled(value) for name, value in frame.fields.items()})


def is_a(frame: Frame, kind: type[Message]) -> bool:
    """Whether a frame claims to hold a message of this kind."""
    return frame.kind == _KINDS[kind]


def refusal(nonce: str, reason: str, words: object) -> bytes:
    """The bytes of a refusal. The words may be anything: they become one line of bounded length."""
    line = "".join(c if c.isprintable() else " " for c in str(words)[:500])
    return packed(Refusal(nonce, reason, line))


def parameters_digest(arrays: Mapping[str, str]) -> str:
    """The digest by which both sides see that they mean the same model.

    Args:
        arrays: type and shape of every array by its place in the model, such as `{"dense0.w": "float32[62, 784]"}`.
    """
    return hashlib.sha256(json.dumps(dict(arrays), sort_keys=True).encode()).hexdigest()


def _check(kind: type, fields: Mapping[str, Any]) -> None:
    accepted = _FIELDS[kind]
    if missing := accepted.keys() - fields.keys():
        raise FrameError(f"{_KINDS[kind]}: field {min(missing)!r} is missing")
    if foreign := fields.keys() - accepted.keys():
        raise FrameError(f"{_KINDS[kind]}: field {min(foreign)[:32]!r} is unknown")
    for name, field in accepted.items():
        if not field.accepts(fields[name]):
            raise FrameError(f"{_KINDS[kind]}: {name} must be {field.words}, got {str(fields[name])[:80]!r}")
    if kind is Hello and (fields["epochs"] is None) == (fields["steps"] is None):
        raise FrameError(f"hello: it must say epochs or steps, got {fields['epochs']} and {fields['steps']}")


def _tupled(value: Any) -> Any:
    """Lists, as JSON has them, as the tuples that messages hold; what is inside objects stays as it is."""
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
