"""Kernels in C for what XLA runs slowly on a CPU: dense layers on few examples, convolutions, the LSTM's recurrence.

They are compiled for the machine at hand when they are first needed, and kept in the user's cache. `ops` names every
operation; nothing else in the package knows that kernels exist.
"""
