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
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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
    builder = _certificate(subject, subject, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Authority(key, builder.sign(key, hashes.SHA384()))


def make_certificate(authority: Authority, hosts: list[str]) -> tuple[bytes, bytes]:
    """Make a server certificate for host names and addresses; return it and its key as PEM."""
    key = ec.generate_private_key(_CURVE)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    builder = _certificate(subject, authority.certificate.subject, key.public_key())
    builder = builder.add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    certificate = builder.sign(authority.key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)
    return certificate, private_pem(key)


def valid_until(path: Path) -> datetime.date:
    """Return the last day of a certificate; raise UserError if the file is not a certificate."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.date()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}") from None
    except ValueError:
        raise UserError(f"'{path}' is not a certificate in PEM format") from None


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM."""
    none = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none)


def make_node_key() -> tuple[bytes, bytes]:
    """Make the signing key of a node; return the private and the public key in OpenSSH format."""
    key = ec.generate_private_key(_CURVE)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
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


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
