"""Back ends: where the clients of a round run. `backend.py` is the seam, `reference.py` and `local/` are behind it."""
