"""Low rank: a matrix is sent as the product of two thin ones."""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedmime.aggregation.encoder import Encoded, Encoder, Sender, Shapes
from fedmime.aggregation.wire import encodable
from fedmime.hyperparameters import recipe, static
from fedmime.validation import count


@recipe
class LowRank(Encoder):
    """Matrices of low rank as a recipe; `low_rank` explains its number."""

    rank: int = static()
    unbiased: ClassVar[bool] = False

    def encode(self, values: list[jax.Array], sender: Sender) -> Encoded:
        """P [rows, rank] and Q [columns, rank] in place of each array that is seen as a matrix."""
        sent = []
        for value, key in zip(values, jax.random.split(sender.key, len(values)), strict=True):
            sent += self._factors(value, key) if self._saves(value) else [value]
        return Encoded(sent)

    def decode(self, encoded: Encoded, like: Shapes, sender: Sender) -> list[jax.Array]:
        sent = iter(encoded.values)
        return [
            (next(sent) @ next(sent).T).reshape(shape.shape) if self._saves(shape) else next(sent) for shape in like
        ]

    def _saves(self, value: jax.Array | jax.ShapeDtypeStruct) -> bool:
        """Whether the factors of an array have fewer numbers than the array; vectors have no factors."""
        if not encodable(value) or len(value.shape) < 2:
            return False
        rows, columns = _sides(value)
        return self.rank * (rows + columns) < rows * columns

    def _factors(self, value: jax.Array, key: jax.Array) -> list[jax.Array]:
        """P and Q, where P spans what one subspace iteration from a random sketch finds of the matrix's columns."""
        matrix = value.reshape(_sides(value)).astype(jnp.promote_types(value.dtype, jnp.float32))
        sketch = jax.random.normal(key, (matrix.shape[1], self.rank), matrix.dtype)
        start, _ = jnp.linalg.qr(matrix @ sketch)
        P, _ = jnp.linalg.qr(matrix @ (matrix.T @ start))
        return [P.astype(value.dtype), (matrix.T @ P).astype(value.dtype)]


def _sides(value: jax.Array | jax.ShapeDtypeStruct) -> tuple[int, int]:
    """Rows and columns of an array seen as a matrix: its last axis, the outputs of a layer, are the columns."""
    return math.prod(value.shape[:-1]), value.shape[-1]


def low_rank(rank: int) -> LowRank:
    r"""Send matrices as products $P Q^\top$ of the given rank.

    $P$ is an orthonormal basis of the columns of $M M^\top M S$, where $S$ is a Gaussian matrix drawn by the message's
    random key, and $Q = M^\top P$. So $P Q^\top$ is the projection of $M$ to the span of $P$: exact if the rank of $M$
    is no larger, else biased, and never longer than $M$. PowerSGD starts from the $Q$ of the step before in place of
    $S$ and leaves $M M^\top$ out; here clients need not remember anything, and from a random start this one iteration
    brings the error from more than twice the least possible close to it.

    Arrays of three or more axes, such as the kernels of convolutions, are seen as matrices with the last axis as
    columns. Vectors, and matrices for which it would not save any bytes, are sent unchanged. What is sent are
    floating-point arrays, which `quantize` may encode further.

    Args:
        rank: of the product, at least 1.

    Reference: Vogels et al., 2019, https://arxiv.org/abs/1905.13727
    """
    return LowRank(count("low_rank", "rank", rank, least=1))
