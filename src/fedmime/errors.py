"""The errors of this package, each with the exit code by which the command line ends.

Every message is one line that names the field, quotes the value and says what is accepted.
"""


class FedmimeError(Exception):
    """The base of all errors that this package raises on purpose."""

    exit_code = 1


class ConfigError(FedmimeError, ValueError):
    """An argument, or a combination of arguments, that is not accepted."""

    exit_code = 2


class DataError(FedmimeError, ValueError):
    """Client data that cannot be trained on: wrong shapes, labels out of range, damaged files."""

    exit_code = 3


class ClientError(DataError):
    """Data of a single client that cannot be trained on; a run can continue without this client."""


class ClientFailed(FedmimeError):
    """A client's loss or algorithm raised an error; the message names the client and the stage."""


class Diverged(FedmimeError, ArithmeticError):
    """The server model or its statistics are no longer finite, or updates have exploded."""

    exit_code = 4


class CheckpointError(FedmimeError):
    """A saved run that cannot be continued: it is damaged or belongs to another configuration."""

    exit_code = 5


class LockError(FedmimeError):
    """A run directory that another process is writing to."""

    exit_code = 6


class ClusterError(FedmimeError):
    """Workers or the cluster they run on were lost; what was saved last can be continued."""

    exit_code = 7


class Stopped(FedmimeError):
    """A run that was ended by a signal, after its state was saved. The exit code is 128 plus the signal's number."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal
