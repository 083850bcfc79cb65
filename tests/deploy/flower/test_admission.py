"""Who is let in: nodes whose keys lie in a directory, for as long as they lie there."""

import logging
from pathlib import Path
from typing import Any

import pytest

from fedmime.deploy.flower import admission
from fedmime.deploy.flower.admission import Admission
from fedmime.errors import ClusterError, ConfigError


class FakeControl:
    """A SuperLink's register of nodes. As Flower's does, it takes no key that it has ever had."""

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        self.ever: set[str] = set()
        self.count, self.away = 0, False

    def register(self, path: Path) -> int:
        text = path.read_text()
        if self.away:
            raise ClusterError("the SuperLink is lost")
        if text == "no key":
            raise ConfigError("it is no key")
        if text in self.ever:
            raise ClusterError("Public key already in use")
        self.ever.add(text)
        self.count += 1
        self.nodes[self.count] = text
        return self.count

    def unregister(self, node: int) -> None:
        del self.nodes[node]


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(admission, "_EVERY", 0.0)
    monkeypatch.setattr(admission, "fingerprint", lambda key: f"<{key.decode()}>")
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
    assert [each.message for each in caplog.records] == [
        "<key a> is registered",
        "<key b> is registered",
        "<key a> is revoked",
        "<key b> is revoked",
        "<another key b> is registered",
    ]


def test_a_revoked_key_stays_out_and_a_new_one_is_let_in(
    control: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower keeps the keys that it has had, so one that comes back is told to be replaced, once."""
    file = tmp_path / "a.pub"
    file.write_text("key a")
    found = Admission(control, tmp_path)
    found.update()
    file.unlink()
    found.update()
    file.write_text("key a")
    for _ in range(3):
        found.update()
    assert control.nodes == {}
    (warning,) = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warning == "<key a> is not let in: it was revoked; make a new key, or start the server again"
    file.write_text("a new key")
    found.update()
    assert control.nodes == {2: "a new key"}


def test_a_superlink_that_is_away_for_a_moment_is_asked_again(control: Any, tmp_path: Path) -> None:
    (tmp_path / "a.pub").write_text("key a")
    found = Admission(control, tmp_path)
    control.away = True
    found.update()
    assert control.nodes == {}
    control.away = False
    found.update()
    assert control.nodes == {1: "key a"}


def test_a_bad_file_is_told_once_and_ends_nothing(control: Any, tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "bad.pub").write_text("no key")
    (tmp_path / "good.pub").write_text("key")
    found = Admission(control, tmp_path)
    for _ in range(3):
        found.update()
    assert control.nodes == {1: "key"}
    (warning,) = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warning.endswith("is not let in: it is no key")
