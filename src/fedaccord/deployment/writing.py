"""Writes a deployment: the server's folder, one folder for each site, keys and certificates, scripts and a README.

DIR/
  README.md            who gets which folder, and the few commands each side types
  server/              the experiment, what the server knows, the Flower app, certificate, public keys, scripts
  sites/<name>/        that site's part, its samples as mapped arrays, its private key, its start script
  authority/           the key that signs certificates; needed at no machine
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaccord import __version__
from fedaccord.config import Experiment, Labels, ServerSection, to_toml
from fedaccord.data.sites import FederationData
from fedaccord.deployment import scripts
from fedaccord.deployment.certificates import (
    make_authority,
    make_certificate,
    make_node_key,
    private_pem,
    valid_until,
    write_secret,
)
from fedaccord.deployment.known import write_known
from fedaccord.engines.flower.site_folder import SiteFolder, write_site_folder
from fedaccord.errors import ConfigError, FolderTakenError, UserError, did_you_mean
from fedaccord.experiment import load_data
from fedaccord.hosting import site_spec, told_to_sites
from fedaccord.methods.without_federation.settings import PooledSettings
from fedaccord.models.registry import is_factory
from fedaccord.opening import describe_host


@dataclass(frozen=True)
class Address:
    """Where the nodes find the server."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read "host:port"."""
        host, _, port = text.rpartition(":")
        if not re.fullmatch(r"[A-Za-z0-9.-]+", host) or not port.isdigit() or not 0 < int(port) < 65536:
            form = "a name or an IPv4 address and a port, as in server.example.org:9443"
            raise UserError(f"--address takes {form}, not '{text}'")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class OwnCertificate:
    """A certificate that the server has already: who vouches for it, the certificate, its key."""

    ca: Path
    certificate: Path
    key: Path


def write_deployment(
    experiment: Experiment,
    base: Path,
    folder: Path,
    address: Address,
    local_port: int,
    own: OwnCertificate | None = None,
) -> list[str]:
    """Write a deployment of an experiment whose data can be read here; returns the sites' folders."""
    if isinstance(experiment.settings, PooledSettings):
        raise ConfigError("method.name: 'pooled' moves all samples to one place, so it cannot be deployed")
    if getattr(experiment.settings, "attack", None) is not None:
        raise ConfigError("method.attack makes sites hostile in a study, so it cannot be deployed")
    if folder.exists() and any(folder.iterdir()):
        raise FolderTakenError(f"the folder '{folder}' is not empty; give another one")
    if own is not None:
        valid_until(own.certificate)  # before anything is written
    experiment = experiment.model_copy(update={"run": experiment.run.model_copy(update={"engine": "flower"})})
    data = load_data(experiment, base)
    writer = _Writer(experiment, base, folder, address, local_port, data)
    writer.write_server(own)
    writer.write_sites()
    writer.write_readme()
    return [f"sites/{place}" for place in writer.places.values()]


def write_own_data(experiment: Experiment, base: Path, folder: Path, site: str) -> None:
    """Put a site's own samples into its folder, reading no other site's file; the rest of the folder stays.

    What sites agree on from all files must then stand in the experiment: `labels.classes`, and for tables `[features]`.
    """
    sections = {section.name: section for section in experiment.sites or []}
    if site not in sections:
        raise ConfigError(f"there is no [[sites]] of the name '{site}'; {did_you_mean(site, sections)}")
    if experiment.labels.classes is None:
        raise ConfigError("labels.classes is needed: a site alone cannot know the classes of the federation")
    written = SiteFolder.open(folder)
    if written.site != site:
        raise UserError(f"'{folder}' is the folder of site '{written.site}', not of '{site}'")
    update = {"sites": [sections[site]], "server": ServerSection()}
    alone = experiment.model_copy(update=update)
    data = load_data(alone, base)
    host = site_spec(describe_host(alone, data), data.sites[site])
    for key in ("model", "method", "settings", "seed", "labels", "target"):
        if json.loads(json.dumps(host.spec[key])) != written.spec.get(key):
            what = f"{key} is {host.spec[key]} here and {written.spec.get(key)} in '{folder}'"
            raise ConfigError(f"the experiment or the features differ from those the folder was written for: {what}")
    write_site_folder(folder, site, host, written.deployment, written.version, written.code)


class _Writer:
    def __init__(
        self, experiment: Experiment, base: Path, folder: Path, address: Address, local_port: int, data: FederationData
    ) -> None:
        self.experiment, self.base, self.folder, self.address = experiment, base, folder, address
        self.local_port, self.data = local_port, data
        self.places = _places(sorted(data.sites))
        self.deployment = uuid.uuid4().hex
        self.authority = make_authority(f"FedAccord {experiment.name} {self.deployment[:8]}")
        self.server = folder / "server"
        (folder / "sites").mkdir(parents=True)
        # Only their owner comes into folders that hold samples, memories or keys, from their first byte on.
        for place in (self.server, folder / "authority", *(folder / "sites" / name for name in self.places.values())):
            place.mkdir(mode=0o700)
        for name in ("tls", "keys", "runs"):
            (self.server / name).mkdir()

    def write_server(self, own: OwnCertificate | None) -> None:
        tls = self.server / "tls"
        (tls / "link-ca.crt").write_bytes(self.authority.pem())
        certificate, key = make_certificate(self.authority, ["localhost", "127.0.0.1"])
        (tls / "link.crt").write_bytes(certificate)
        write_secret(tls / "link.key", key)
        if own is None:
            certificate, key = make_certificate(self.authority, [self.address.host])
            self.ca = self.authority.pem()
        else:
            certificate, key, self.ca = (_read(path) for path in (own.certificate, own.key, own.ca))
        (tls / "server.crt").write_bytes(certificate)
        write_secret(tls / "server.key", key)
        (tls / "ca.crt").write_bytes(self.ca)
        write_secret(self.folder / "authority/ca.key", private_pem(self.authority.key))
        (self.folder / "authority/ca.crt").write_bytes(self.authority.pem())
        (self.server / "config.toml").write_text(to_toml(self.experiment), encoding="utf-8")
        write_known(self.server, self.data)
        for name, text in scripts.app_files().items():
            (self.server / "app" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.server / "app" / name).write_text(text, encoding="utf-8")
        link = {
            "host": "127.0.0.1" if self.address.host in ("localhost", "127.0.0.1") else "0.0.0.0",
            "port": self.address.port,
            "link_port": self.local_port,
            "address": str(self.address),
            "deployment": self.deployment,
            "fedaccord": __version__,
            "keys": {site: f"keys/{place}.pub" for site, place in self.places.items()},
        }
        (self.server / "link.json").write_text(json.dumps(link, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        self._copy_code(self.server)
        _write_script(self.server / "start.sh", scripts.server_script())
        _write_script(self.server / "run.sh", scripts.run_script())
        (self.server / "fedaccord-server.service").write_text(scripts.unit("the server", "server"), encoding="utf-8")

    def write_sites(self) -> None:
        whole = describe_host(self.experiment, self.data)
        for number, (site, place) in enumerate(self.places.items()):
            at = self.folder / "sites" / place
            write_site_folder(
                at, site, site_spec(whole, self.data.sites[site]), self.deployment, __version__, code=["code"]
            )
            (at / "tls").mkdir()
            (at / "tls/ca.crt").write_bytes(self.ca)
            private, public = make_node_key()
            write_secret(at / "node.key", private)
            (at / "node.pub").write_bytes(public)
            (self.server / f"keys/{place}.pub").write_bytes(public)
            link = {"address": str(self.address), "port": self.local_port + 1 + number}
            (at / "link.json").write_text(json.dumps(link) + "\n", encoding="utf-8")
            (at / "site.toml").write_text(self._part(site), encoding="utf-8")
            self._copy_code(at)
            _write_script(at / "start.sh", scripts.node_script())
            (at / "fedaccord-node.service").write_text(scripts.unit(f"site {place}", place), encoding="utf-8")

    def write_readme(self) -> None:
        until = min(valid_until(self.server / "tls" / name) for name in ("server.crt", "link.crt"))
        text = scripts.readme(
            self.places,
            name=self.experiment.name,
            version=__version__,
            address=self.address,
            port=self.address.port,
            link=self.local_port,
            until=until,
        )
        (self.folder / "README.md").write_text(text, encoding="utf-8")

    def _part(self, site: str) -> str:
        """Return a site's part of the experiment file: its own section, and what all agree on without naming labels."""
        own = [section for section in self.experiment.sites or [] if section.name == site]
        method = told_to_sites(self.experiment.method)
        defence = self.experiment.method.get("defence") or {}
        if defence.get("reconstruct"):  # whoever takes part should see that the server looks into its data
            method["defence"] = {key: defence[key] for key in ("kind", "reconstruct")}
        # What is measured of a group names a label too, which need not be this site's.
        update = {
            "sites": own or None,
            "data": None,
            "labels": Labels(),
            "server": ServerSection(),
            "method": method,
            "fairness": None,
        }
        return f"# What site '{site}' takes part in; the node itself reads site.json.\n" + to_toml(
            self.experiment.model_copy(update=update)
        )

    def _copy_code(self, place: Path) -> None:
        """Put the module of a model of one's own beside the data, where the site's process finds it."""
        (place / "code").mkdir()
        name = self.experiment.model.name
        if not is_factory(name):
            return
        module = self.base / name.partition(":")[0].partition(".")[0]
        if module.with_suffix(".py").is_file():
            shutil.copy(module.with_suffix(".py"), place / "code")
        elif module.is_dir():
            shutil.copytree(module, place / "code" / module.name, ignore=shutil.ignore_patterns("__pycache__"))


def _places(sites: Sequence[str]) -> dict[str, str]:
    """Return a folder's name for each site: its own where that is fit for one, a number where it is not."""
    fit = {site for site in sites if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", site)}
    taken = {site.lower() for site in fit}
    if len(taken) < len(fit):  # there are file systems to which these would be one
        fit, taken = set(), set()
    places = {}
    for number, site in enumerate(sites):
        free = (name for n in itertools.count(number) if (name := f"site-{n:04d}") not in taken)
        places[site] = site if site in fit else next(free)
        taken.add(places[site])
    return places


def _write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}") from None
