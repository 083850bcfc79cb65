"""The log of keys: fingerprints as OpenSSH shows them, in a file of the user's own, at a bounded pace."""

import base64
import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from fedmime.deploy.flower import audit, keys


def test_fingerprints_are_those_of_openssh(tmp_path: Path) -> None:
    public = keys.make_node(tmp_path, "a").with_name("a.pub")
    found = audit.fingerprint(public.read_bytes())
    assert found.startswith("SHA256:")
    if (program := shutil.which("ssh-keygen")) is not None:
        said = subprocess.run([program, "-lf", str(public)], capture_output=True, text=True, check=True).stdout
        assert found in said.split()


def test_both_ways_to_write_a_key_have_one(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as s

    text = keys.make_node(tmp_path, "a").with_name("a.pub").read_bytes()
    pem = s.load_ssh_public_key(text).public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    assert audit.fingerprint(pem) == audit.fingerprint(text)


@pytest.mark.parametrize("garbage", [b"", b"-----", b"ssh-rsa", b"\xff" * 40])
def test_what_is_no_key_has_none(garbage: bytes) -> None:
    assert audit.fingerprint(garbage) == "no key"


def test_the_file_is_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "nodes.log"
    path.write_text("earlier\n")
    path.chmod(0o644)
    handler = audit.written_to(path)
    handler.emit(logging.makeLogRecord({"msg": "a line"}))
    handler.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("earlier\n")
    assert path.read_text().endswith(" a line\n")


def test_refusals_cannot_fill_the_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    found = audit.Refusals(lambda: now[0])
    made = [keys.make_node(tmp_path, f"n{k}").with_name(f"n{k}.pub").read_bytes() for k in range(3)]
    headers = [base64.b64encode(each) for each in made]
    for _ in range(5):
        found.add(headers[0], "10.0.0.7", "activate-node", 412)
    found.add(headers[1], "10.0.0.7", "activate-node", 412)
    found.add(b"\xff", "10.0.0.7", "activate-node", 401)
    said = [record.message for record in caplog.records]
    words = "is refused from 10.0.0.7: activate-node, status"
    assert said == [f"{audit.fingerprint(made[k])} {words} 412" for k in (0, 1)] + [f"no key {words} 401"]
    now[0] = 61.0
    found.add(headers[0], "10.0.0.7", "activate-node", 412)
    assert len(caplog.records) == 4
    found._lines = 100
    found.add(headers[2], "10.0.0.7", "activate-node", 412)
    assert len(caplog.records) == 4
