"""Kernels in C for operations that XLA runs slowly on a CPU.

These are the products of dense layers on few examples, convolutions, the recurrence of the LSTM, cross-entropy and row
gathers. The sources are compiled for the CPU at hand when a kernel is first needed (`build`), and the library is kept
in the user's cache (`cache`). `ops` names every operation once, with its JAX definition and, where there is one, its
kernel. Nothing else in the package knows that kernels exist, except `fedmime.compilation`, which starts to load them.
"""
