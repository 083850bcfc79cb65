"""Frames: what is packed is unpacked, anything else is refused, and nothing is ever unpickled."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmime as fm
from fedmime.deploy.protocol import MOST_HEADER_BYTES, Frame, FrameError, TooLarge, pack, unpack

FIELDS = st.dictionaries(st.text(max_size=5).filter(lambda name: name != "kind"), st.integers() | st.text(max_size=5))
ROOT = Path(fm.__file__).parent


@given(st.text(max_size=10), FIELDS, st.binary(max_size=50))
def test_what_is_packed_is_unpacked(kind: str, fields: dict[str, object], payload: bytes) -> None:
    frame = Frame(kind, fields, payload)
    assert unpack(pack(frame), len(payload)) == frame


def _raw(header: bytes, payload: bytes = b"", version: int = 1, magic: bytes = b"FMIM", length: int | None = None):
    return struct.pack("<4sHI", magic, version, len(header) if length is None else length) + header + payload


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "at least"),
        (b"FMIM\x01", "at least"),
        (_raw(b"{}", magic=b"PK\x03\x04"), "does not begin"),
        (_raw(b'{"kind":"a"}', version=2), "version 2"),
        (_raw(b'{"kind":"a"}', length=99), "claims 99 bytes"),
        (_raw(b"", length=MOST_HEADER_BYTES + 1) + bytes(MOST_HEADER_BYTES + 1), "claims"),
        (_raw(b"{"), "no JSON"),
        (_raw(b"\xff\xfe"), "no JSON"),
        (_raw(b"[" * 60000), "no JSON"),
        (_raw(b'{"kind":"a","n":' + b"9" * 5000 + b"}"), "no JSON"),
        (_raw(b'{"kind":"a","kind":"b"}'), "stands twice"),
        (_raw(b'{"kind":"a","n":NaN}'), "NaN"),
        (_raw(b'{"kind":"a","n":-Infinity}'), "Infinity"),
        (_raw(b"[]"), "no kind"),
        (_raw(b'{"n":1}'), "no kind"),
        (_raw(b'{"kind":1}'), "no kind"),
    ],
)
def test_anything_else_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        unpack(data, 1 << 20)


def test_a_payload_is_bounded() -> None:
    data = pack(Frame("a", {}, bytes(11)))
    assert len(unpack(data, 11).payload) == 11
    with pytest.raises(TooLarge, match="11 bytes, accepted are at most 10"):
        unpack(data, 10)


def test_a_header_is_bounded_and_holds_json_only() -> None:
    with pytest.raises(FrameError, match="the header has"):
        pack(Frame("a", {"x": "y" * MOST_HEADER_BYTES}))
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack(Frame("a", {"x": float("nan")}))
    assert json.loads(pack(Frame("a", {"x": 1}))[10:]) == {"kind": "a", "x": 1}


UNSAFE = re.compile(r"(import|from)\s+(pickle|cloudpickle|dill|marshal|shelve)|allow_pickle\s*=\s*True|\b(eval|exec)\(")


def test_no_module_of_deployment_can_unpickle() -> None:
    files = sorted((ROOT / "deploy").rglob("*.py"))
    assert len(files) > 10
    found = [(path.name, match.group()) for path in files if (match := UNSAFE.search(path.read_text()))]
    assert found == []


def test_passing_messages_on_needs_no_jax() -> None:
    """The public names are there, and the modules that a thin process needs do not import JAX."""
    assert set(fm.deploy.__all__) <= set(dir(fm.deploy))
    assert all(getattr(fm.deploy, name) is not None for name in fm.deploy.__all__)
    with pytest.raises(AttributeError, match="simulate"):
        _ = fm.deploy.simulate  # type: ignore[attr-defined]
    probe = "import fedmime.deploy.messages, fedmime.deploy.transport, sys; print('jax' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run(
        [sys.executable, "-c", probe], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"
