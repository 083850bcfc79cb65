"""What orders call to build nodes: from a task of this library, from functions of a Flower project, or from a function
that makes a whole client.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fedmime.deploy.protocol import Node
from fedmime.errors import ConfigError


def of_task(
    task: str, store: str, name: str, state: str, secure: Mapping[str, Any] | None = None, backend: str = "local"
) -> Node:
    """The node of a client whose examples are a store, pooled, for a server that runs a task by its name.

    Args:
        task: a name of `fedmime list tasks`, which says what the model is.
        store: the directory of a population that was saved.
        name: the client's.
        state: the directory in which it keeps what belongs to it between rounds.
        secure: the numbers of the `SecureSum` that the client insists on, if it does.
        backend: where the client is computed, `"local"` or `"reference"`.
    """
    from fedmime.compilation import prepare
    from fedmime.data import from_store
    from fedmime.deploy.node import JaxNode
    from fedmime.deploy.secure.options import of_fields
    from fedmime.experiments import tasks

    prepare()
    given = {"state": state, "secure": of_fields(secure), "backend": backend}
    return JaxNode(tasks.get(task).problem(), from_store(store).pool(), name, **given)


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
    calls = {what: _found(where) for what, where in functions.items()}
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
    node = _found(function)(config)
    if not callable(getattr(node, "answer", None)):
        kind = type(node).__name__
        raise ConfigError(f"client: {function} must return a client, such as fm.deploy.torch_client makes, got {kind}")
    return node


def _found(where: str) -> Any:
    """The function of a name."""
    place, _, function = where.rpartition(":")
    module = _loaded(Path(place)) if place.endswith(".py") else _imported(place)
    if not hasattr(module, function):
        raise ConfigError(f"client: {place} has no function {function!r}")
    return getattr(module, function)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):  # a module that this one imports
            raise
        raise ConfigError(f"client: there is no module {name!r}") from None


def _loaded(file: Path) -> ModuleType:
    """A module from its file, which may have the name of another module."""
    spec = importlib.util.spec_from_file_location(f"fedmime_client_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ConfigError(f"client: there is no file {str(file)!r}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
