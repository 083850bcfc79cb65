"""`python -m benchmarks`: measure, print, and save under `benchmarks/results/`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import (
    comparison,
    data_section,
    goals,
    report,
    roofline,
    scaling,
    simulated,
    sweep_section,
    sweep_workers,
)
from benchmarks.shapes import MODELS
from benchmarks.tables import all_tables

MEASURED: dict[str, Callable[[Path, bool, Callable[[str], None]], dict[str, Any]]] = {
    "simulate": simulated.run,
    "peers": comparison.run,
    "roofline": roofline.run,
    "scaling": scaling.run,
    "data": data_section.run,
    "sweep": sweep_section.run,
    "workers": sweep_workers.run,
}
SECTIONS = (*MEASURED, "goals")
WIDTH = 150  # of tables that do not go to a terminal


def arguments(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer models and repeats: under five minutes on two cores"
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="of the peers section (default: all)")
    default = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=default, help="where results go (default: benchmarks/results)")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Measure the sections asked for; goals are held against everything that was ever measured into this directory."""
    asked = arguments(words)
    out, console = asked.out.resolve(), Console(width=None if sys.stdout.isatty() else WIDTH)
    chosen = asked.only or SECTIONS
    results = report.load(out)
    results["machine"] = machine()
    for name in [name for name in MEASURED if name in chosen]:
        console.rule(name)
        start, used = time.perf_counter(), os.times()
        run, say = MEASURED[name], lambda text: console.print(text, highlight=False, markup=False)
        if name == "peers":
            results[name] = comparison.run(out, asked.quick, say, asked.models, results.get(name))
        else:
            results[name] = run(out, asked.quick, say)
        results[name] |= {"quick": asked.quick, "seconds": time.perf_counter() - start, "cpu": cpu_since(used)}
        finish(out, results)
    finish(out, results)
    report.show(console, all_tables({k: v for k, v in results.items() if k in (*chosen, "goals")}))
    for name in [name for name in MEASURED if name in chosen]:
        console.print(f"{name}: {results[name]['seconds']:.0f} s, CPU {results[name]['cpu']:.0f} s", highlight=False)
    console.print(f"saved: {out / report.RESULTS}, {report.REPORT}, {report.CHART}", highlight=False)
    return 0


def cpu_since(before: os.times_result) -> float:
    """CPU seconds of this process and of those it waited for."""
    return sum(os.times()[:4]) - sum(before[:4])


def finish(out: Path, results: dict[str, Any]) -> None:
    """Hold the goals against the results and save everything, after every section: an interrupted run keeps its own."""
    results["goals"] = goals.run(results)
    report.save(out, results, all_tables(results))
    if results.get("peers", {}).get("models"):
        from benchmarks.chart import draw

        draw(results["peers"], out / report.CHART)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "jax": version("jax"),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
