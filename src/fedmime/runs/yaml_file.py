"""Reading YAML from untrusted sources: the only way in for configuration files and recorded configurations.

The safe loader of PyYAML creates no objects of other classes, but a small file can still exhaust memory or time: by
nesting, by aliases that multiply, or by a number with millions of digits. All of these are bounded here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 1_000_000  # bytes of a file
_DEEPEST = 20  # levels of nested mappings and lists
_MOST_VALUES = 100_000  # values of a file, with aliases expanded
_LONGEST_NUMBER = 1000  # characters of an integer, whose conversion takes time quadratic in its length


def read_mapping(path: Path) -> dict[Any, Any]:
    """Read the mapping that a YAML file holds.

    A file that is too large, too deeply nested, repeats a key, or whose aliases expand to too many values is refused
    before memory is spent on it.

    Raises:
        ValueError: what is wrong, in one line without the file's name. OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)  # bounded reading, as devices and pipes do not tell their size
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes; accepted are at most that many")
    text = content.decode("utf-8")
    try:
        found = yaml.load(text, _Bounded)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"no valid YAML: {_told(error)}") from None
    if not isinstance(found, dict):
        raise ValueError(f"it must hold a mapping of fields, got {type(found).__name__}")
    return found


class _Bounded(yaml.SafeLoader):
    """PyYAML's safe loader with bounds on depth and number of values; repeated keys are errors."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._values = 0
        self._sizes: dict[yaml.Node, int] = {}  # number of values of each finished node, aliases expanded

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """Parse one node and count its values.

        An alias counts as many values as the node it stands for, because reading the document expands it. An alias of a
        node that contains it would be infinite, and is refused.
        """
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
        """Build a dictionary and refuse repeated keys, of which PyYAML would silently keep the last."""
        found = super().construct_mapping(node, deep)
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise _Refused(f"key {key!r:.80} appears twice", key_node.start_mark)
            seen.add(key)
        return found

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build a value; one that has no Python equivalent, such as a date in month 13, is refused with its line."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            raise _Refused(str(error), node.start_mark) from None


class _Refused(yaml.MarkedYAMLError):
    """Content that is not accepted, with its position in the file."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


def _told(error: yaml.YAMLError) -> str:
    """The line number and the reason of an error, in one line."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return ("" if mark is None else f"line {mark.line + 1}: ") + " ".join(str(reason).split())
