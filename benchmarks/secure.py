"""`python -m benchmarks.secure`: bytes and CPU of one masked sum, for groups of several sizes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedmime.deploy.messages import Stage
from fedmime.deploy.secure.client import Member
from fedmime.deploy.secure.disclosures import Disclosures
from fedmime.deploy.secure.fixed_point import Layout, Scaled, levels_of, words_of
from fedmime.deploy.secure.options import SecureSum
from fedmime.deploy.secure.server import Exchange, Request


def main() -> None:
    """Print one row for each size of a group."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secure", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 20, 50])
    parser.add_argument("--entries", type=int, default=272_110, help="weights of the model (default: an MLP's)")
    parser.add_argument("--bits", type=int, default=SecureSum.bits)
    parser.add_argument("--leave", type=float, default=0.1, help="fraction that leaves before sending its message")
    asked = parser.parse_args()
    columns = ("clients", "left", "up kB", "of it keys", "down kB", "client CPU ms", "server CPU s")
    table = Table(
        *columns, title=f"{asked.entries} entries of {asked.bits} bits; float32: {asked.entries / 250:.0f} kB"
    )
    for clients in asked.clients:
        table.add_row(*_measured(clients, asked.entries, SecureSum(asked.bits), int(asked.leave * clients)))
    Console(width=110).print(table)


class _Clock:
    """Adds up CPU seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        result = function(*arguments)
        self.seconds += time.process_time() - start
        return result


def _measured(clients: int, entries: int, options: SecureSum, left: int) -> list[str]:
    layout = Layout(entries, 4, options.width(clients))
    exchange, members = Exchange(options, range(clients), layout), {}
    server, client, up, keys, down = _Clock(), _Clock(), 0, 0, 0
    message = Scaled([np.random.default_rng(0).normal(size=entries)], [1.0], 1.0)
    Member(options, 0, "one", Disclosures())  # imports what is needed, outside of the measurement

    def answer(number: int, request: Request) -> bytes:
        asked = list(request.clients)
        if request.stage is Stage.KEYS:
            members[number] = Member(options, number, "one", Disclosures())
            return members[number].keys(asked)
        if request.stage is Stage.SHARES:
            return members[number].shares(asked, request.payload)
        if request.stage is Stage.INPUT:
            members[number].receive(asked, request.payload)
            levels = levels_of(message, options, np.random.default_rng(number))
            return members[number].masked(words_of(levels, [0.0] * 4))
        return members[number].reveal(asked)

    for stage in Stage:
        requests = server(exchange.requests)
        for number, request in requests.items():
            if stage is Stage.INPUT and number < left:
                continue
            reply = client(answer, number, request)
            server(exchange.take, number, reply)
            if number == clients - 1:
                up, down = up + len(reply), down + len(request.payload)
                keys += len(reply) if stage is not Stage.INPUT else 0
        server(exchange.advance)
    server(exchange.total)
    sizes = [f"{size / 1000:.1f}" for size in (up, keys, down)]
    return [str(clients), str(left), *sizes, f"{1000 * client.seconds / clients:.0f}", f"{server.seconds:.2f}"]


if __name__ == "__main__":
    main()
