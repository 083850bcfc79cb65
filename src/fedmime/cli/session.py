"""What every verb that computes does first: keep compiled programs for the next time, be quiet about it."""

from __future__ import annotations

import logging
import os

from fedmime.files import user_cache


def start() -> None:
    """Use the cache of compiled programs, unless the environment says otherwise."""
    import jax

    logging.getLogger("absl").setLevel(logging.ERROR)
    if os.environ.get("JAX_COMPILATION_CACHE_DIR") or os.environ.get("FEDMIME_NO_COMPILATION_CACHE"):
        return
    jax.config.update("jax_compilation_cache_dir", str(user_cache() / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
