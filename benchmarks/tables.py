"""The tables of every section, made from its results."""

from __future__ import annotations

from typing import Any

from benchmarks import cluster_tables
from benchmarks.figures import ratio, value
from benchmarks.report import Table

Results = dict[str, Any]


def all_tables(results: Results) -> list[Table]:
    """The tables of the sections that were measured, in the order they are read."""
    makers = {
        "simulate": simulate,
        "peers": peers,
        "goals": goals,
        "roofline": roofline,
        "scaling": scaling,
        "data": data,
        "sweep": sweep,
        "workers": processes,
        "cluster": cluster_tables.tables,
    }
    return [table for name, make in makers.items() if name in results for table in make(results[name])]


def simulate(section: Results) -> list[Table]:
    """`simulate` with fresh cohorts, and start-up, against the commit before."""
    title = "simulate with a fresh cohort every round (scaled to 320 steps), and start-up"
    if "absent" in section:
        return [Table(title, ["figure", "value"], [["absent", section["absent"]]])]
    figures = [[row["name"], row["unit"], number(row["ours"]), number(row["before"])] for row in section["rows"]]
    rows = [[*cells, f"{row['ratio']:.2f}"] for cells, row in zip(figures, section["rows"], strict=True)]
    return [Table(title, ["what", "unit", "fedmime", f"at {section['before']}", "ratio"], rows)]


def peers(section: Results) -> list[Table]:
    """An overview, then each model's cases and entrants."""
    tables = [_overview(section, "FedAvg"), _overview(section, "Mime")]
    for model, measured in section["models"].items():
        work = measured["work"]
        size = f"{work['clients']} clients, {work['examples']} examples, {work['steps']} local steps"
        tables += [_cases(section, model, f"{model}: {size}"), _entrants(section, model)]
    return tables


def goals(section: Results) -> list[Table]:
    """One row a goal."""
    rows = [
        [
            goal["name"],
            f"{'at least' if goal['at_least'] else 'at most'} {goal['limit']:g}",
            *(number(goal["figures"].get(unit)) for unit in ("cpu", "wall", "number")),
            number(goal["beside"]),
            goal["verdict"],
        ]
        for goal in section["goals"]
    ]
    title = f"Goals: {section['reached']} of {len(rows)} reached"
    return [Table(title, ["goal", "limit", "CPU", "wall", "number", "two processes", "verdict"], rows)]


def roofline(section: Results) -> list[Table]:
    """What a step costs beside what it must cost."""
    rows = []
    for model, row in section["models"].items():
        if "absent" in row:
            rows.append([model, *["–"] * 8, row["absent"]])
            continue
        figures = [row["step"], row["ideal"], row["products"], row["update"]]
        rows.append(
            [
                model,
                f"{row['flops'] / 1e6:.2f}",
                *(f"{1e6 * seconds:.0f}" for seconds in figures),
                f"{row['of_peak']:.0%}",
                f"{row['of_limit']:.0%}",
                f"{1e3 * row['overhead']:.1f}",
                row["bound"],
            ]
        )
    header = ["model", "MFLOP", "step µs", "at peak µs", "at shapes µs", "update µs", "of peak", "of limit"]
    peak, bandwidth = section["peak"] / 1e9, section["bandwidth"] / 1e9
    note = (
        f"One core: {peak:.0f} GFLOP/s on 1024 x 1024 float32 products, {bandwidth:.1f} GB/s on a triad of 64 MB "
        f"arrays; all {len(section['together'])} cores at once {sum(section['together']) / 1e9:.0f} GFLOP/s. "
        "'At shapes': the step's own products alone, in a loop. 'Of limit': those and the update of y over "
        "the step. A round costs its steps and the last column but one besides."
    )
    return [
        Table("Roofline of a local step of FedAvg, batch 10, one core", [*header, "round ms", "bound by"], rows, note)
    ]


def scaling(section: Results) -> list[Table]:
    """One table; the first column says what is varied."""
    rows = []
    for row in section["rows"]:
        settings = [row["group"], f"{row['model']}{', Mime' if row['mime'] else ''}", str(row["clients"])]
        settings += [f"{row['population']:,}", str(row["epochs"]), str(row["devices"] or "all")]
        if "absent" in row:
            rows.append([*settings, *["–"] * 4, row["absent"]])
        else:
            figures = [milliseconds(row["wall"]), milliseconds(row["cpu"]), milliseconds(row["wall"] / row["clients"])]
            rows.append([*settings, *figures, megabytes(row["memory"]), str(row["recompiled"])])
    header = ["varied", "run", "clients", "population", "epochs", "devices", "wall ms", "CPU ms", "wall ms a client"]
    note = "fm.simulate on generated clients, each row a fresh process; medians of the rounds after the second."
    return [Table("Scaling", [*header, "peak MB", "recompiled"], rows, note)]


def data(section: Results) -> list[Table]:
    """The figures of `benchmarks/data.py`."""
    if "absent" in section:
        return [Table("Client store", ["figure", "value"], [["absent", section["absent"]]])]
    rows = [[row["name"], f"{row['value']:,.3f}", row["remark"]] for row in section["rows"]]
    return [Table("Client store", ["figure", "value", "remark"], rows)]


def sweep(section: Results) -> list[Table]:
    """What nine rates cost in single runs."""
    if "absent" in section:
        return [Table("Sweep of nine rates", ["figure", "value"], [["absent", section["absent"]]])]
    rows = [
        [
            row["task"],
            f"{row['single']:.1f}",
            f"{row['whole']:.2f}",
            f"{row['halved']:.2f}",
            f"{row['apart']:.0e}",
            f"{row['near']} of {len(row['lost'])}",
            f"{100 * max(row['lost']):.2f}",
        ]
        for row in section["rows"]
    ]
    header = [
        "task",
        "one run, CPU s",
        "whole grid, runs",
        "halving, runs",
        "largest difference",
        "seeds near the best",
    ]
    note = (
        "CPU seconds in one process, compilation included. Difference: accuracy of a point from a separate run. Near: "
        "halving's choice is within 0.5 points of the whole grid's best; the last column is the most it lost."
    )
    return [Table("Sweep of nine rates", [*header, "most lost, points"], rows, note)]


def processes(section: Results) -> list[Table]:
    """A sweep in one process and in two."""
    row = [f"{section['one']:.1f}", f"{section['two']:.1f}", f"{section['ratio']:.2f}", f"{section['apart']:.0e}"]
    header = ["task", "--workers 1, s", "--workers 2, s", "ratio", "largest difference"]
    note = "Wall seconds of `fedmime sweep --light`, start-up included. Difference: of a point's final accuracy."
    return [Table(f"Nine rates, {section['rounds']} rounds, in processes", header, [[section["task"], *row]], note)]


def _overview(section: Results, case: str) -> Table:
    """CPU seconds a round, entrants down and models across."""
    models = list(section["models"])
    entrants = dict.fromkeys(e for model in section["models"].values() for e in model["entrants"])
    rows = []
    for entrant in entrants:
        beside = f"{case} beside Flower" if entrant == "flower" else case
        cells = []
        for model in models:
            cpu, wall = (value(section, model, beside, entrant, figure) for figure in ("cpu", "wall"))
            cells.append("–" if cpu is None or wall is None else f"{number(cpu)} / {number(wall)}")
        if any(cell != "–" for cell in cells):
            rows.append([entrant, *cells])
    return Table(f"{case}: CPU seconds / wall seconds a round", ["", *models], rows)


def _cases(section: Results, model: str, title: str) -> Table:
    steps = section["models"][model]["work"]["steps"]
    rows = []
    for name, case in section["models"][model]["cases"].items():
        ours = {figure: value(section, model, name, "fedmime", figure) for figure in ("cpu", "wall")}
        for entrant, samples in case["results"].items():
            if "absent" in samples:
                rows.append([name, entrant, *["–"] * 5, samples["absent"]])
                continue
            cpu, wall = (value(section, model, name, entrant, figure) for figure in ("cpu", "wall"))
            per_step = ratio(cpu, steps * case["epochs"])
            times = [ratio(cpu, ours["cpu"]), ratio(wall, ours["wall"])] if entrant != "fedmime" else [None, None]
            agreement = case.get("agreement", {}).get(entrant)
            rows.append(
                [
                    name,
                    entrant,
                    milliseconds(cpu),
                    milliseconds(wall),
                    milliseconds(per_step),
                    *(number(t) for t in times),
                    f"{agreement['relative']:.0e}, {agreement['largest']:.0e}" if agreement else "–",
                ]
            )
    header = ["case", "entrant", "CPU ms", "wall ms", "CPU ms a step", "CPU ×", "wall ×", "agreement"]
    note = "Medians. ×: times fedmime's. Agreement with fedmime's model: relative distance, largest difference."
    return Table(title, header, rows, note)


def _entrants(section: Results, model: str) -> Table:
    rows = []
    for name, entrant in section["models"][model]["entrants"].items():
        versions = section["environments"].get(name, {}).get("versions", "this project")
        if "absent" in entrant:
            rows.append([name, versions, "absent", entrant["absent"]])
        else:
            rows.append([name, versions, f"{entrant['startup']:.1f}", megabytes(entrant["memory"])])
    note = "Start-up: from launch to the end of the first round. Memory: peak resident, over all its processes."
    return Table(f"{model}: start-up and memory", ["entrant", "versions", "start-up s", "peak MB"], rows, note)


def number(figure: float | None) -> str:
    """Three significant digits."""
    if figure is None:
        return "–"
    return f"{figure:.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds."""
    return "–" if seconds is None else number(1e3 * seconds)


def megabytes(size: float) -> str:
    """Bytes as megabytes."""
    return f"{size / 1e6:.0f}"
