"""What every verb that computes does first: keep compiled programs for the next time, be quiet about it."""

from __future__ import annotations

import gc
import logging
import sys


class _Told(logging.Handler):
    """Tells people what libraries warn of, as the command line tells everything: one line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{record.name.partition('.')[0]}: {record.getMessage()}\n")


_TOLD = _Told(logging.WARNING)


def start() -> None:
    """Show warnings, and use the cache of compiled programs unless the environment says otherwise.

    What was imported lives as long as the process. Frozen, the garbage collector need not walk through it again and
    again, which takes a sixth of a short run.
    """
    from fedmime.compilation import keep_programs

    logging.getLogger("absl").setLevel(logging.ERROR)
    logging.root.addHandler(_TOLD)  # a second time changes nothing; without one, absl would add its own
    keep_programs()
    gc.freeze()
