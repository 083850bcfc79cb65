"""The tables of `benchmarks.cluster`: what was measured, the constants, and what the model makes of them."""

from __future__ import annotations

from typing import Any

from benchmarks.cluster_constants import constants_of, models_of
from benchmarks.cluster_model import (
    HERE,
    METHODS,
    Constants,
    Crossover,
    Method,
    Model,
    Network,
    Setup,
    crossover,
    interpolated,
    lengths,
    on_one_machine,
    with_ray,
)
from benchmarks.goals import RAY_CPU, RAY_WALL
from benchmarks.report import Table

Section = dict[str, Any]

ASSUMED = (("1 Gbit/s", 1e9 / 8, 5e-4), ("10 Gbit/s", 10e9 / 8, 1e-4))  # bytes a second and seconds: not measured
SIZES = (0.05e6, 1e6, 10e6, 100e6)
CLIENTS = (10, 100, 1000, 10_000)
SIMULATED = "Simulated from constants of this machine; bandwidths and latencies of networks are assumed."


def tables(section: Section) -> list[Table]:
    """All tables of what there is."""
    found = [measured(section["rounds"])] if "rounds" in section else []
    if "constants" in section:
        found.append(constants(section["constants"]))
        if "rounds" in section:
            found.append(check(section))
        found += [crossovers(section["constants"], method) for method in METHODS]
    return found


def networks(section: Section) -> list[Network]:
    """The assumed networks. Ray's object manager is no faster on them than on the loopback interface, nor sooner."""
    link = section["link"]
    return [Network(name, min(rate, link["bandwidth"]), link["latency"] + late) for name, rate, late in ASSUMED]


def dense(section: Section, parameters: float) -> Model | None:
    """A perceptron of a size; None if no larger one was measured."""
    family = sorted((m for m in models_of(section) if m.name.startswith("dense-")), key=lambda m: m.parameters)
    if not family or not family[0].parameters <= parameters <= family[-1].parameters:
        return None
    return interpolated(family, parameters, f"perceptron, {parameters / 1e6:g} M")


def measured(rows: list[Section]) -> Table:
    """Both back ends, with their ratios held against the bars."""
    cells = []
    for row in rows:
        local, ray = row["local"], row["ray"]
        times = [f"{1e3 * side[figure]:.1f}" for figure in ("wall", "cpu") for side in (local, ray)]
        wall, cpu = (ray[figure] / local[figure] for figure in ("wall", "cpu"))
        bars = [_held(wall, RAY_WALL), _held(cpu, RAY_CPU) if row["algorithm"] == "Mime" else f"{cpu:.2f}"]
        carried = [
            f"{ray[f'{way}_bytes'] / 1e6:.1f} MB in {1e3 * ray[f'{way}_seconds']:.1f} ms" for way in ("put", "get")
        ]
        name, compiled = f"{row['algorithm']}, {row['task']}", f"{ray['compiled']:.0f}"
        cells.append([name, *times[:2], bars[0], *times[2:], bars[1], compiled, *carried, f"{ray['load']:.1f}"])
    header = ["run", "local ms", "Ray ms", "ratio", "local CPU ms", "Ray CPU ms", "ratio", "compiled"]
    note = (
        "A round of fm.simulate on 20 clients, medians. CPU: of all processes. Compiled: programs after the second "
        "round, in all processes. Broadcast and gather: what the driver puts and gets a round, and how long it waits."
    )
    return Table("Ray with two workers on one machine", [*header, "broadcast", "gather", "load"], cells, note)


def _held(ratio: float, limit: float) -> str:
    return f"{ratio:.2f} ({'kept' if ratio <= limit else 'MISSED'}: ≤ {limit:g})"


def constants(section: Section) -> Table:
    """The constants, in units that can be read."""
    c, link = constants_of(section), section["link"]
    calls = section["store"]["calls"]
    rows = [
        ["a round of local, beside clients", f"{1e3 * c.local_round:.2f} ms"],
        ["a client of local, beside its steps", f"{1e6 * c.local_client:.0f} µs"],
        ["the driver's part of a round (round)", f"{1e3 * c.round:.2f} ms"],
        ["a phase with one worker (trip)", f"{1e3 * c.trip:.2f} ms"],
        ["an empty call of Ray, alone / among many", f"{1e3 * calls['trip']:.2f} / {1e3 * calls['call']:.2f} ms"],
        ["the driver, for each worker of a phase (call)", f"{1e3 * c.call:.2f} ms"],
        ["the driver, for each client (client)", f"{1e6 * c.client:.0f} µs"],
        ["a worker, for each client beside its steps", f"{1e6 * c.worker_client:.0f} µs"],
        *([f"{stage}", f"{1e-9 / getattr(c, stage):.2f} GB/s"] for stage in ("put", "get", "give", "fetch", "add")),
        ["to another node through loopback", f"{link['bandwidth'] / 1e9:.2f} GB/s, {1e3 * link['latency']:.1f} ms"],
        ["load of the machine after the measurement", f"{section['load']:.1f}"],
        ["server step of Mime", f"{1e9 * c.server:.2f} ns a parameter"],
    ]
    for model in models_of(section):
        fedavg, mime = (1e3 * model.steps[method.name] for method in METHODS)
        costs = f"step {fedavg:.3g} ms, of Mime {mime:.3g} ms; full gradient {1e6 * model.example:.3g} µs an example"
        rows.append([f"{model.name}, {model.parameters / 1e6:.3g} M parameters", costs])
    return Table("Constants", ["what", "measured"], rows)


def check(section: Section) -> Table:
    """What the model says of the rounds that were measured."""
    known, models = constants_of(section["constants"]), {m.name: m for m in models_of(section["constants"])}
    methods = {method.name: method for method in METHODS}
    rows = []
    for row in section["rounds"]:
        if row["task"] not in models:
            continue
        sizes = lengths(20)
        examples = (sizes * row["local"]["examples"] / sizes.sum()).round().astype(int).tolist()
        setup = Setup(methods[row["algorithm"]], models[row["task"]], examples)
        cells = []
        for name, said in (("local", on_one_machine(setup, known)), ("ray", with_ray(setup, known, 2, HERE))):
            cells += [
                f"{1e3 * said.total:.1f}",
                f"{1e3 * row[name]['wall']:.1f}",
                f"{said.total / row[name]['wall']:.2f}",
            ]
        rows.append([f"{row['algorithm']}, {row['task']}", *cells])
    header = ["round", "local, model ms", "measured", "ratio", "Ray, model ms", "measured", "ratio"]
    return Table("The model against what was measured on one machine", header, rows)


def crossovers(section: Section, method: Method) -> Table:
    """Where Ray beats one machine, by model, number of clients and network."""
    known = constants_of(section)
    chosen = [m for m in models_of(section) if not m.name.startswith("dense-")]
    chosen += [m for size in SIZES if (m := dense(section, size)) is not None]
    rows = [
        [f"{model.name}, {network.name}", *(_cell(_at(method, model, n, known, network)) for n in CLIENTS)]
        for model in chosen
        for network in networks(section)
    ]
    title = f"{method.name}: the fewest workers that beat one machine of two cores, and the best speed-up up to 64"
    return Table(title, ["model and network", *(f"{n:,} clients" for n in CLIENTS)], rows, SIMULATED)


def _at(method: Method, model: Model, clients: int, known: Constants, network: Network) -> Crossover:
    return crossover(Setup(method, model, lengths(clients).tolist()), known, network)


def _cell(found: Crossover) -> str:
    return "never" if found.workers is None else f"{found.workers}; {found.speedup:.1f}× with {found.best}"
