"""How many programs JAX has built in this process, for tests that later rounds build none."""

import jax

_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_count = 0


def _listen(event: str, *_: object, **__: object) -> None:
    global _count
    _count += event == _LOWERED


jax.monitoring.register_event_duration_secs_listener(_listen)


def programs() -> int:
    """Programs lowered so far; one that is found in a cache on disk counts, one that is run again does not."""
    return _count
