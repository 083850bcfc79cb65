"""The client store at Stack Overflow's size: how long opening takes, and reading the clients of a round.

    python benchmarks/data.py [--clients 342477] [--examples 13000000] [--keep DIRECTORY]

The store is generated with the shapes of prepared Stack Overflow data (two int32 sequences of 20 an example) and
heavy-tailed client sizes. Targets: open in under 50 ms, a cohort of 50 assembled in under 20 ms once warm.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from fedmime.algorithms import fedavg
from fedmime.data import Population, from_store, tokens
from fedmime.data.population import describe
from fedmime.engine.sampling import Schedule
from fedmime.randomness import generator

CLIENTS, EXAMPLES, LENGTH, VOCABULARY, COHORT = 342_477, 13_000_000, 20, 10_000, 50
SMALL = 2_000  # clients of the run that the large one is compared with
TARGETS = {"open_ms": 50.0, "cohort_warm_ms": 20.0, "run_rss_ratio": 1.3}


def population(clients: int = CLIENTS, examples: int = EXAMPLES, seed: int = 0) -> Population:
    """Clients whose sentences are slices of one pool, so that generating them costs next to nothing."""
    rng = generator(seed)
    shares = rng.lognormal(0, 1.3, clients)
    sizes = np.minimum(1 + np.floor(shares / shares.sum() * examples), 1000).astype(np.int64)
    while (missing := examples - int(sizes.sum())) > 0:  # what the cap took, given to others
        np.add.at(sizes, rng.choice(np.flatnonzero(sizes < 900), min(missing, clients // 2), replace=False), 1)
    pool = rng.integers(1, VOCABULARY + 1, (100_000, LENGTH + 1), np.int32)
    columns = tokens.next_token(pool)
    begins = rng.integers(0, len(pool) - 1000, clients)
    return Population(
        "stackoverflow-shaped",
        [f"{client:08d}" for client in range(clients)],
        sizes,
        tokens.fields(LENGTH),
        lambda i: {name: column[begins[i] : begins[i] + sizes[i]] for name, column in columns.items()},
        identity=describe("stackoverflow-shaped", clients, examples, seed),
    )


def measure(directory: Path, clients: int = CLIENTS, examples: int = EXAMPLES) -> dict[str, float]:
    """Write the store, then time opening it and assembling cohorts from it."""
    path = directory / "store"
    made = population(clients, examples)
    result = {"clients": float(clients), "examples": float(made.sizes.sum())}
    result["write_s"] = timed(lambda: made.save(path))[0]
    result["bytes"] = float(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    before = peak_megabytes()
    result["first_open_ms"] = 1000 * timed(lambda: from_store(path))[0]
    result["open_ms"] = 1000 * median(timed(lambda: from_store(path))[0] for _ in range(20))
    opened = from_store(path)
    schedule = Schedule(COHORT, 10, 1, None, 1, "examples")

    def assemble(population: Population, t: int) -> object:
        cohort = schedule.cohort(fedavg(0.1), population, t)
        return [(cohort.source.examples(place), cohort.source.batches(place)) for place in range(COHORT)]

    cohorts = range(30)
    result["cohort_first_ms"] = 1000 * median(timed(lambda c=c: assemble(opened, c))[0] for c in cohorts)
    result["cohort_warm_ms"] = 1000 * median(timed(lambda c=c: assemble(opened, c))[0] for c in cohorts)
    result["cohort_warm_worst_ms"] = 1000 * max(timed(lambda c=c: assemble(opened, c))[0] for c in cohorts)
    ids = [opened.ids[int(c)] for c in generator(1).integers(0, len(opened), COHORT)]
    result["by_id_us"] = 1e6 * timed(lambda: [opened.client(client) for client in ids])[0] / len(ids)
    result["rss_growth_mb"] = peak_megabytes() - before
    small = directory / "small"
    population(SMALL, SMALL * examples // clients).save(small)
    result["run_rss_mb"], result["run_rss_small_mb"] = run_megabytes(path), run_megabytes(small)
    result["run_rss_ratio"] = result["run_rss_mb"] / result["run_rss_small_mb"]
    return result


def run_megabytes(store: Path) -> float:
    """Peak RSS of twenty rounds on a store, in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.store_run", str(store)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True, timeout=600).stdout)


def timed(action: Callable[[], object]) -> tuple[float, object]:
    """Seconds that an action took, and what it gave."""
    start = time.perf_counter()
    value = action()
    return time.perf_counter() - start, value


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> dict[str, float]:
    """Run, print a line per figure, and say whether the targets were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    parser.add_argument("--keep", type=Path, help="write the store here and leave it, for other benchmarks")
    args = parser.parse_args()
    directory = args.keep or Path(tempfile.mkdtemp(prefix="fedmime-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        result = measure(directory, args.clients, args.examples)
    finally:
        if args.keep is None:
            shutil.rmtree(directory)
    for name, value in result.items():
        target = (
            f"  (target < {TARGETS[name]:g}: {'met' if value < TARGETS[name] else 'MISSED'})" if name in TARGETS else ""
        )
        print(f"{name:22s} {value:16,.3f}{target}")
    return result


if __name__ == "__main__":
    main()
