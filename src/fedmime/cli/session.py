"""What every verb that computes does first: keep compiled programs for the next time, be quiet about it."""

from __future__ import annotations

import logging
import os
import sys

from fedmime.files import private_directory, user_cache


class _Told(logging.Handler):
    """Tells people what libraries warn of, as the command line tells everything: one line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{record.name.partition('.')[0]}: {record.getMessage()}\n")


_TOLD = _Told(logging.WARNING)


def start() -> None:
    """Show warnings, and use the cache of compiled programs unless the environment says otherwise."""
    import jax

    logging.getLogger("absl").setLevel(logging.ERROR)
    logging.root.addHandler(_TOLD)  # a second time changes nothing; without one, absl would add its own
    if os.environ.get("JAX_COMPILATION_CACHE_DIR") or os.environ.get("FEDMIME_NO_COMPILATION_CACHE"):
        return
    try:
        programs = private_directory(user_cache() / "programs")  # JAX runs what it finds there
    except OSError as error:
        logging.getLogger("fedmime").warning("compiled programs are not kept: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(programs))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
