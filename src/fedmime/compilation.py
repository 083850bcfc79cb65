"""JAX's cache of compiled programs on disk, so that the next process need not compile them again."""

from __future__ import annotations

import functools
import logging
import os

import jax

from fedmime.files import private_directory, user_cache

SWITCH = "FEDMIME_NO_COMPILATION_CACHE"


@functools.cache
def keep_programs() -> None:
    """Keep compiled programs in the user's cache, unless the user or the environment has chosen otherwise.

    JAX runs what it finds there, so the folder must be one that only the user can write to.
    """
    if configured() or os.environ.get(SWITCH):
        return
    try:
        programs = private_directory(user_cache() / "programs")
    except OSError as error:
        logging.getLogger("fedmime").warning("compiled programs are not kept: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(programs))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def configured() -> bool:
    """Whether JAX was told where to keep programs, by the environment or by the user's program."""
    return bool(getattr(jax.config, "jax_compilation_cache_dir", None))
