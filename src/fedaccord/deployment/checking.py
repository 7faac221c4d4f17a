"""`fedaccord deploy --check`: finds problems of a deployment before the first round."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import re
import socket
import ssl
import stat
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from fedaccord import __version__
from fedaccord.errors import FedAccordError, UserError
from fedaccord.extensions import importable

FLOWER = ((1, 41), (1, 43))  # supported versions: from the first, below the second
_SOON = datetime.timedelta(days=14)
_CONTROL = "/v1/control/list-runs"


def check_folder(folder: Path) -> list[str]:
    """Check a whole deployment, the server's folder or a site's folder; return one sentence per problem."""
    if (folder / "server").is_dir() and (folder / "sites").is_dir():
        parts = [folder / "server", *sorted(path for path in (folder / "sites").iterdir() if path.is_dir())]
        found = [f"{part.relative_to(folder)}: {problem}" for part in parts for problem in check_folder(part)]
        return [*found, *_check_registered_keys(folder)]
    for file, check in {"site.json": _check_site, "known.json": _check_server}.items():
        if (folder / file).is_file():
            # The other checks need these packages.
            return [*_check_packages()] or [*_check_machine(folder), *check(folder)]
    raise UserError(f"'{folder}' was not written by `fedaccord deploy`: it has neither site.json nor known.json")


def _check_packages() -> Iterator[str]:
    for package in ("flwr", "cryptography"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            yield f'{package} is not installed: pip install "fedaccord[flower]"'


def _check_machine(folder: Path) -> Iterator[str]:
    found = metadata.version("flwr")
    if not FLOWER[0] <= tuple(int(part) for part in found.split(".")[:2]) < FLOWER[1]:
        yield f"flwr {found} is installed, but 1.41 or 1.42 is needed"
    if _others_have_access(folder):
        yield f"other users of this machine can access the folder: chmod 700 '{folder}'"


def _check_site(folder: Path) -> Iterator[str]:
    from fedaccord.engines.flower.site_folder import SiteFolder

    try:
        site = SiteFolder.open(folder)
    except FedAccordError as error:
        yield str(error)
        return
    other_version = [*_check_version(site.version)]
    yield from other_version
    try:
        if not other_version:  # otherwise the host is not built, for the same reason
            host: Any = site.build_host()
            yield from _check_samples(host.sites[site.site])
    except (FedAccordError, ImportError) as error:
        yield f"the site's data cannot be used: {error}"
    except Exception as error:  # a user's model may raise anything
        yield f"the site's host cannot be built: {type(error).__name__}: {error}"
    yield from _check_key_pair(folder)
    link = _read_link(folder)
    if link is None:
        yield "link.json cannot be read, so the address of the server is unknown"
    else:
        yield from _check_connection(link["address"], folder / "tls/ca.crt")


def _check_samples(site: Any) -> Iterator[str]:
    import torch

    for part, samples in (("training", site.train), ("test", site.test)):
        if len(samples.x) != len(samples.target):
            yield f"there are {len(samples.x)} {part} samples, but {len(samples.target)} annotations"
        elif not bool(torch.isfinite(samples.x).all()):
            yield f"a {part} sample has a value that is not finite"
    if not len(site.train.x):
        yield "there is no training sample"


def _check_server(folder: Path) -> Iterator[str]:
    from fedaccord.config import load_experiment
    from fedaccord.deployment.known import read_known

    link = _read_link(folder, "keys", "fedaccord", "deployment")
    if link is None:
        yield "link.json cannot be read"
        return
    yield from _check_version(link["fedaccord"])
    try:
        with importable(folder / "code"):
            load_experiment(folder / "config.toml")
            known = read_known(folder)
    except FedAccordError as error:
        yield str(error)
        return
    for site in sorted(known.sites.keys() - link["keys"].keys()):
        yield f"there is no public key for site '{site}'"
    for site, file in link["keys"].items():
        yield from _check_public_key(folder / file, f"the public key of site '{site}', {file},")
    for secret in ("tls/server.key", "tls/link.key"):
        yield from _check_secret(folder / secret)
    host = link["address"].rpartition(":")[0]
    yield from _check_certificate(folder / "tls/server.crt", folder / "tls/server.key", host)
    yield from _check_certificate(folder / "tls/link.crt", folder / "tls/link.key", "the SuperLink, tls/link.crt,")
    yield from _check_connection(link["address"], folder / "tls/ca.crt", "start it with ./start.sh")


def _check_version(written: str) -> Iterator[str]:
    if written != __version__:
        yield f"the folder was written by fedaccord {written}, but {__version__} is installed"


def _read_link(folder: Path, *needed: str) -> dict[str, Any] | None:
    try:
        link = json.loads((folder / "link.json").read_text(encoding="utf-8"))
        is_complete = isinstance(link, dict) and all(name in link for name in needed)
        return link if is_complete and re.fullmatch(r".+:\d+", link["address"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check_registered_keys(folder: Path) -> Iterator[str]:
    """Compare the public key in each site's folder with the one registered at the server."""
    for public in sorted((folder / "server/keys").glob("*.pub")):
        node_key = folder / "sites" / public.stem / "node.pub"
        if node_key.is_file() and node_key.read_bytes().split()[:2] != public.read_bytes().split()[:2]:
            yield f"sites/{public.stem}: node.pub differs from the key registered at server/keys/{public.name}"


def _check_public_key(path: Path, what: str) -> Iterator[str]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        load_ssh_public_key(path.read_bytes())
    except OSError:
        yield f"{what} is missing"
    except (ValueError, UnsupportedAlgorithm):
        yield f"{what} is not a key in OpenSSH format"


def _check_secret(path: Path) -> Iterator[str]:
    if path.is_file() and _others_have_access(path):
        yield f"other users of this machine can read {path.name}: chmod 600 {path.name}"


def _others_have_access(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def _check_key_pair(folder: Path) -> Iterator[str]:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    try:
        private, public = (folder / "node.key").read_bytes(), (folder / "node.pub").read_bytes()
    except OSError as error:
        yield f"{Path(error.filename).name} cannot be read: {error.strerror}"
        return
    yield from _check_secret(folder / "node.key")
    try:
        if load_ssh_private_key(private, None).public_key() != load_ssh_public_key(public):
            yield "node.key and node.pub do not belong together"
    except (ValueError, TypeError):  # TypeError: the key has a password, which nobody could enter when a node starts
        yield "node.key or node.pub is not a key in OpenSSH format without a password"


def _check_certificate(path: Path, key: Path, host: str) -> Iterator[str]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        private = load_pem_private_key(key.read_bytes(), None)
    except OSError as error:
        yield f"{Path(error.filename).name} cannot be read: {error.strerror}"
        return
    except (ValueError, TypeError):
        yield f"{path.name} and {key.name} are not a certificate and a key in PEM format without a password"
        return
    if private.public_key() != certificate.public_key():
        yield f"{path.name} and {key.name} do not belong together"
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    if left < _SOON:
        until = certificate.not_valid_after_utc.date()
        yield f"the certificate of {host} {'expired' if left.total_seconds() < 0 else 'expires'} on {until}"


def _check_connection(
    address: str, ca: Path, hint: str = "is it running, and does a firewall block it?"
) -> Iterator[str]:
    """Check that a node can connect and trusts the certificate, and that control requests are rejected."""
    host, _, port = address.rpartition(":")
    try:
        trust = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError):
        yield "tls/ca.crt cannot be read as a certificate"
        return
    try:
        if _status(host, int(port), trust, "GET", "/health") != 200:
            yield f"the server at {address} answers, but its SuperLink does not"
            return
        if _status(host, int(port), trust, "POST", _CONTROL) != 403:
            yield f"the server at {address} lets anyone start runs: block requests for /v1/control/"
    except ssl.SSLCertVerificationError as error:
        yield f"the certificate of {address} is not trusted: {error.verify_message}"
    except ssl.SSLError as error:
        yield f"the program at {address} does not use TLS: {error.reason}"
    except socket.gaierror:
        yield f"the host name '{host}' cannot be resolved"
    except (OSError, http.client.HTTPException) as error:
        yield f"the server at {address} cannot be reached ({error}); {hint}"


def _status(host: str, port: int, trust: ssl.SSLContext, method: str, path: str) -> int:
    with contextlib.closing(http.client.HTTPSConnection(host, port, timeout=10, context=trust)) as connection:
        connection.request(method, path)
        return connection.getresponse().status
