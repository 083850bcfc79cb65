"""The roofline section: what a local step costs on one core, beside what its matrix products and memory must cost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import Case
from benchmarks.peer import Peer, PeerError, own_cores
from benchmarks.probe import probe
from benchmarks.shapes import MODELS, products, size, step_bytes, step_flops
from benchmarks.work import Work

BATCH = 10
WORK = {"logistic": 1.0, "mlp": 1.0, "cnn": 0.25, "char_lstm": 0.25}  # scale of the clients' sizes
SHORT, LONG = 1, 4  # epochs whose difference is local steps and nothing else


def run(out: Path, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the limits, then every model's steps against them."""
    models = [model for model in MODELS if not (quick and model == "char_lstm")]
    shapes = sorted({(p.m, p.k, p.n) for model in models for p in products(model, BATCH)})
    sizes = [size(model) for model in models]
    say("limits of one core: matrix products and memory")
    stretch = 0.02 if quick else 0.1
    limits = probe("limits", {"products": shapes, "updates": sizes, "stretch": stretch}, own_cores()[:1])
    busy = together()
    peak = max(limits["peak"], *busy)
    seconds = dict(zip(shapes, limits["products"], strict=True))
    updates = dict(zip(models, limits["updates"], strict=True))
    rows = {}
    for model in models:
        say(f"{model}: local steps on one core")
        try:
            step, overhead = step_seconds(model, out, clients=4 if quick else 20, repeats=3 if quick else 7)
        except PeerError as error:
            rows[model] = {"absent": str(error)}
            continue
        rows[model] = account(model, step, seconds, updates[model], peak) | {"overhead": overhead}
    return {"peak": peak, "bandwidth": limits["bandwidth"], "together": busy, "models": rows}


def together() -> list[float]:
    """Large products of every core while all are busy: less than alone where cores share hardware or power."""
    asked = {"products": [], "updates": [], "stretch": 0.2}
    with ThreadPoolExecutor() as pool:
        return [found["peak"] for found in pool.map(lambda core: probe("limits", asked, [core]), own_cores())]


def step_seconds(model: str, out: Path, clients: int, repeats: int) -> tuple[float, float]:
    """CPU seconds of one more local step of FedAvg, and of a round that would have none.

    On one core they are its time, and unlike the clock they do not count what other processes take.
    """
    work = Work(model, clients=clients, scale=WORK[model], full=True)  # short mini-batches may take less
    path = work.write(out / "work" / f"roofline-{model}.npz")
    chosen = [Case(str(e), "fedavg", ("fedmime",), epochs=e, path="simulate") for e in (SHORT, LONG)]
    with Peer("fedmime_", path, out / "logs" / f"roofline-{model}.log", cores=own_cores()[:1]) as peer:
        for case in chosen:
            peer.ask(do="prepare", case=case.request(model))
        times: dict[int, list[float]] = {SHORT: [], LONG: []}
        for _ in range(repeats):
            for case in chosen:
                times[case.epochs].append(peer.ask(do="stretch", case=case.name, seconds=0)["cpu"])
    short, long = median(times[SHORT]), median(times[LONG])
    step = (long - short) / (work.steps(LONG) - work.steps(SHORT))
    return step, short - step * work.steps(SHORT)


def account(
    model: str, step: float, seconds: dict[tuple[int, int, int], float], update: float, peak: float
) -> dict[str, Any]:
    """Where a step's time goes: its products at the speed of their shapes, the update of y, and the rest."""
    shaped = sum(p.times * seconds[p.m, p.k, p.n] for p in products(model, BATCH))
    flops = step_flops(model, BATCH)
    parts = {"matrix products at these shapes": shaped, "memory traffic of the update": update}
    parts["element-wise work, gathers and dispatch"] = max(step - shaped - update, 0.0)
    return {
        "flops": flops,
        "bytes": step_bytes(model),
        "step": step,
        "ideal": flops / peak,
        "products": shaped,
        "update": update,
        "of_peak": flops / peak / step,
        "of_limit": (shaped + update) / step,
        "bound": max(parts, key=lambda part: parts[part]),
    }
