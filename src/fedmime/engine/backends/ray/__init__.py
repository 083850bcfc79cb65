"""The back end on Ray: clients run in worker processes, on this machine or on those of a private cluster.

`driver.py` is the half that the round talks to, `worker.py` the half in the worker processes. `parts.py` splits a
cohort and adds answers up, `dispatch.py` says who computes what and collects answers, `crew.py` starts workers and
replaces lost ones, after `handshake.py` has compared them with the driver; `cluster.py` starts Ray or joins one.
"""
