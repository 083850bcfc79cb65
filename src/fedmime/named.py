"""Objects of the user's own code by name: `module:name`, or `path/to/file.py:name`.

The command line, configurations and worker processes name code instead of holding it: each process imports the same
file. Only what an operator has written on this machine is ever loaded; names that come over a network are refused
before they get here (`deploy/terms.py`).
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedmime.errors import ConfigError, FedmimeError

FORMS = "module:name or path/to/file.py:name"
_PREFIX = "fedmime_own_"  # of modules made from files, so that none takes the place of another module
_SHA256 = "__fedmime_sha256__"  # where a module keeps the digest of its file
_INSTALLED = tuple({str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("stdlib", "purelib", "platlib")})
_HOME = str(Path(__file__).resolve().parent)
_MOST = 400  # characters of an error that are quoted


def is_named(text: object) -> bool:
    """Whether a text is written as the name of the user's own code; names of this library have no colon."""
    return isinstance(text, str) and ":" in text


def absolute(text: str) -> str:
    """The same name with the absolute path of its file, for another process or a later day."""
    place, colon, name = text.rpartition(":")
    return f"{Path(place).absolute()}:{name}" if colon and place.endswith(".py") else text


def short(text: str) -> str:
    """The name without the directories of its file, for titles."""
    return text.rpartition("/")[2] if is_named(text) else text


def safe(text: str) -> str:
    """A text as the name of a file or directory, such as `own.py-mine`."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "own"


def load(owner: str, text: str, near: Iterable[str] = ()) -> Any:
    """What a name stands for; `ConfigError` in one line says what is missing, or what the user's file raised.

    Args:
        owner: the option or function that the name was given to, for messages.
        text: the name.
        near: names of this library that may have been meant.
    """
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigError(f"{owner}: {text!r} must be written {FORMS}")
    with blaming(owner, text):
        module = _from_file(owner, place) if place.endswith(".py") else _imported(owner, place, near)
    if not hasattr(module, name):
        public = [each for each in vars(module) if not each.startswith("_")]
        where = place if place.endswith(".py") or not module.__file__ else f"{place} ({module.__file__})"
        raise ConfigError(f"{owner}: {where} has no {name!r}{_meant(name, public)}")
    return getattr(module, name)


def digest(text: str) -> str:
    """The file of a name that was loaded, and its sha256 when it was: `own.py 1f3a…`. Another version has another one.

    A module without a file of its own, such as a built-in one, is told by its name alone.
    """
    module = sys.modules[module_of(text)]
    found = sha256_of(module)
    return module.__name__ if found is None else f"{Path(module.__file__ or '').name} {found}"


def sha256_of(module: ModuleType) -> str | None:
    """The sha256 of a module's file, of one from `load` as it was read; None if it has no file."""
    path = getattr(module, "__file__", None)
    if _SHA256 in vars(module) or not path or not Path(path).is_file():
        return vars(module).get(_SHA256)
    return _sha256(Path(path).read_bytes())


def module_of(text: str) -> str:
    """The name in `sys.modules` of the module that a name is looked up in; the same in all processes."""
    place = text.rpartition(":")[0]
    return _module_name(Path(place).absolute()) if place.endswith(".py") else place


def from_files() -> list[ModuleType]:
    """The modules that were loaded from files. Other processes cannot import them by their names."""
    return [module for name, module in list(sys.modules.items()) if name.startswith(_PREFIX)]


@contextlib.contextmanager
def blaming(owner: str, text: str) -> Iterator[None]:
    """Turn an error that the user's code raises in the block into a `ConfigError` of one line that says where."""
    try:
        yield
    except (Exception, SystemExit) as error:
        where = line_of(error)
        if isinstance(error, FedmimeError) and (where is None or not isinstance(error, ConfigError)):
            raise  # not of the user's code, or of another kind, such as data that is missing
        raise ConfigError(f"{owner}: {text!r}: {_told(error, where)}") from error


def blamed(error: BaseException) -> str | None:
    """What the user's own code raised, and where, in one line; None if the error came from no code of theirs."""
    where = line_of(error)
    return None if where is None else _told(error, where)


def line_of(error: BaseException) -> str | None:
    """The innermost line of the user's own code that an error passed through, as `own.py, line 12`."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if file.endswith(".py") and not str(Path(file).resolve()).startswith((_HOME, *_INSTALLED)):
            return f"{Path(file).name}, line {line}"
    return None


def _told(error: BaseException, where: str | None) -> str:
    words = re.sub(r"\s+", " ", str(error.msg if isinstance(error, SyntaxError) else error)).strip()
    words = words if len(words) <= _MOST else words[:_MOST] + "…"
    kind = "" if isinstance(error, FedmimeError) else type(error).__name__
    told = ": ".join(part for part in (kind, words) if part)
    return told if where is None else f"{told} ({where})"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _module_name(file: Path) -> str:
    return f"{_PREFIX}{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"


def _from_file(owner: str, place: str) -> ModuleType:
    """A module from its file, read once in a process as modules are. What lies beside it can be imported there."""
    file = Path(place).absolute()
    name = _module_name(file)
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        beside = [each.name for each in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise ConfigError(f"{owner}: there is no file {str(place)!r}{_meant(file.name, beside)}")
    content = file.read_bytes()
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    vars(module)[_SHA256] = _sha256(content)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        exec(compile(content, str(file), "exec"), module.__dict__)  # noqa: S102 (the operator's own file)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _imported(owner: str, name: str, near: Iterable[str]) -> ModuleType:
    """A module by its name; one that the user's own module lacks is the user's error."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{owner}: {name!r} is no module; write {FORMS}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):  # a module that this one imports
            raise
        beside = [each.stem for each in Path.cwd().glob("*.py")]
        raise ConfigError(f"{owner}: there is no module {name!r}{_meant(name, [*beside, *near])}") from None


def _meant(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, sorted(set(known)), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
