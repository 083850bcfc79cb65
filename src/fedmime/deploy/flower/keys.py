"""Certificates and keys: what proves to nodes that a server is theirs, and to the server which node it hears.

The server has a certificate of an authority that is made for the deployment alone; nodes are given the authority's
certificate, and trust no other. Every node signs with a key of its own, of which the server knows the public half. A
private key never leaves the machine on which it was made. Files with secrets are readable for their owner only.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmime.errors import ConfigError
from fedmime.files import private_directory

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

AUTHORITY, CERTIFICATE, SERVER_KEY, NODES = "ca.crt", "server.pem", "server.key", "nodes"
_DAYS = 730
_SKEW = datetime.timedelta(hours=1)  # by which clocks may differ


def make_server(directory: Path, hosts: Sequence[str]) -> None:
    """Make a server's certificate, its key and the certificate of the authority behind it.

    The authority's own key is thrown away, so nobody can ever make another certificate that the nodes would trust. A
    server that changes its address gets a new directory.

    Args:
        directory: where they are written to, with a directory for the public keys of nodes.
        hosts: names or addresses under which nodes reach the server.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    hosts = [*dict.fromkeys((*hosts, "127.0.0.1", "::1", "localhost"))]  # the server's own processes reach it by these
    if (directory / CERTIFICATE).exists():
        raise ConfigError(f"keys: {str(directory)!r} holds a certificate already; name another directory")
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    root = _certificate("fedmime authority", authority, authority, None, [])
    leaf = _certificate(hosts[0], server, authority, root, hosts)
    private_directory(directory)
    private_directory(directory / NODES)
    _write(directory / SERVER_KEY, _secret(server, "TraditionalOpenSSL"), 0o600)
    _write(directory / AUTHORITY, _pem(root), 0o644)
    _write(directory / CERTIFICATE, _pem(leaf), 0o644)


def make_node(directory: Path, name: str) -> Path:
    """Make a node's key; its public half is in the file of the same name with `.pub`.

    Returns:
        The path of the private half.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    check_name(name)
    path = directory / name
    if path.exists():
        raise ConfigError(f"keys: {str(path)!r} exists already; a node's key is made once")
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    private_directory(directory)
    _write(path, _secret(key, "OpenSSH"), 0o600)
    _write(directory / f"{name}.pub", public + b"\n", 0o644)
    return path


def check_name(name: str) -> str:
    """A name of a node that can be a file's name, too."""
    if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith(".") or len(name) > 64:
        raise ConfigError(f"name: a node's name has letters, digits, '-', '_' and '.', at most 64, got {name!r}")
    return name


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    signer: EllipticCurvePrivateKey,
    issuer: Certificate | None,
    hosts: Sequence[str],
) -> Certificate:
    """A certificate for a key: of an authority, if it has no issuer, else of a server."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    begun = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), True)
        .add_extension(_usage(authority=issuer is None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
    )
    if hosts:
        begun = begun.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
        begun = begun.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    return begun.sign(signer, hashes.SHA384())


def _usage(authority: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> Any:
    """A host as certificates name it: by its address, if it is one, else by its name."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"keys: a host is a name or an address, got {host!r}") from None


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _secret(key: EllipticCurvePrivateKey, form: str) -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    return key.private_bytes(s.Encoding.PEM, getattr(s.PrivateFormat, form), s.NoEncryption())


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file that never was readable for more than `mode` says."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
        file.write(data)
