"""What orders call to build nodes: from a task of this library, from functions of a Flower project, or from a function
that makes a whole client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmime.deploy.protocol import Node
from fedmime.errors import ConfigError
from fedmime.named import load


def of_task(
    task: str,
    store: str,
    name: str,
    state: str,
    secure: Mapping[str, Any] | None = None,
    own: Mapping[str, str] | None = None,
    backend: str = "local",
) -> Node:
    """The node of a client whose examples are a store, pooled, for a server that runs a task by its name.

    Args:
        task: its name, see `fedmime.experiments.tasks.get`, which says what the model is.
        store: the directory of a population that was saved.
        name: the client's.
        state: the directory in which it keeps what belongs to it between rounds.
        secure: the numbers of the `SecureSum` that the client insists on, if it does.
        own: see `JaxNode`.
        backend: where the client is computed, `"local"` or `"reference"`.
    """
    from fedmime.compilation import prepare
    from fedmime.data import from_store
    from fedmime.deploy.node import JaxNode
    from fedmime.deploy.secure.options import of_fields
    from fedmime.experiments import tasks

    prepare()
    given: dict[str, Any] = {"state": state, "secure": of_fields(secure), "own": own, "backend": backend}
    return JaxNode(tasks.problem(task), from_store(store).pool(), name, **given)


def of_project(
    functions: Mapping[str, str], config: Mapping[str, Any], name: str, state: str, backend: str = "local"
) -> Node:
    """The node of a client in a Flower project.

    Args:
        functions: for `data`, `problem`, `algorithm`, `aggregation` and `secure`, as far as they are given, the
            function that makes it, as `module:function`; the one for `data` takes the node's configuration, the others
            nothing.
        config: the node's configuration, as Flower was given it.
        name: the client's.
        state: the directory in which it keeps what belongs to it between rounds.
        backend: where the client is computed, `"local"` or `"reference"`.
    """
    from fedmime.compilation import prepare
    from fedmime.deploy.node import JaxNode

    prepare()
    calls = {what: load("client", where) for what, where in functions.items()}
    data, problem = calls.pop("data")(config), calls.pop("problem")()
    given: dict[str, Any] = {what: call() for what, call in calls.items()}
    return JaxNode(problem, data, name, state=state, backend=backend, **given)


def of_function(function: str, config: Mapping[str, Any]) -> Node:
    """The node that a function makes; nothing here needs JAX.

    Args:
        function: as `module:function`, or as `file.py:function`.
        config: what it is called with: the client's `name`, the directory `state` in which it keeps what belongs to it
            between rounds, and what else the node was started with.

    Raises:
        ConfigError: there is no such function, or what it makes is no node.
    """
    node = load("client", function)(config)
    if not callable(getattr(node, "answer", None)):
        kind = type(node).__name__
        raise ConfigError(f"client: {function} must return a client, such as fm.deploy.torch_client makes, got {kind}")
    return node
