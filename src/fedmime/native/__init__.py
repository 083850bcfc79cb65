"""Kernels in C for what XLA runs slowly on a CPU: convolutions, two products of dense layers, the LSTM's recurrence,
passes over arrays as large as a model, rows of tables.

They are compiled for the machine at hand when they are first needed, and kept in the user's cache. Without a C
compiler, on other devices, for other numbers than float32, or with `FEDMIME_NATIVE=0`, layers run on XLA alone.
"""

from fedmime.native.calls import (
    add_outer,
    adds_outer,
    choose,
    convolve,
    convolves,
    correlates,
    dot,
    inner_products,
    kernel_gradient,
    kernel_gradients,
    lstm_backward,
    lstm_forward,
    multiplies,
    outer_sum,
    settled,
    squared_distance,
    sums,
    take,
    takes,
    unfilled,
    unrolls,
    unrolls_back,
    usable,
    weighted_rows,
    weighted_sum,
)
from fedmime.native.library import status

__all__ = [
    "add_outer",
    "adds_outer",
    "choose",
    "convolve",
    "convolves",
    "correlates",
    "dot",
    "inner_products",
    "kernel_gradient",
    "kernel_gradients",
    "lstm_backward",
    "lstm_forward",
    "multiplies",
    "outer_sum",
    "settled",
    "squared_distance",
    "status",
    "sums",
    "take",
    "takes",
    "unfilled",
    "unrolls",
    "unrolls_back",
    "usable",
    "weighted_rows",
    "weighted_sum",
]
