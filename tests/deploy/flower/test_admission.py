"""Who is let in: nodes whose keys lie in a directory, for as long as they lie there."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from fedmime.deploy.flower import admission
from fedmime.deploy.flower.admission import Admission
from fedmime.errors import ConfigError


class FakeControl:
    """A SuperLink's register of nodes."""

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        self.count = 0

    def register(self, path: Path) -> int:
        text = path.read_text()
        if text == "no key":
            raise ConfigError("it is no key")
        self.count += 1
        self.nodes[self.count] = text
        return self.count

    def unregister(self, node: int) -> None:
        del self.nodes[node]


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(admission, "_EVERY", 0.0)
    return FakeControl()


def test_files_that_come_and_go(control: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fedmime.nodes")
    found = Admission(control, tmp_path)
    found.update()
    assert control.nodes == {}
    (tmp_path / "a.pub").write_text("key a")
    (tmp_path / "b.pub").write_text("key b")
    (tmp_path / "ignored").write_text("key c")
    found.update()
    found.update()
    assert control.nodes == {1: "key a", 2: "key b"}
    (tmp_path / "a.pub").unlink()
    found.update()
    assert control.nodes == {2: "key b"}
    (tmp_path / "b.pub").write_text("another key b")
    found.update()
    assert control.nodes == {3: "another key b"}
    said = [re.sub(" with key [0-9a-f]{16}", "", each.message) for each in caplog.records]
    assert said == [
        "node a is registered",
        "node b is registered",
        "node a is revoked",
        "node b is revoked",
        "node b is registered",
    ]


def test_a_bad_file_is_told_once_and_ends_nothing(control: Any, tmp_path: Path, caplog) -> None:
    (tmp_path / "bad.pub").write_text("no key")
    (tmp_path / "good.pub").write_text("key")
    found = Admission(control, tmp_path)
    for _ in range(3):
        found.update()
    assert control.nodes == {1: "key"}
    (warning,) = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warning.endswith("is not let in: it is no key")
