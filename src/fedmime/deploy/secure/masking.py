"""The client's part in the masked sums of a run, request by request.

A node hands every `Mask` to its `Masking`, which keeps the exchange that is under way. The node computes what it is
asked for as in any other run; its result leaves the node masked or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedmime.deploy.messages import MOST_CLIENTS, Ask, Mask, Stage, opened
from fedmime.deploy.protocol import MOST_HEADER_BYTES, Frame, FrameError, unpack
from fedmime.deploy.secure import primitives
from fedmime.deploy.secure.client import Member
from fedmime.deploy.secure.disclosures import Disclosures
from fedmime.deploy.secure.fixed_point import Scaled
from fedmime.deploy.secure.options import MaskError, SecureSum
from fedmime.deploy.secure.parts import words_of_parts
from fedmime.deploy.secure.primitives import SEALED_BYTES

MOST_BESIDE = MOST_CLIENTS * SEALED_BYTES + 2 * MOST_HEADER_BYTES
"""The most bytes of a request beside the arrays of an `Ask`."""


class Contribution(NamedTuple):
    """What a client has computed for an exchange, as it is: not clipped, not rounded, not masked."""

    gradients: Sequence[Sequence[np.ndarray]]
    """The arrays of its full gradient at each point."""
    send: Sequence[np.ndarray]
    """Those of its update that are averaged; none where it does not train."""
    add: Sequence[np.ndarray]
    """Those of its update that are summed unweighted."""
    norms: tuple[float, float]
    """C of updates and of gradients."""
    scalars: Sequence[float]
    """Numbers that are summed beside them, such as the loss."""
    random: Sequence[np.random.Generator]
    """For each gradient, then for the update if there is one, what decides its rounding."""


Compute = Callable[[Ask, bytes], Contribution]


class Masking:
    """One node's part in all exchanges of a run.

    Args:
        options: the node's own, whatever the server has.
        disclosures: what was revealed in this run so far.
        compute: what the node makes of an `Ask` and its payload.
    """

    def __init__(
        self, options: SecureSum, disclosures: Disclosures, compute: Callable[[Ask, bytes], Contribution]
    ) -> None:
        primitives.check_installed()
        self._options, self._disclosures, self._compute = options, disclosures, compute
        self._member: Member | None = None
        self._begun: Mask | None = None

    def answer(self, request: Mask, payload: bytes) -> bytes:
        """The payload of the reply to a request.

        Raises:
            MaskError: the request does not belong here, or answering it would reveal too much.
            FrameError: the request for messages holds no sound `Ask`.
        """
        stage, clients = Stage(request.stage), list(request.clients)
        if stage is Stage.KEYS:
            name = f"{request.round} {request.gradients}{' train' * request.train}"
            self._member, self._begun = Member(self._options, request.client, name, self._disclosures), request
            return self._member.keys(clients)
        member = self._current(request)
        if stage is Stage.SHARES:
            return member.shares(clients, payload)
        if stage is Stage.REVEAL:
            return member.reveal(clients)
        sealed = (len(clients) - 1) * SEALED_BYTES
        ask, arrays = _asked(request, payload[sealed:])
        member.receive(clients, payload[:sealed])
        contribution = self._compute(ask, arrays)
        return member.masked(
            words_of_parts(
                messages_of(contribution, request.weights), contribution.scalars, self._options, contribution.random
            )
        )

    def _current(self, request: Mask) -> Member:
        """The exchange that a request belongs to: the last one that was begun."""
        begun = self._begun
        if self._member is None or begun is None:
            raise MaskError("no exchange has been begun")
        same = ("run", "round", "exchange", "client", "gradients", "train", "weights")
        if differing := [name for name in same if getattr(request, name) != getattr(begun, name)]:
            raise MaskError(f"the exchange that is under way has another {differing[0]}")
        return self._member


def messages_of(contribution: Contribution, weights: tuple[float, float]) -> list[Scaled]:
    """The parts of a client's message; `weights` are those of its update and its gradients."""
    (update, gradient), (update_norm, gradient_norm) = weights, contribution.norms
    messages = [Scaled(arrays, [gradient] * len(arrays), gradient_norm) for arrays in contribution.gradients]
    send, add = contribution.send, contribution.add
    if send or add:
        messages.append(Scaled([*send, *add], [update] * len(send) + [1.0] * len(add), update_norm))
    return messages


def _asked(request: Mask, data: bytes) -> tuple[Ask, bytes]:
    """The `Ask` that a request for messages carries, and its payload."""
    frame: Frame = unpack(data, len(data))
    ask = opened(frame, Ask)
    same = ("run", "round", "client", "gradients", "train")
    if differing := [name for name in same if getattr(request, name) != getattr(ask, name)]:
        raise FrameError(f"what is asked for has another {differing[0]} than the exchange")
    return ask, frame.payload
