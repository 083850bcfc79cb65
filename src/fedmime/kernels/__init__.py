"""Kernels in C for operations that XLA runs slowly on a CPU.

These are the products of dense layers on few examples, convolutions, the recurrence of the LSTM and row gathers. The
sources are compiled for the CPU at hand when a kernel is first needed (`build`), and the library is kept
in the user's cache (`cache`). `ops` names every operation once, with its JAX definition and, where there is one, its
kernel, and `lazy` lets sums use them. Models and the engine call these two; only `ops` decides whether a kernel runs.
"""
