"""The ServerApp: `fedmime.deploy.server` with Flower's nodes behind its transport."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmime.deploy.flower.channel import MOST
from fedmime.deploy.transport import Transport
from fedmime.errors import ConfigError

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    from fedmime.deploy.flower.session import Report
    from fedmime.engine import Info

_NUMBERS = ("rounds", "cohort_size", "batch_size", "epochs", "steps", "seed", "evaluate_every", "run_dir")
_OF_SETTING = _NUMBERS[:-1]
_FIELDS = {"cohort_size": "cohort", "batch_size": "batch"}  # what a setting calls them
_WAITING = ("nodes", "joining", "deadline", "most_examples")


def server_app(
    algorithm: Callable[[], Any] | None = None,
    problem: Callable[[], Any] | None = None,
    *,
    setting: Mapping[str, Any] | None = None,
    aggregation: Callable[[], Any] | None = None,
    secure: Callable[[], Any] | None = None,
    test: Callable[[], Any] | None = None,
    **options: Any,
) -> ServerApp:
    """The ServerApp of a Flower project whose ClientApp comes from `fm.deploy.client_app`.

    The run is that of `fm.simulate` with the nodes for clients: the same loop, run directory, checkpoints and exact
    resume. What the run's configuration (`[tool.flwr.app.config]`, `flwr run -c`) says of `rounds`, `cohort-size`,
    `batch-size`, `epochs`, `steps`, `seed`, `evaluate-every`, `run-dir`, `nodes`, `joining`, `deadline` and
    `most-examples` counts more than what is given here.

    Args:
        algorithm: gives the algorithm, the same as the clients'.
        problem: gives what is trained, from `fm.models`.
        setting: in place of all that functions give but `test` and `secure`: names and numbers of a task and an
            algorithm of this library, as in configuration files, such as `{"task": "digits-logistic", "algorithm":
            "mime"}`. Clients then need no algorithm.
        aggregation: gives what happens to messages, the same as the clients', if they have one.
        secure: gives an `fm.deploy.SecureSum`, with which clients mask their messages and the server learns sums only.
        test: gives columns of the server's own test set, if it has one.
        options: further arguments of `fm.simulate`, and `nodes` (clients that must have joined before the first round;
            by default the cohort), `joining` (seconds to wait for them), `deadline` (seconds of an exchange) and
            `most_examples` (that a client may claim to have; by default a million).
    """
    from flwr.serverapp import ServerApp

    if (algorithm is None or problem is None) if setting is None else (algorithm or problem or aggregation):
        raise ConfigError("server_app: give algorithm and problem, or a setting in place of both and of aggregation")
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedmime.compilation import prepare
        from fedmime.deploy.flower.grid import GridTransport, refuse_arrays
        from fedmime.deploy.server import Waiting, run, run_setting
        from fedmime.experiments.setting import Setting, merged

        prepare()
        refuse_arrays()
        sys.argv[:] = ["flwr", "run"]  # a run directory records the command, and that of this process holds a token
        given = options | _configured(context.run_config)
        waiting = Waiting(**{name: given.pop(name) for name in _WAITING if name in given})
        made = {"secure": secure, "test": test} | ({"aggregation": aggregation} if setting is None else {})
        given |= {name: None if function is None else function() for name, function in made.items()}
        transport = GridTransport(grid, MOST)
        if setting is not None:
            numbers = {_FIELDS.get(name, name): given.pop(name) for name in _OF_SETTING if name in given}
            found = merged(Setting(), {**setting, **numbers}, "server_app")
            run_setting(transport, found, waiting=waiting, on_round=_told, **given)
            return
        assert algorithm is not None
        assert problem is not None
        for needed in ("rounds", "cohort_size"):
            if needed not in given:
                raise ConfigError(f"server_app: {needed} is missing; give it here or in the run's configuration")
        run(transport, algorithm(), problem(), waiting=waiting, on_round=_told, **given)

    return app


def of_setting(
    transport: Transport,
    report: Report,
    setting: Mapping[str, Any],
    run_dir: str,
    data_dir: str | None,
    saving: Mapping[str, Any],
    waiting: Mapping[str, Any],
    command: Sequence[str],
    secure: Mapping[str, Any] | None = None,
    owners: str | None = None,
    path: Sequence[str] = (),
) -> None:
    """The run of `fedmime deploy`: what a setting names, told to a launcher.

    Args:
        transport: reaches the nodes.
        report: the session with the launcher.
        setting: the fields of a `Setting`.
        run_dir: where the run is written.
        data_dir: where published files are kept.
        saving: the fields of a `Saving`.
        waiting: the fields of a `Waiting`.
        command: the launcher's, which the run directory records in place of Flower's, since that holds a token.
        secure: the numbers of a `SecureSum`, if messages are masked.
        owners: the file that says whose keys nodes have, see `Control.tell_owners`.
        path: directories in which modules of the operator's own are looked for, too.
    """
    from fedmime.compilation import prepare
    from fedmime.deploy.flower.control import owners_in
    from fedmime.deploy.secure.options import of_fields
    from fedmime.deploy.server import Waiting, run_setting
    from fedmime.engine import Saving
    from fedmime.experiments import tasks
    from fedmime.experiments.setting import Setting, merged

    prepare()
    sys.argv[:] = command
    sys.path += path
    found = merged(Setting(), setting, "deploy")
    run_setting(
        transport,
        found,
        test=tasks.population(found.task, data_dir).test,
        waiting=Waiting(**waiting),
        run_dir=run_dir,
        saving=Saving(**saving),
        on_round=report.on_round,
        stop=report.stop,
        secure=of_fields(secure),
        owners=None if owners is None else lambda: owners_in(Path(owners)),
    )


def _configured(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a run's configuration holds; an empty text is none, since a configuration cannot say that."""
    given = {name.replace("-", "_"): value for name, value in config.items() if value != ""}
    return {name: given[name] for name in (*_NUMBERS, *_WAITING) if name in given}


def _told(info: Info, measured: Mapping[str, float]) -> None:
    """Write a line for a round, which `flwr run --stream` shows."""
    words = "".join(f", {name} {value:.4g}" for name, value in measured.items())
    logging.getLogger("flwr").info("round %d: loss %.4g%s", info.round + 1, info.loss, words)
