"""The ClientApp: what Flower starts for every message to a node, and all of it that needs neither JAX nor PyTorch.

It hands the message to the node's worker and the worker's reply to Flower. It knows neither.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmime.deploy.flower import hire, records
from fedmime.deploy.flower.channel import MOST
from fedmime.deploy.flower.keys import check_name
from fedmime.deploy.flower.worker import Order
from fedmime.errors import ConfigError

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

ACTION = "fedmime"
"""The action of our messages, whose type is `query.fedmime`."""
_OF_PROJECT = "fedmime.deploy.flower.builders:of_project"
_OF_FUNCTION = "fedmime.deploy.flower.builders:of_function"


class Place(NamedTuple):
    """Which worker answers for a node, and where it lives."""

    order: Order
    directory: Path


def relay(place: Callable[[Context], Place]) -> ClientApp:
    """A ClientApp that passes messages on to a node's worker, which is started when there is none.

    Args:
        place: which worker that is, from what Flower says of the node and the run.
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query(ACTION)
    def answer(message: Message, context: Context) -> Message:
        order, directory = place(context)
        request = records.unwrapped(message.content, MOST)
        # The process that has started this one, Flower's SuperExec, lives as long as the node.
        reply = hire.ask(order, directory, request, deadline=message.metadata.ttl, owner=os.getppid())
        return Message(records.wrapped(reply), reply_to=message)

    return app


def client_app(
    data: Callable[[Mapping[str, Any]], Any],
    problem: Callable[[], Any],
    algorithm: Callable[[], Any] | None = None,
    aggregation: Callable[[], Any] | None = None,
    secure: Callable[[], Any] | None = None,
    backend: str = "local",
) -> ClientApp:
    """The ClientApp of a Flower project whose ServerApp comes from `fm.deploy.server_app`.

    Everything that is learned is made by functions, which are called in the node's worker when a run begins. Flower
    imports the module that calls this one for every message, so the module itself should import nothing large:
    `import fedmime as fm` does not start JAX.

    A client's name, by which a resumed run knows it again, is `name` in its node's configuration
    (`flower-supernode --node-config 'name="hospital-a"'`), or else follows from the node's number. It can be a file's
    name, too: letters, digits, `-`, `_` and `.`, at most 64.

    Args:
        data: gives the client's examples, `{field: array[n, ...]}`, from its node's configuration.
        problem: gives what is trained, from `fm.models`.
        algorithm: gives the algorithm, the same as the server's. Without it, algorithm and aggregation are built from
            the names and numbers of the server's setting (`fm.deploy.server_app(setting=…)`), which names algorithms of
            this library and no code; a server that has none is refused.
        aggregation: gives what happens to messages, the same as the server's, if it has one.
        secure: gives the `fm.deploy.SecureSum` that the client insists on: a server that masks less, or nothing, gets
            nothing. Without it, messages are masked if the server asks for it.
        backend: where the client is computed, `"local"` (compiled) or `"reference"` (eagerly, to debug it).

    Raises:
        ConfigError: a function that another process cannot find, or arguments that do not go together.
    """
    if algorithm is None and aggregation is not None:
        raise ConfigError("client_app: aggregation goes with an algorithm, which is missing; give both or neither")
    if backend not in ("local", "reference"):
        raise ConfigError(f"client_app: backend must be 'local' or 'reference', got {backend!r}")
    given = {"data": data, "problem": problem, "algorithm": algorithm, "aggregation": aggregation, "secure": secure}
    functions = {what: _named(what, function) for what, function in given.items() if function is not None}
    path = tuple(dict.fromkeys(_root(function) for function in given.values() if function is not None))

    def place(context: Context) -> Place:
        own = _own(context)
        arguments = {"functions": functions, "config": dict(context.node_config), "backend": backend, **own}
        return Place(Order(_OF_PROJECT, arguments, path, context.run_id), _runtime(context.node_id))

    return relay(place)


def torch_client_app(client: str) -> ClientApp:
    """The ClientApp of a Flower project whose clients are written in PyTorch.

    The server's half is `fm.deploy.server_app`, as for clients in JAX. The client is made by a function that is called
    in the node's worker when a run begins. It takes one argument, the node's configuration (`flower-supernode
    --node-config`) with `name` and `state` added where they are missing, and returns what `fm.deploy.torch_client`
    returns. Neither this process nor the worker imports JAX.

    Args:
        client: the function as `module:function`, the way in which Flower names apps. It is not imported here: Flower
            starts a process for every message, and importing PyTorch would take most of its time.
    """
    module, _, function = client.partition(":") if isinstance(client, str) else ("", "", "")
    if not module or not function.isidentifier():
        raise ConfigError(f"torch_client_app: client must be the name of a function, 'module:function', got {client!r}")
    path = (_root_of(module),)

    def place(context: Context) -> Place:
        arguments = {"function": client, "config": {**_own(context), **context.node_config}}
        return Place(Order(_OF_FUNCTION, arguments, path, context.run_id), _runtime(context.node_id))

    return relay(place)


def _own(context: Context) -> dict[str, str]:
    """The client's name, and the directory in which it keeps what belongs to it between rounds."""
    name = check_name(str(context.node_config.get("name", f"node-{context.node_id}")))
    return {"name": name, "state": str(_state() / name)}


def _root_of(module: str) -> str:
    """The directory from which a module is imported, found without running the module itself."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        raise ConfigError(f"torch_client_app: client names the module {module!r}, and there is none")
    file = Path(found.origin).absolute()
    return str(file.parents[module.count(".") + (file.stem == "__init__")])


def _named(what: str, function: Callable[..., Any]) -> str:
    """How another process finds a function."""
    module, name = function.__module__, function.__qualname__
    if module == "__main__" or "." in name or "<" in name:
        raise ConfigError(f"client_app: {what} must be a function at the top of a module, got {module}.{name}")
    return f"{module}:{name}"


def _root(function: Callable[..., Any]) -> str:
    """The directory from which a function's module is imported."""
    module = sys.modules[function.__module__]
    file = Path(str(module.__file__)).absolute()
    return str(file.parents[function.__module__.count(".") + (file.stem == "__init__")])


def _state() -> Path:
    """Where clients keep what belongs to them between rounds."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedmime" / "nodes"


def _runtime(node: int) -> Path:
    """Where the worker of a node that Flower knows by a number has its socket."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    return base / f"fedmime-{os.geteuid()}-{node:x}"
