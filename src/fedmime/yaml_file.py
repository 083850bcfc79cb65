"""Reading YAML that nobody vouches for: the one way in for configuration files and recorded configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LARGEST = 1_000_000  # bytes of a file
_DEEPEST = 20  # mappings and lists inside one another
_MOST_VALUES = 100_000  # in one file, each alias counted as everything it stands for
_LONGEST_NUMBER = 1000  # characters of a whole number


def read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping that a YAML file holds.

    A file that is too large, too deep, repeats a key or whose aliases multiply into too many values is refused before
    memory is spent on it: `ValueError` says in one line, without the file's name, what is wrong; `OSError` passes.
    """
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)  # devices and pipes have no size to look at
    if len(content) > LARGEST:
        raise ValueError(f"more than {LARGEST:,} bytes; accepted are at most that many")
    text = content.decode("utf-8")
    try:
        found = yaml.load(text, _Bounded)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"no valid YAML: {_told(error)}") from None
    if not isinstance(found, dict):
        raise ValueError(f"it must hold a mapping of fields, got {type(found).__name__}")
    return found


class _Bounded(yaml.SafeLoader):
    """PyYAML's safe loader with bounds on depth and number of values, and without repeated keys."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._values = 0
        self._sizes: dict[yaml.Node, int] = {}  # how many values each finished node stands for

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        mark, is_alias = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
        before, self._depth = self._values, self._depth + 1
        if self._depth > _DEEPEST:
            raise _Refused(f"nested more than {_DEEPEST} deep", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return node
        if is_alias and node not in self._sizes:
            raise _Refused("an alias of what it is part of", mark)
        self._values += self._sizes[node] if is_alias else 1
        self._sizes[node] = self._values - before
        if self._values > _MOST_VALUES:
            raise _Refused(f"more than {_MOST_VALUES:,} values, those of aliases included", mark)
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > _LONGEST_NUMBER:
            raise _Refused(f"a number of more than {_LONGEST_NUMBER:,} characters", mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise _Refused(f"key {key!r:.80} appears twice", key_node.start_mark)
            seen.add(key)
        return found

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:  # such as a date in month 13
            raise _Refused(str(error), node.start_mark) from None


class _Refused(yaml.MarkedYAMLError):
    """What a file holds that is not accepted, and where."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


def _told(error: yaml.YAMLError) -> str:
    """The line and the reason, in one line."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return ("" if mark is None else f"line {mark.line + 1}: ") + " ".join(str(reason).split())
