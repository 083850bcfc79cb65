"""Independent float64 NumPy reference of the optimizers and algorithms, to compare the library with.

Written from the specification alone and for reading, not speed: one Python loop per client and per mini-batch.
"""
