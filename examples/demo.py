"""FedAvg, MimeLite and Mime with momentum on scikit-learn's digits, spread over heterogeneous clients."""

import time

import numpy as np
from rich.console import Console
from rich.table import Table

import fedmime as fm

ROUNDS, COHORT, TARGET = 60, 10, 0.85

population = fm.data.digits(clients=50, alpha=0.1, seed=0)
problem = fm.models.logistic(input_shape=(8, 8, 1), classes=10)
momentum = fm.optimizers.momentum(beta=0.9)
methods = {
    "FedAvg": fm.algorithms.fedavg(eta=0.1, server=momentum),
    "MimeLite": fm.algorithms.mime_lite(momentum, eta=0.1),
    "Mime": fm.algorithms.mime(momentum, eta=0.1),
}

console = Console()
table = Table(
    "method", "test accuracy", f"rounds to {TARGET:.0%}", "MB sent", "seconds", title=f"digits, {ROUNDS} rounds"
)
for name, algorithm in methods.items():
    start = time.monotonic()
    with console.status(f"{name} …") as status:

        def show(info: fm.Info, measured, name: str = name) -> None:
            if measured:
                status.update(f"{name}: round {info.round + 1}, test accuracy {measured['test_accuracy']:.3f}")

        run = fm.simulate(
            algorithm, problem, population, ROUNDS, COHORT, epochs=5, seed=0, evaluate_every=1, on_round=show
        )
    accuracy = run.history["test_accuracy"]
    reached = np.flatnonzero(accuracy >= TARGET)
    sent = fm.communication.cost(algorithm, run.params).bytes * COHORT * ROUNDS / 1e6
    rounds = str(reached[0] + 1) if len(reached) else f"> {ROUNDS}"
    table.add_row(name, f"{accuracy[-1]:.3f}", rounds, f"{sent:.2f}", f"{time.monotonic() - start:.1f}")
console.print(table)
