"""`fedmime VERB`: read the arguments, run the verb, turn what went wrong into one line and an exit code."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple, TextIO

import tyro

from fedmime.cli import (
    catalogue,
    compare,
    data,
    deploy,
    diagnose,
    doctor,
    evaluate,
    report,
    reproduce,
    sweep,
    train,
    tune,
)
from fedmime.errors import ClusterError, ConfigError, FedmimeError
from fedmime.named import blamed

USAGE, IO_ERROR, INTERRUPTED, PIPE = 2, 74, 130, 141
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
    "deploy": Verb(deploy.Deploy, deploy.run, "train with real clients, here or on other machines", deploy.defaults),
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
        default = None if verb.defaults is None else verb.defaults(words)
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # modules beside the user are found, after what is installed
        given = {} if default is None else {"default": default}
        words = words or ([] if given or name in _NO_ARGUMENTS else ["--help"])
        return verb.run(_parsed(verb, name, words, given))
    except FedmimeError as error:
        sys.stderr.write(f"fedmime: {_spelled(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("fedmime: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # nobody reads any more, so nobody is told
        raise
    except (OSError, MemoryError) as error:
        sys.stderr.write(f"fedmime: {error or 'out of memory'}\n")
        return IO_ERROR
    except Exception as error:
        if (told := blamed(error)) is None:
            raise  # of this library: the traceback belongs into a report
        sys.stderr.write(f"fedmime: {told}\n")
        return USAGE


def _spelled(message: str) -> str:
    """A message of the library with arguments spelled as options of the command line."""
    for argument, option in (("(fresh=True)", "(--fresh)"), ("pass data_dir", "pass --data-dir")):
        message = message.replace(argument, option)
    return message


def _parsed(verb: Verb, name: str, words: list[str], given: dict[str, Any]) -> Any:
    """The arguments of a verb. What the parser says of a value that does not fit becomes one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(verb.arguments, args=words, prog=f"fedmime {name}", description=verb.help, **given)
    except SystemExit:
        plain = " ".join(re.sub("[─│╭╮╰╯]|-{3,}", " ", said.getvalue()).split())
        if found := re.search(r"Error parsing (\S+: .*?)( Got errors| Argument helptext|$)", plain):
            raise ConfigError(f"{found[1]:.200}") from None
        if found := re.search(
            r"Unrecognized options: (.*?)( Perhaps you meant| Available subcommands| For full helptext|$)", plain
        ):
            close = difflib.get_close_matches(
                found[1].split(",")[0], re.findall(r"--[\w.-]+", plain[found.end() :]), 1, 0.8
            )
            hint = f"did you mean {close[0]}?" if close else f"fedmime {name} --help tells which there are"
            raise ConfigError(f"{name}: unrecognized options {found[1]:.200}; {hint}") from None
        sys.stderr.write(said.getvalue())
        raise


def script() -> None:
    """The console script: `main` where standard streams may be closed, or nobody may read them any more."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed; the next file that is opened must not take its place
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open to the end)
    code: Any = 0
    try:
        try:
            code = main()
        except SystemExit as end:  # the parser's way, and Rich's where nobody reads
            code = PIPE if isinstance(end.__context__, BrokenPipeError) else end.code
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = PIPE
    except OSError as error:
        code = IO_ERROR
        sys.stderr.write(f"fedmime: standard output: {error}\n")
    _silence(sys.stdout)
    _silence(sys.stderr)
    if code == ClusterError.exit_code:
        os._exit(code)  # Ray without its head crashes when the interpreter takes it down
    sys.exit(code)


def _silence(stream: TextIO) -> None:
    """Let what a stream could not write go nowhere: Python tries once more when it ends, and complains."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
