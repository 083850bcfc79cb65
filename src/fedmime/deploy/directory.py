"""What a run directory holds of a deployed run beside the files of a simulation; one start at a time writes it.

`fleet.json` names the clients and their order; from `secret` the privacy noise follows. Both are private to the user,
and both are there before the engine takes the directory. A start that gathers clients may take long, and another one
must not write other files in the meantime: it would train with clients and a secret that a resumed run does not find.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedmime.deploy.fleet import Registry
from fedmime.deploy.secret import Secret
from fedmime.deploy.secure.options import SecureSum
from fedmime.errors import CheckpointError, LockError
from fedmime.runs.directory import IDENTITY, RunDirectory, Saving

FLEET, SECRET = "fleet.json", "secret"
SERVER, LAUNCHER = "server.lock", "launcher.lock"


@contextlib.contextmanager
def alone(directory: Path, lock: str = SERVER) -> Iterator[None]:
    """Keep other starts out of a run directory, which is created if it does not exist.

    Args:
        directory: the run's.
        lock: the name of the lock file. A launcher and the server that it starts are two processes, each with its own.

    Raises:
        LockError: there is another one.
    """
    import filelock

    directory.mkdir(parents=True, exist_ok=True)
    try:
        found = filelock.FileLock(directory / lock, timeout=0).acquire()
    except filelock.Timeout:
        raise LockError(f"run directory {str(directory)!r} is in use by another process") from None
    with found:
        yield


def known(directory: Path, saving: Saving, secure: SecureSum | None) -> tuple[Secret, Registry] | None:
    """The secret and the clients of the run in a directory; None if it holds none, or is to begin anew.

    Raises:
        LockError: another process is at work there.
        CheckpointError: it holds another kind of run.
    """
    with RunDirectory(directory, saving.keep):
        if saving.fresh:
            for name in (SECRET, FLEET):
                (directory / name).unlink(missing_ok=True)
        if (directory / FLEET).exists():
            registry = Registry.read(directory / FLEET)
            if registry.secure != secure:
                words = f"{str(directory)!r} holds a run with secure={registry.secure}"
                raise CheckpointError(f"{words}, which cannot go on with secure={secure}")
            return Secret.read(directory / SECRET), registry
        _check_free(directory, saving)
        return None


def write(directory: Path, saving: Saving, secret: Secret, registry: Registry) -> None:
    """Write down the secret and the clients of a run that begins; see `known` for what is raised."""
    with RunDirectory(directory, saving.keep):
        _check_free(directory, saving)
        secret.write(directory / SECRET)
        registry.write(directory / FLEET)


def _check_free(directory: Path, saving: Saving) -> None:
    if (directory / IDENTITY).exists() and not saving.fresh:
        raise CheckpointError(f"{str(directory)!r} holds a run without deployed clients; choose another directory")
