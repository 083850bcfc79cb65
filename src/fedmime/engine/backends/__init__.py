"""Where a round runs: map over clients, then mean, nothing else."""
