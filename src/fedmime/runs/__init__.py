"""The records of a run: its directory, checkpoints, history and identity. Nothing here computes a round."""
