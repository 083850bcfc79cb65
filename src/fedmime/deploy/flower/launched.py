"""The two apps of a run that `fedmime deploy` has launched; what they do is decided by the machine they run on.

The program that Flower sends to nodes is two lines that name this module. A server's launcher says through its session
what the ServerApp does. A node's launcher says with an order, a file on the node, which worker answers.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from fedmime.deploy.flower.client_app import Place, relay
from fedmime.deploy.flower.worker import Order

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp


def server() -> ServerApp:
    """The ServerApp: calls the function that its launcher names, with the transport and the session."""
    from flwr.serverapp import ServerApp

    from fedmime.deploy.flower.grid import GridTransport, refuse_arrays
    from fedmime.deploy.flower.session import Report

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        refuse_arrays()
        with Report(Path(str(context.run_config["session"]))) as report:
            plan = report.plan
            module, _, function = plan["call"].partition(":")
            transport = GridTransport(grid, plan["most"])
            getattr(importlib.import_module(module), function)(transport, report, **plan["arguments"])

    return app


def client() -> ClientApp:
    """The ClientApp: passes messages on to the worker that the node's own configuration names."""

    def place(context: Context) -> Place:
        told = json.loads(Path(str(context.node_config["order"])).read_text())
        return Place(Order.of(told), Path(told["directory"]))

    return relay(place)
