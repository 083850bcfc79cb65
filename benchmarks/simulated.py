"""`simulate` with a fresh cohort every round, and start-up, of this tree against another one, interleaved.

    python -m benchmarks.simulated --against ../before/src [--models logistic mlp cnn char_lstm] [--repeats 3]
    python -m benchmarks.simulated --against ../before/src --only startup
    python -m benchmarks.simulated --only mechanisms [--models …]

Every measurement is a process of its own; the two trees take turns, and medians of the repeats are printed with their
ratio. Start-up is from `python` to the end of a short run, of the library and of the command line, with an empty cache
of programs and kernels and with a warm one; Python's own bytecode is compiled beforehand, as a package manager does.
CPU seconds include those of the C compiler. The other tree is the `src` folder of any commit, for example of
`git worktree add ../before COMMIT`. `--only mechanisms` compares this tree with itself: the model that
gains most from each kernel and each mechanism, with it and without it. `make bench` runs rounds and start-up first,
against the commit before back ends.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import io
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent.parent / "src"
ROUNDS = {"logistic": 60, "mlp": 40, "cnn": 8, "char_lstm": 8}
MECHANISMS = (  # model, algorithm, what is switched off
    ("logistic", "fedavg", ("take",)),
    ("mlp", "fedavg", ("inner_products",)),
    ("mlp", "fedavg", ("outer_sum", "add_outer")),
    ("mlp", "fedavg", ("lazy",)),
    ("mlp", "mime", ("together",)),
    ("cnn", "fedavg", ("convolve", "kernel_gradient")),
    ("char_lstm", "fedavg", ("lstm_forward", "lstm_backward")),
    ("mlp", "mime", ("factors",)),
    ("char_lstm", "mime", ("cache",)),
    ("char_lstm", "mime", ("first_step",)),
    ("char_lstm", "fedavg", ("half_batches",)),
    ("logistic", "fedavg", ("pool",)),
    ("logistic", "fedavg", ("prefetch",)),
)
FIRST = 2  # rounds that are not counted: they compile
CLIENTS, COHORT, STEPS = 100, 20, 320  # figures are scaled to a round of so many local steps
BEFORE = "f4a7eb3"  # the last commit whose engine was one file of machinery: what the redesign is measured against
README = """
import fedmime as fm
problem = fm.models.logistic(input_shape=(8, 8, 1), classes=10)
population = fm.data.digits(clients=50, alpha=0.1, seed=0)
algorithm = fm.algorithms.mime(fm.optimizers.momentum(beta=0.9), eta=0.3)
fm.simulate(algorithm, problem, population, rounds=30, cohort_size=10, batch_size=10, epochs=2, evaluate_every=10)
"""
COMMAND_LINE = "from fedmime.cli.main import script; script()"
TRAIN = "train --task digits-logistic --algorithm mime --base momentum --eta 0.3 --epochs 2 --rounds 30 --quiet --out"


class Trees(NamedTuple):
    """The `src` folders of this tree and of the other one."""

    ours: Path
    before: Path


def clients(model: str) -> Any:
    """A population with random data of a model's shapes and of sizes as real ones have them."""
    import numpy as np

    import fedmime as fm

    rng = np.random.default_rng(0)
    if model == "char_lstm":
        sizes = np.clip(rng.lognormal(np.log(18), 0.5, CLIENTS), 4, 60).astype(int)
        draw = lambda n: {name: rng.integers(1, 90, (n, 80)).astype(np.int32) for name in ("x", "y")}
    else:
        sizes = np.clip(rng.lognormal(np.log(165), 0.6, CLIENTS), 20, 500).astype(int)
        draw = lambda n: {
            "x": rng.random((n, 28, 28, 1), np.float32),
            "y": rng.integers(0, 62, n).astype(np.int32),
        }
    return fm.data.from_arrays({f"c{i}": draw(n) for i, n in enumerate(sizes)})


def one(model: str, algorithm: str, without: Sequence[str] = ()) -> dict[str, float]:
    """CPU and wall milliseconds of a round, in this process; `without` are kernels whose work XLA does instead."""
    import fedmime as fm

    make = {
        "logistic": fm.models.logistic,
        "mlp": fm.models.mlp,
        "cnn": lambda: fm.models.cnn(dropout=0.0),
        "char_lstm": lambda: fm.models.char_lstm(layers=2),
    }
    problem, population = _switched_off(without, make[model]()), clients(model)
    chosen = {
        "fedavg": fm.algorithms.fedavg(0.01),
        "mime": fm.algorithms.mime(fm.optimizers.momentum(0.9), 0.01),
    }[algorithm]
    marks = []
    fm.simulate(
        chosen, problem, population, ROUNDS[model], COHORT, 10, epochs=1,
        on_round=lambda info, _: marks.append((time.process_time(), time.perf_counter(), info.steps)),
    )  # fmt: skip
    marks = marks[FIRST:]
    steps = sum(mark[2] for mark in marks[1:])
    cpu, wall = (marks[-1][i] - marks[0][i] for i in (0, 1))
    return {"cpu": 1000 * STEPS * cpu / steps, "wall": 1000 * STEPS * wall / steps}


def _switched_off(names: Sequence[str], problem: Any) -> Any:
    """The problem, after kernels and mechanisms of these names were switched off in this process."""
    if not names:
        return problem
    from fedmime.engine.backends.local import backend, client, gradients, pool, programs
    from fedmime.kernels import lazy, ops

    loop = importlib.import_module("fedmime.engine.simulate")
    usable, play, anchor_of = ops.usable, loop.play, loop.anchor_of
    ops.usable = lambda kernel, *arrays: kernel not in names and usable(kernel, *arrays)
    if "lazy" in names:
        client.lazy = gradients.lazy = lambda carry: carry
        ops.adds_outer = lambda *_: False
    if "together" in names:
        lazy._together = lambda added: added
    if "cache" in names:
        backend.CACHE_BYTES = 0
    if "pool" in names:
        pool.MOST_RESIDENT_BYTES = 0
    if "first_step" in names:
        loop.anchor_of = lambda *given: anchor_of(*given)._replace(start=False)
    if "prefetch" in names:
        loop.play = lambda *given, **named: play(*given, **(named | {"meanwhile": None}))
    if "half_batches" in names:
        programs.Lane = lambda *given: gradients.Lane(*given[:-1], False)  # as if there were other lanes
    return dataclasses.replace(problem, factors=None) if "factors" in names else problem


def ran(source: Path, words: list[str], **environment: str) -> tuple[dict[str, float], str]:
    """How long a process with a tree's package takes, in CPU and wall seconds, and what it prints."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = {"PYTHONPATH": f"{source}{os.pathsep}{HERE.parent}"}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], env=kept | path | environment, capture_output=True, text=True, check=True
    )
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu": cpu, "wall": wall}, done.stdout


class Row(NamedTuple):
    """Medians of one figure for this tree and for the other one."""

    name: str
    unit: str
    ours: float
    before: float

    @property
    def ratio(self) -> float:
        return self.ours / self.before

    def __str__(self) -> str:
        own, other = (f"{figure:9.3g} {self.unit:2}" for figure in (self.ours, self.before))
        return f"{self.name:32} {own}  before {other}  ratio {self.ratio:.2f}"


def rounds(trees: Trees, models: Sequence[str], repeats: int) -> Iterator[Row]:
    """Compare the rounds of `simulate`."""
    for model in models:
        for algorithm in ("fedavg", "mime"):
            words = ["-m", "benchmarks.simulated", "--one", model, algorithm]
            found: dict[str, list[Any]] = {name: [] for name in trees._fields}
            for _ in range(repeats):
                for name, source in trees._asdict().items():
                    found[name].append(json.loads(ran(source, words)[1].splitlines()[-1]))
            for kind in ("cpu", "wall"):
                ours, before = (statistics.median(run[kind] for run in found[name]) for name in trees._fields)
                yield Row(f"{algorithm} {model}, {kind}", "ms", ours, before)


def mechanisms(models: Sequence[str], repeats: int) -> Iterator[Row]:
    """Compare rounds with a kernel or a mechanism and without it; "before" is without."""
    for model, algorithm, names in MECHANISMS:
        if model not in models:
            continue
        with_and_without = ([], ["--without", *names])
        taken: list[list[dict[str, float]]] = [[], []]
        for _ in range(repeats):
            for figures, words in zip(taken, with_and_without, strict=True):
                printed = ran(HERE, ["-m", "benchmarks.simulated", "--one", model, algorithm, *words])[1]
                figures.append(json.loads(printed.splitlines()[-1]))
        for kind in ("cpu", "wall"):
            medians = (statistics.median(run[kind] for run in runs) for runs in taken)
            yield Row(f"{', '.join(names)}: {algorithm} {model}, {kind}", "ms", *medians)


def startup(trees: Trees, repeats: int) -> Iterator[Row]:
    """Compare the time from `python` to the end of a short run, with an empty and with a warm cache."""
    times: dict[tuple[str, ...], list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(repeats + 1):
            for program in ("library", "command line"):
                for name, source in trees._asdict().items():
                    own = {"FEDMIME_CACHE": f"{scratch}/{repeat}-{program}-{name}", "PYTHONPYCACHEPREFIX": scratch}
                    for kind in ("empty", "warm"):
                        out = f"{scratch}/{repeat}-{name}-{kind}"
                        words = [README] if program == "library" else [COMMAND_LINE, *TRAIN.split(), out]
                        for unit, taken in ran(source, ["-c", *words], **own)[0].items():
                            if repeat:  # the first one compiles bytecode
                                times.setdefault((program, kind, unit, name), []).append(taken)
    for key in sorted({key[:3] for key in times}, reverse=True):
        ours, before = (statistics.median(times[*key, name]) for name in trees._fields)
        yield Row("{}, {} cache, {}".format(*key), "s", ours, before)


def run(out: Path, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """The section of `make bench`: this tree against the commit before back ends."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = subprocess.run(["git", "archive", BEFORE, "src"], cwd=HERE.parent, capture_output=True, check=False)
        if archive.returncode:
            return {"absent": f"the commit {BEFORE} is not in this clone: {archive.stderr.decode().strip()[:200]}"}
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(scratch, filter="data")
        trees, rows = Trees(HERE, Path(scratch) / "src"), []
        models, repeats = (["logistic", "mlp"], 1) if quick else (list(ROUNDS), 3)
        for row in itertools.chain(rounds(trees, models, repeats), startup(trees, repeats)):
            say(str(row))
            rows.append({**row._asdict(), "ratio": row.ratio})
    return {"before": BEFORE, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--models", nargs="*", default=list(ROUNDS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("rounds", "startup", "mechanisms"))
    parser.add_argument("--one", nargs=2)
    parser.add_argument("--without", nargs="*", default=[])
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(*asked.one, asked.without)))
        return
    if asked.only == "mechanisms":
        for row in mechanisms(asked.models, asked.repeats):
            print(row, flush=True)
        return
    if asked.against is None:
        parser.error("give --against, the src folder of another tree")
    trees = Trees(HERE, asked.against.resolve())
    measured = {"rounds": rounds(trees, asked.models, asked.repeats), "startup": startup(trees, asked.repeats)}
    for row in itertools.chain(*(measured[asked.only],) if asked.only else measured.values()):
        print(row, flush=True)


if __name__ == "__main__":
    main()
