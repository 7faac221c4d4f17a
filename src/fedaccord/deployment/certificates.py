"""Certificates and keys of a deployment: a private authority, the server's certificate and one key per site."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedaccord.durable import read_bytes
from fedaccord.errors import UserError

_DAYS = 825  # longest validity that common TLS clients accept for a server
_CURVE = ec.SECP384R1()


@dataclass(frozen=True)
class Authority:
    """A certificate authority; no machine of the deployment needs its key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    def pem(self) -> bytes:
        """Return the certificate, which is public."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def make_authority(name: str) -> Authority:
    """Make a private authority."""
    key = ec.generate_private_key(_CURVE)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    limits = x509.BasicConstraints(ca=True, path_length=0)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return Authority(key, _sign(subject, subject, key, key, limits, _usage(signs=True), identifier))


def make_certificate(authority: Authority, hosts: list[str]) -> tuple[bytes, bytes]:
    """Make a server certificate for host names and addresses; return it and its key as PEM."""
    key = ec.generate_private_key(_CURVE)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    names = x509.SubjectAlternativeName([_name(host) for host in hosts])
    limits = x509.BasicConstraints(ca=False, path_length=None)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    extensions = (names, limits, _usage(signs=False), purpose, issuer)
    certificate = _sign(subject, authority.certificate.subject, key, authority.key, *extensions)
    return certificate.public_bytes(serialization.Encoding.PEM), private_pem(key)


def valid_until(path: Path) -> datetime.date:
    """Return the last day of a certificate; raise UserError if the file is not a certificate."""
    try:
        return x509.load_pem_x509_certificate(read_bytes(path, UserError)).not_valid_after_utc.date()
    except ValueError:
        raise UserError(f"'{path}' is not a certificate in PEM format") from None


def private_pem(key: ec.EllipticCurvePrivateKey, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    """Return a private key as PEM."""
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def make_node_key() -> tuple[bytes, bytes]:
    """Make the signing key of a node; return the private and the public key in OpenSSH format."""
    key = ec.generate_private_key(_CURVE)
    private = private_pem(key, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"


def wire_key(public: bytes) -> bytes:
    """Convert a public key from OpenSSH format to PEM, in which Flower lists the keys of nodes."""
    key = serialization.load_ssh_public_key(public)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def write_secret(path: Path, content: bytes) -> None:
    """Write a private key to a new file that only its owner can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)


def _sign(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing_key: ec.EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    start, end = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=_DAYS)  # clocks differ
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), start, end)
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    return builder.sign(signing_key, hashes.SHA384())


def _usage(signs: bool) -> x509.KeyUsage:
    other = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused = dict.fromkeys((*other, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **unused)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
