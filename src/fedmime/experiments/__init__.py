"""Tasks, settings and the paper's experiments: where data, models and engine meet."""
