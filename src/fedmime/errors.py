"""What can go wrong, by the exit code it ends in. Every message is one line: the field, the value, what is accepted."""


class FedmimeError(Exception):
    """The base of everything this library raises on purpose."""

    exit_code = 1


class ConfigError(FedmimeError, ValueError):
    """A number, name or combination of arguments that makes no sense."""

    exit_code = 2


class DataError(FedmimeError, ValueError):
    """Client data that cannot be trained on: wrong shapes, labels out of range, damaged files."""

    exit_code = 3


class ClientError(DataError):
    """One client's data that cannot be trained on; that of others can."""


class ClientFailed(FedmimeError):
    """A client's loss or algorithm raised an error; the message names the client and what it was doing."""


class Diverged(FedmimeError, ArithmeticError):
    """The server model or its statistics stopped being finite."""

    exit_code = 4


class CheckpointError(FedmimeError):
    """A saved run that cannot be gone on with: damaged, or of another configuration."""

    exit_code = 5


class LockError(FedmimeError):
    """A run directory that another process is writing to."""

    exit_code = 6


class Stopped(FedmimeError):
    """A run that a signal ended, after its state was saved."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal
