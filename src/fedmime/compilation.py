"""What is compiled for a run: JAX's programs, kept on disk for the next process, and the kernels in C."""

from __future__ import annotations

import functools
import logging
import os
import warnings

import jax

from fedmime.files import private_directory, user_cache
from fedmime.kernels import build

SWITCH = "FEDMIME_NO_COMPILATION_CACHE"


def prepare() -> None:
    """Keep compiled programs, and start to load the kernels that every model uses without waiting for them."""
    keep_programs()
    build.start_loading()


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
    # A full disk leaves entries that are cut off. JAX notices, and compiles such a program again: nothing to warn of.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning)
    jax.config.update("jax_compilation_cache_dir", str(programs))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def configured() -> bool:
    """Whether JAX was told where to keep programs, by the environment or by the user's program."""
    return bool(getattr(jax.config, "jax_compilation_cache_dir", None))
