"""Back ends: where the clients of a round run.

`backend.py` is the interface, `specification.py` says how one is chosen; `reference.py`, `local/` and `ray/` implement
it.
"""
