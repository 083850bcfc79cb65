"""`fedmime VERB`: read the arguments, run the verb, turn what went wrong into one line and an exit code."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import tyro

from fedmime.cli import catalogue, compare, data, diagnose, doctor, evaluate, report, reproduce, sweep, train, tune
from fedmime.errors import FedmimeError

USAGE, IO_ERROR, INTERRUPTED = 2, 74, 130
_NO_ARGUMENTS = ("list", "doctor")


class Verb(NamedTuple):
    """A verb of the command line."""

    arguments: Any  # a dataclass or a union of dataclasses, one for each action
    run: Callable[[Any], int]
    help: str
    defaults: Callable[[Sequence[str]], Any] | None = None  # from the words, where a file may hold them


VERBS = {
    "train": Verb(train.Train, train.run, "train one model, saved so that it can always go on", train.defaults),
    "resume": Verb(train.Resume, train.resume, "go on with a run that was broken off"),
    "eval": Verb(evaluate.Eval, evaluate.run, "evaluate a run's model, client by client too"),
    "compare": Verb(compare.Compare, compare.run, "several methods, same seeds, one report", compare.defaults),
    "diagnose": Verb(diagnose.Diagnose, diagnose.run, "how alike a task's clients are, and what that advises"),
    "sweep": Verb(sweep.Sweep, sweep.run, "a grid over any numbers of a setting", sweep.defaults),
    "tune": Verb(tune.Tune, tune.run, "choose the rate on a small centralized sample", tune.defaults),
    "reproduce": Verb(reproduce.Reproduce, reproduce.run, "a figure or table of the paper, by its name"),
    "report": Verb(report.Report, report.run, "one HTML page of recorded runs"),
    "data": Verb(data.Data, data.run, "list, fetch, verify, convert and look at federated data"),
    "list": Verb(catalogue.List, catalogue.run, "the names of tasks, algorithms, optimizers, models and data sets"),
    "doctor": Verb(doctor.Doctor, doctor.run, "is everything here that a run needs?"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; gives the exit code. Wrong arguments exit with 2, as the parser says why."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(_help())
        return 0
    if words[0] == "--version":
        sys.stdout.write(f"fedmime {version('fedmime')}\n")
        return 0
    name, *rest = words
    if name not in VERBS:
        close = difflib.get_close_matches(name, VERBS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(VERBS)}"
        sys.stderr.write(f"fedmime: unknown verb {name!r}{hint}\n")
        return USAGE
    return _guarded(VERBS[name], name, rest)


def _help() -> str:
    width = max(map(len, VERBS))
    rows = "".join(f"  {name:{width}}  {verb.help}\n" for name, verb in VERBS.items())
    more = "fedmime VERB --help tells more; fedmime --version says which this is."
    return f"usage: fedmime VERB [options]\n\n{rows}\n{more}\n"


def _guarded(verb: Verb, name: str, words: list[str]) -> int:
    try:
        given = {} if verb.defaults is None else {"default": verb.defaults(words)}
        words = words or ([] if given or name in _NO_ARGUMENTS else ["--help"])
        wanted = tyro.cli(verb.arguments, args=words, prog=f"fedmime {name}", description=verb.help, **given)
        return verb.run(wanted)
    except FedmimeError as error:
        sys.stderr.write(f"fedmime: {_spelled(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("fedmime: interrupted\n")
        return INTERRUPTED
    except OSError as error:
        sys.stderr.write(f"fedmime: {error}\n")
        return IO_ERROR


def _spelled(message: str) -> str:
    """A message of the library with arguments spelled as options of the command line."""
    for argument, option in (("(fresh=True)", "(--fresh)"), ("pass data_dir", "pass --data-dir")):
        message = message.replace(argument, option)
    return message


def script() -> None:
    """The console script."""
    sys.exit(main())
