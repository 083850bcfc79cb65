"""Several methods on the same task, with the same seeds and cohorts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from fedmime.errors import ConfigError
from fedmime.experiments.setting import ALGORITHMS, BASES, Setting

_LABEL = r"(?P<label>[^=/.][^=/]*)="  # the name of a directory, too
_RATES = r"@(?P<eta>[^@,]+)(?:,(?P<eta_server>[^@,]+))?"
_METHOD = re.compile(rf"(?:{_LABEL})?(?P<algorithm>[a-z_]+)(?::(?P<base>[a-z0-9]+))?(?:{_RATES})?")


@dataclasses.dataclass(frozen=True)
class Method:
    """A method as people write it: `[LABEL=]ALGORITHM[:BASE][@ETA[,ETA_SERVER]]`, as in `fedavg:momentum@0.1,10`."""

    label: str | None
    setting: Setting


def methods(words: Sequence[str], common: Setting) -> list[Method]:
    """The settings of methods that differ in algorithm, base and rates alone."""
    if not words:
        raise ConfigError("methods: name at least one, such as fedavg mime_lite:momentum@0.03 mime:adam")
    found = [_method(word, common) for word in words]
    names = [word.split("=")[0] if "=" in word else word for word in words]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"methods: {sorted(twice)[0]!r} is named twice; give each a label, such as slow=mime@0.01")
    return found


def _method(word: str, common: Setting) -> Method:
    match = _METHOD.fullmatch(word)
    if match is None:
        raise ConfigError(f"methods: {word!r} is not of the form [LABEL=]ALGORITHM[:BASE][@ETA[,ETA_SERVER]]")
    part = match.groupdict()
    if part["algorithm"] not in ALGORITHMS:
        raise ConfigError(f"methods: unknown algorithm {part['algorithm']!r}; accepted are {', '.join(ALGORITHMS)}")
    if part["base"] is not None and part["base"] not in BASES:
        raise ConfigError(f"methods: unknown base {part['base']!r}; accepted are {', '.join(BASES)}")
    changes: dict[str, object] = {"algorithm": part["algorithm"]}
    if part["base"] is not None:
        changes["base"] = part["base"]
    for name in ("eta", "eta_server"):
        if part[name] is not None:
            try:
                changes[name] = float(part[name])
            except ValueError:
                raise ConfigError(f"methods: the rate of {word!r} must be a number, got {part[name]!r}") from None
    return Method(part["label"], dataclasses.replace(common, **changes))
