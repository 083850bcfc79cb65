r"""The affine rule: all that a client that is not written in JAX has to know of an algorithm and its base optimizer.

While the server's statistics are fixed, a local step of FedAvg, FedProx, FedACG, FedCM, SCAFFOLD, Mime and MimeLite is

$$y \gets y - \eta\,\bigl(\text{offset} + \text{scale} \odot (\nabla f_i(y; \zeta) - [\nabla f_i(x; \zeta)])
+ \mu\,(y - x) - [c_i]\bigr),$$

where the terms in brackets belong to Mime and to SCAFFOLD alone. The server folds everything that is constant during a
round into `offset` and `scale` (`affine.py`), so that one loop serves all of these algorithms. The loop is written for
lists of arrays that know `+ - * **` and `sum()`, those of NumPy and those of PyTorch alike; this module needs neither
JAX nor PyTorch.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from fedmime.deploy.protocol import FrameError
from fedmime.errors import ConfigError

Arrays = list[Any]
_DTYPES = ("float32", "float64")


class Parameter(NamedTuple):
    """One array of a model."""

    name: str
    """Its place in the server's model, such as `dense0.w`."""
    shape: tuple[int, ...]


class Signature(NamedTuple):
    """The arrays of a model in the order in which they travel, all of one type."""

    dtype: str
    """`"float32"` or `"float64"`."""
    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Self:
        """The signature of a model whose arrays are described as in `Hello.arrays`.

        Args:
            arrays: type and shape of every array by its place, such as `{"dense0.w": "float32[62, 784]"}`.

        Raises:
            ConfigError: the types are not all float32 or all float64, or a description is none.
        """
        found = {name: re.fullmatch(r"(\w+)\[((?:\d+, )*\d+)?\]", str(text)) for name, text in arrays.items()}
        for name, match in found.items():
            if match is None:
                words = f"got {arrays[name]!r} for {name!r}"
                raise ConfigError(f"the arrays of a model must read like 'float32[62, 784]', {words}")
        dtypes = {match[1] for match in found.values() if match}
        if len(dtypes) != 1 or not dtypes <= set(_DTYPES):
            words = ", ".join(sorted(dtypes)) or "no arrays"
            raise ConfigError(f"a client without JAX needs a model of float32 or of float64, got {words}")
        shapes = {name: tuple(map(int, re.findall(r"\d+", match[2] or ""))) for name, match in found.items() if match}
        return cls(dtypes.pop(), tuple(map(Parameter, shapes, shapes.values())))

    @property
    def arrays(self) -> dict[str, str]:
        """The description from which `of` makes the signature."""
        return {name: f"{self.dtype}{list(shape)}" for name, shape in self.parameters}

    @property
    def nbytes(self) -> int:
        """Bytes of one such model."""
        return np.dtype(self.dtype).itemsize * sum(math.prod(each.shape) for each in self.parameters)

    def difference(self, other: Signature) -> str | None:
        """The first array whose name or shape is another one in another signature, in words; None if there is none."""
        for ours, theirs in itertools.zip_longest(self.parameters, other.parameters):
            if ours != theirs:
                return f"the server's model has {_words(ours)} where the client's has {_words(theirs)}"
        return None

    def pack(self, *models: Arrays) -> bytes:
        """The bytes of some models, one after another: little-endian numbers, each array row by row."""
        word = np.dtype(self.dtype).newbyteorder("<")
        return b"".join(np.ascontiguousarray(array, word).tobytes() for model in models for array in model)

    def unpack(self, data: bytes, models: int) -> list[Arrays]:
        """Undo `pack` for so many models; `FrameError` if there are more or fewer bytes."""
        if len(data) != models * self.nbytes:
            raise FrameError(f"its payload must have {models * self.nbytes} bytes for {models} models, got {len(data)}")
        word = np.dtype(self.dtype).newbyteorder("<")
        flat = np.frombuffer(data, word).astype(self.dtype).reshape(models, self.nbytes // word.itemsize)
        return [self.split(each) for each in flat]

    def split(self, flat: np.ndarray) -> Arrays:
        """The arrays of a model from all of its numbers in one row."""
        ends = np.cumsum([math.prod(each.shape) for each in self.parameters])
        parts = np.split(flat, ends[:-1])
        return [part.reshape(each.shape) for part, each in zip(parts, self.parameters, strict=True)]


def _words(parameter: Parameter | None) -> str:
    return "nothing" if parameter is None else f"{parameter.name} {list(parameter.shape)}"


_NUMBER, _FLAG = (int, float), (bool,)
_FIELDS = {
    "eta": _NUMBER,
    "mu": _NUMBER,
    "correction": _FLAG,
    "keeps": _FLAG,
    "scale": (*_NUMBER, type(None)),  # None: arrays in the payload
    "offset": _FLAG,  # whether it is in the payload
}


class Trained(NamedTuple):
    """What local steps lead to."""

    moved: Arrays
    """y − x."""
    loss: float
    """The sum over all steps of the mini-batch's mean loss before the step."""
    drift: float
    """The sum over all steps of ‖y − x‖² before the step; zero where it was not measured."""
    added: Arrays | None
    """What SCAFFOLD's client sends beside its movement, cᵢ⁺ − cᵢ."""
    kept: Arrays | None
    """What it keeps, cᵢ⁺."""


class Rule(NamedTuple):
    """The numbers of one round."""

    eta: float
    """η, the clients' rate."""
    mu: float = 0.0
    """μ, the strength of the penalty of FedProx and FedACG."""
    correction: bool = False
    """Whether the gradient of the mini-batch at x is subtracted, as Mime does."""
    keeps: bool = False
    """Whether the client subtracts cᵢ, which it keeps, as SCAFFOLD's do."""
    scale: Any = 1.0
    """What gradients are multiplied by: one number, or arrays like the model."""
    offset: Arrays | None = None
    """What is added to them; None for nothing."""

    @property
    def fields(self) -> dict[str, Any]:
        """The rule as a header has it. Its arrays go into the payload."""
        numbers = {"eta": self.eta, "mu": self.mu, "correction": self.correction, "keeps": self.keeps}
        scale = None if isinstance(self.scale, list) else self.scale
        return {**numbers, "scale": scale, "offset": self.offset is not None}

    @property
    def arrays(self) -> list[Arrays]:
        """What goes into the payload, the offset before the scale."""
        return [part for part in (self.offset, self.scale) if isinstance(part, list)]

    @classmethod
    def read(cls, fields: Any) -> tuple[Self, int]:
        """The rule in a header, without its arrays, and how many of them the payload holds; `FrameError` if it is none.

        `with_arrays` adds them.
        """
        if not isinstance(fields, dict) or fields.keys() != _FIELDS.keys():
            raise FrameError(f"a rule has the fields {', '.join(_FIELDS)}, got {str(fields)[:200]!r}")
        for name, kinds in _FIELDS.items():
            if type(fields[name]) not in kinds:
                raise FrameError(f"{name} of a rule must not be {str(fields[name])[:80]!r}")
        has_scale, has_offset = fields["scale"] is None, fields["offset"]
        rule = cls(**{**fields, "offset": [] if has_offset else None, "scale": [] if has_scale else fields["scale"]})
        return rule, has_scale + has_offset

    def with_arrays(self, arrays: list[Arrays]) -> Rule:
        """The rule with the given arrays in place of its own."""
        left = iter(arrays)
        offset, scale = (next(left) if isinstance(part, list) else part for part in (self.offset, self.scale))
        return self._replace(offset=offset, scale=scale)

    def step(self, y: Arrays, g: Arrays, x: Arrays, c_i: Arrays | None) -> Arrays:
        """The next y, from the gradient at y, or its difference from the one at x if there is a `correction`."""
        scales = self.scale if isinstance(self.scale, list) else [self.scale] * len(g)
        d = [scale * each for scale, each in zip(scales, g, strict=True)]
        if self.offset is not None:
            d = [a + b for a, b in zip(d, self.offset, strict=True)]
        if c_i is not None:
            d = [a - b for a, b in zip(d, c_i, strict=True)]
        if self.mu:
            d = [a + self.mu * b for a, b in zip(d, _minus(y, x), strict=True)]
        return [a - self.eta * b for a, b in zip(y, d, strict=True)]

    def train(
        self,
        x: Arrays,
        steps: int,
        gradient: Callable[[Arrays, int], tuple[float, Arrays]],
        c_i: Arrays | None = None,
        *,
        drift: bool = False,
    ) -> Trained:
        """Take all local steps of a client.

        Args:
            x: the server model.
            steps: K, the number of local steps.
            gradient: `gradient(y, k)` returns mean loss and gradient of the k-th mini-batch at y.
            c_i: what the client keeps, for a rule that `keeps`.
            drift: whether to measure how far the steps lead.
        """
        y, loss, distance = x, 0.0, 0.0
        for k in range(steps):
            if drift:
                distance += sum(float((each**2).sum()) for each in _minus(y, x))
            mean, g = gradient(y, k)
            loss += mean
            if self.correction:
                g = _minus(g, g if y is x else gradient(x, k)[1])
            y = self.step(y, g, x, c_i)
        moved = _minus(y, x)
        if c_i is None:
            return Trained(moved, loss, distance, None, None)
        kept = [a - each / (steps * self.eta) for a, each in zip(c_i, moved, strict=True)]
        if self.offset is not None:  # c, the mean of all clients' c_i
            kept = _minus(kept, self.offset)
        return Trained(moved, loss, distance, _minus(kept, c_i), kept)


def _minus(one: Arrays, other: Arrays) -> Arrays:
    return [a - b for a, b in zip(one, other, strict=True)]
