"""The engine: cohorts, rounds and the loop around them."""
