"""What orders call to build nodes: from a task of this library, or from functions of a Flower project."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fedmime.deploy.protocol import Node


def of_task(task: str, store: str, name: str, state: str) -> Node:
    """The node of a client whose examples are a store, pooled, for a server that runs a task by its name.

    Args:
        task: a name of `fedmime list tasks`, which says what the model is.
        store: the directory of a population that was saved.
        name: the client's.
        state: the directory in which it keeps what belongs to it between rounds.
    """
    from fedmime.compilation import prepare
    from fedmime.data import from_store
    from fedmime.deploy.node import JaxNode
    from fedmime.experiments import tasks

    prepare()
    return JaxNode(tasks.get(task).problem(), from_store(store).pool(), name, state=state)


def of_project(functions: Mapping[str, str], config: Mapping[str, Any], name: str, state: str) -> Node:
    """The node of a client in a Flower project.

    Args:
        functions: for `data`, `problem`, `algorithm` and `aggregation`, the function that makes it, as
            `module:function`; the one for `data` takes the node's configuration, the others nothing.
        config: the node's configuration, as Flower was given it.
        name: the client's.
        state: the directory in which it keeps what belongs to it between rounds.
    """
    from fedmime.compilation import prepare
    from fedmime.deploy.node import JaxNode

    prepare()
    calls = {what: _found(where) for what, where in functions.items()}
    data, problem = calls.pop("data")(config), calls.pop("problem")()
    return JaxNode(problem, data, name, state=state, **{what: call() for what, call in calls.items()})


def _found(where: str) -> Any:
    module, _, function = where.partition(":")
    return getattr(importlib.import_module(module), function)
