"""Several methods on the same task, with the same seeds and cohorts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from fedmime import named
from fedmime.errors import ConfigError
from fedmime.experiments.setting import ALGORITHMS, BASES, Setting

_FORM = "[LABEL=]ALGORITHM[:BASE][@ETA[,ETA_SERVER]]"
_METHOD = re.compile(
    r"(?:(?P<label>[^=/.:][^=/:]*)=)?(?P<names>[^@]+)(?:@(?P<eta>[^@,]+)(?:,(?P<eta_server>[^@,]+))?)?"
)


@dataclasses.dataclass(frozen=True)
class Method:
    """A method as people write it: `[LABEL=]ALGORITHM[:BASE][@ETA[,ETA_SERVER]]`, as in `fedavg:momentum@0.1,10`.

    Algorithm and base are names of this library, which have no colon, or of the user's own code, which have one:
    `own.py:swift`, `own.py:swift:adam`, `mime:own.py:base`. A label is the name of a directory, too.
    """

    label: str | None
    setting: Setting


def methods(words: Sequence[str], common: Setting) -> list[Method]:
    """The settings of methods that differ in algorithm, base and rates alone."""
    if not words:
        raise ConfigError("methods: name at least one, such as fedavg mime_lite:momentum@0.03 mime:adam")
    found = [_method(word, common) for word in words]
    names = [each.label or word for each, word in zip(found, words, strict=True)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"methods: {sorted(twice)[0]!r} is named twice; give each a label, such as slow=mime@0.01")
    return found


def _method(word: str, common: Setting) -> Method:
    match = _METHOD.fullmatch(word)
    if match is None:
        raise ConfigError(f"methods: {word!r} is not of the form {_FORM}")
    part = match.groupdict()
    algorithm, base = _names(part["names"], word)
    changes: dict[str, object] = {"algorithm": algorithm}
    if base is not None:
        changes["base"] = base
    for name in ("eta", "eta_server"):
        if part[name] is not None:
            try:
                changes[name] = float(part[name])
            except ValueError:
                raise ConfigError(f"methods: the rate of {word!r} must be a number, got {part[name]!r}") from None
    return Method(part["label"], dataclasses.replace(common, **changes))


def _names(names: str, word: str) -> tuple[str, str | None]:
    """The algorithm and the base of a method: one word for each of this library, two for each of the user's own."""
    first, *rest = names.split(":")
    own = first not in ALGORITHMS and bool(rest) and not (rest[0] in BASES and first.isidentifier())
    if own:
        first = f"{first}:{rest.pop(0)}"
    elif first not in ALGORITHMS:
        raise ConfigError(f"methods: unknown algorithm {first!r}; accepted are {', '.join(ALGORITHMS)}, {named.FORMS}")
    base = ":".join(rest) or None
    if len(rest) > 2 or "" in rest or (len(rest) == 2 and rest[0] in BASES):
        raise ConfigError(f"methods: {word!r} is not of the form {_FORM}")
    if len(rest) == 1 and base not in BASES:
        raise ConfigError(f"methods: unknown base {base!r}; accepted are {', '.join(BASES)}, {named.FORMS}")
    return first, base
