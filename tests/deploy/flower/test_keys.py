"""Certificates and keys: accepted by whom they are meant for, readable for their owner only."""

import ipaddress
import ssl
import stat
from pathlib import Path

import pytest

from fedmime.deploy.flower import keys
from fedmime.errors import ConfigError

x509 = pytest.importorskip("cryptography.x509")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_server_proves_its_names_and_addresses(tmp_path: Path) -> None:
    home = tmp_path / "server"
    keys.make_server(home, ["10.0.0.1", "here.example"])
    leaf = x509.load_pem_x509_certificate((home / keys.CERTIFICATE).read_bytes())
    root = x509.load_pem_x509_certificate((home / keys.AUTHORITY).read_bytes())
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("10.0.0.1"),
        ipaddress.ip_address("127.0.0.1"),
        ipaddress.ip_address("::1"),
    ]
    assert names.get_values_for_type(x509.DNSName) == ["here.example", "localhost"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    context = ssl.create_default_context(cafile=str(home / keys.AUTHORITY))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(home / keys.CERTIFICATE, home / keys.SERVER_KEY)


def test_secrets_are_private_and_the_authority_is_gone(tmp_path: Path) -> None:
    home = tmp_path / "server"
    keys.make_server(home, ["localhost"])
    assert (mode(home), mode(home / keys.NODES), mode(home / keys.SERVER_KEY)) == (0o700, 0o700, 0o600)
    secrets = [file for file in home.iterdir() if file.is_file() and b"PRIVATE" in file.read_bytes()]
    assert secrets == [home / keys.SERVER_KEY]
    with pytest.raises(ConfigError, match="holds a certificate already"):
        keys.make_server(home, ["localhost"])


def test_a_node_has_a_key_of_its_own(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    one, other = (keys.make_node(tmp_path / "keys", name) for name in ("a", "b"))
    assert mode(one) == 0o600
    assert one.read_bytes() != other.read_bytes()
    public = serialization.load_ssh_public_key(one.with_name("a.pub").read_bytes())
    secret = serialization.load_ssh_private_key(one.read_bytes(), None)
    assert secret.public_key() == public
    assert public.curve.name == "secp384r1"
    with pytest.raises(ConfigError, match="exists already"):
        keys.make_node(tmp_path / "keys", "a")


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "a b", "a" * 65, "a\n"])
def test_names_that_are_no_file_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a node's name has letters"):
        keys.make_node(tmp_path, name)


def test_hosts_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a host is a name or an address, got 'ä'"):
        keys.make_server(tmp_path / "server", ["ä"])
