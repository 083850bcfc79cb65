"""Where a problem or a population comes from: an importable function and plain arguments.

Another process makes the same thing by calling the same function. It need not be sent code, and it looks data up where
its own machine keeps it. A problem or population that has an origin is pickled as that call.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from fedmime.errors import ConfigError


class Origin(NamedTuple):
    """A call that makes a value."""

    function: str
    """As `module:name`."""
    arguments: tuple[Any, ...] = ()
    """Strings, numbers, None, and tuples of them."""

    @property
    def module(self) -> str:
        """The module that has the function."""
        return self.function.partition(":")[0]

    @property
    def pickled(self) -> tuple[Any, ...]:
        """What `__reduce_ex__` of something with this origin returns."""
        return by_name, (self.function, *self.arguments)

    def make(self) -> Any:
        """Call the function; `ConfigError` if it cannot be imported."""
        module, _, name = self.function.partition(":")
        if not module or not name:
            raise ConfigError(f"by_name: function must be 'module:name', got {self.function!r}")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"by_name: {self.function!r} cannot be imported: {error}") from error
        return function(*self.arguments)


def by_name(function: str, *arguments: Any) -> Any:
    """The problem or population that an importable function makes; workers of `fm.backends.ray` make their own.

    What is made in a script is sent to workers as it is, with the code of its functions. What has a name is made on
    every worker by the same call, so its module must be importable there, too.

    Args:
        function: as `module:name`, such as `"my_models:small"`.
        arguments: of the function: strings, numbers, None, and tuples of them.

    >>> import fedmime as fm
    >>> fm.backends.by_name("fedmime.models:logistic", (8, 8, 1), 10).name
    'logistic'
    """
    origin = Origin(function, arguments)
    value = origin.make()
    if not hasattr(value, "made_by"):
        raise ConfigError(f"by_name: {function!r} must return a problem or a population, got {type(value).__name__}")
    return value.made_by(origin)
