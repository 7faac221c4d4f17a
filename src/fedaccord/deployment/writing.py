"""Writes a deployment: the server's folder, one folder per site, keys and certificates, scripts and a README.

DIR/
  README.md            where each folder goes, and the commands of the server and the sites
  server/              the experiment, the server's knowledge, the Flower app, certificate, public keys, scripts
  sites/<name>/        the site's part of the experiment, its samples as arrays, its private key, its start script
  authority/           the key that signs certificates; no machine needs it
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from fedaccord import __version__
from fedaccord.adversary.settings import attack_of
from fedaccord.config import Experiment, to_toml
from fedaccord.config_sections import Labels, ServerSection
from fedaccord.data.declarations import Features
from fedaccord.data.sites import FederationData
from fedaccord.deployment import certificates
from fedaccord.deployment.certificates import valid_until, write_secret
from fedaccord.deployment.known import write_known
from fedaccord.durable import read_bytes
from fedaccord.engines.engine import HostSpec
from fedaccord.engines.flower.site_folder import SiteFolder, write_site_folder
from fedaccord.errors import ConfigError, FolderTakenError, UserError, did_you_mean, listed
from fedaccord.experiment import load_federation
from fedaccord.extensions import outside_package
from fedaccord.hosting import site_settings, site_spec
from fedaccord.methods.registry import make_recipe
from fedaccord.runs.model_folder import inputs_of
from fedaccord.runs.site_model import INPUTS
from fedaccord.session import describe_host

_TEMPLATES = resources.files("fedaccord.deployment") / "templates"


@dataclass(frozen=True)
class Address:
    """The address of the server."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read "host:port"."""
        host, _, port = text.rpartition(":")
        if not re.fullmatch(r"[A-Za-z0-9.-]+", host) or not port.isdigit() or not 0 < int(port) < 65536:
            form = "a host name or an IPv4 address and a port, as in server.example.org:9443"
            raise UserError(f"--address must be {form}, not '{text}'")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class GivenCertificate(NamedTuple):
    """An existing certificate of the server: its authority, the certificate and its key."""

    ca: Path
    certificate: Path
    key: Path


def write_deployment(
    experiment: Experiment, base: Path, folder: Path, address: Address, local_port: int, given: GivenCertificate | None
) -> list[str]:
    """Write a deployment of an experiment whose data can be read here; return the sites' folders."""
    if make_recipe(experiment.method_name, experiment.settings).is_pooled:
        name = experiment.method_name
        raise ConfigError(f"method.name: '{name}' moves all samples to one place, so it cannot be deployed")
    if attack_of(experiment.settings) is not None:
        raise ConfigError("method.attack simulates hostile sites in a study, so it cannot be deployed")
    if folder.exists() and any(folder.iterdir()):
        raise FolderTakenError(f"the folder '{folder}' is not empty; give another one")
    if given is not None:
        valid_until(given.certificate)  # raises before anything is written
    experiment = experiment.model_copy(update={"run": experiment.run.model_copy(update={"engine": "flower"})})
    data = load_federation(experiment, base)
    writer = _Writer(experiment, base, folder, address, local_port, data)
    writer.write_server(given)
    writer.write_sites()
    writer.write_readme()
    return [f"sites/{name}" for name in writer.folders.values()]


def write_site_data(experiment: Experiment, base: Path, folder: Path, site: str) -> None:
    """Write a site's samples into its folder, without reading files of other sites or changing other files.

    The experiment must declare what is otherwise derived from all sites: `labels.classes`, and `[features]` for tables.
    """
    sections = {section.name: section for section in experiment.sites or []}
    if site not in sections:
        raise ConfigError(f"there is no [[sites]] with the name '{site}'; {did_you_mean(site, sections)}")
    if experiment.labels.classes is None:
        raise ConfigError("labels.classes is needed: a site alone cannot know the classes of the federation")
    written = SiteFolder.open(folder)
    if written.site != site:
        raise UserError(f"'{folder}' is the folder of site '{written.site}', not of '{site}'")
    alone = experiment.model_copy(update={"sites": [sections[site]], "server": ServerSection()})
    data = load_federation(alone, base)
    _refuse_moments_of_one_site(data, experiment.features)
    host = _with_inputs(site_spec(describe_host(alone, data), data.sites[site]), experiment, data, site)
    for key in ("model", "method", "settings", "seed", "labels", "target"):
        if json.loads(json.dumps(host.spec[key])) != written.spec.get(key):
            difference = f"{key} is {host.spec[key]} here and {written.spec.get(key)} in '{folder}'"
            raise ConfigError(
                f"the experiment or the features differ from those the folder was written for: {difference}"
            )
    _check_same_features(host, written)
    write_site_folder(folder, site, host, written.deployment, written.version, written.code)


def _refuse_moments_of_one_site(data: FederationData, features: Features) -> None:
    """Raise ConfigError if features would be standardised by the moments of one site instead of all sites."""
    if features.standardise != "federation":
        return
    columns = [] if data.features is None else [c.name for c in data.features.columns if c.kind == "number"]
    missing = [name for name in columns if name not in features.given_numbers()]
    if missing:
        known = "a site alone cannot know the moments of the federation"
        raise ConfigError(f"features.numbers should give mean and deviation of {listed(missing)}: {known}")
    if data.moments:
        raise ConfigError(
            "a site alone cannot standardise its arrays by the moments of the federation; use features.standardise = "
            '"site", or "none" for arrays that are standardised already'
        )


def _check_same_features(host: HostSpec, written: SiteFolder) -> None:
    """Raise ConfigError if a site would encode a column in another way than the other sites."""
    plans = [(spec.get(INPUTS) or {}).get("features") for spec in (host.spec, written.spec)]
    if None in plans:
        return
    ours, theirs = ({column["name"]: column for column in json.loads(json.dumps(plan))["columns"]} for plan in plans)
    differing = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    if differing:
        way = "give moments and values in [features], so that every site encodes them in the same way"
        raise ConfigError(f"the columns {listed(differing)} would be encoded differently from the other sites; {way}")


def _with_inputs(host: HostSpec, experiment: Experiment, data: FederationData, site: str) -> HostSpec:
    """Return a site's host with the description of its inputs, which the site's own predictions need."""
    inputs = inputs_of(data, experiment.features.header, data.scaling().get(site))
    return replace(host, spec=host.spec | {INPUTS: inputs.model_dump(mode="json")})


@dataclass
class _Writer:
    experiment: Experiment
    base: Path
    folder: Path
    address: Address
    local_port: int
    data: FederationData

    def __post_init__(self) -> None:
        self.folders = _folder_names(sorted(self.data.sites))
        self.deployment = uuid.uuid4().hex
        self.authority = certificates.make_authority(f"FedAccord {self.experiment.name} {self.deployment[:8]}")
        self.server = self.folder / "server"
        (self.folder / "sites").mkdir(parents=True)
        # Folders with samples, memories or keys are private before anything is written to them.
        sites = [self.folder / "sites" / name for name in self.folders.values()]
        for private in (self.server, self.folder / "authority", *sites):
            private.mkdir(mode=0o700)
        for name in ("tls", "keys", "runs"):
            (self.server / name).mkdir()

    def write_server(self, given: GivenCertificate | None) -> None:
        tls, authority = self.server / "tls", self.authority.pem()
        if given is None:
            certificate, key = certificates.make_certificate(self.authority, [self.address.host])
            self.ca = authority
        else:
            self.ca, certificate, key = (read_bytes(path, UserError) for path in given)
        local = certificates.make_certificate(self.authority, ["localhost", "127.0.0.1"])
        for name, (public, secret) in {"server": (certificate, key), "link": local}.items():
            (tls / f"{name}.crt").write_bytes(public)
            write_secret(tls / f"{name}.key", secret)
        (tls / "ca.crt").write_bytes(self.ca)
        (tls / "link-ca.crt").write_bytes(authority)
        (self.folder / "authority/ca.crt").write_bytes(authority)
        write_secret(self.folder / "authority/ca.key", certificates.private_pem(self.authority.key))
        (self.server / "config.toml").write_text(to_toml(_without_private_words(self.experiment)), encoding="utf-8")
        write_known(self.server, self.data)
        link = {
            "host": "127.0.0.1" if self.address.host in ("localhost", "127.0.0.1") else "0.0.0.0",
            "port": self.address.port,
            "link_port": self.local_port,
            "address": str(self.address),
            "deployment": self.deployment,
            "fedaccord": __version__,
            "keys": {site: f"keys/{name}.pub" for site, name in self.folders.items()},
        }
        (self.server / "link.json").write_text(json.dumps(link, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        self._copy_code(self.server)
        every = {package for site in self.data.sites for package in self._packages(site)}
        _write_templates(_TEMPLATES / "server", self.server, trust=",".join(sorted(every)))

    def write_sites(self) -> None:
        host = describe_host(self.experiment, self.data)
        for number, (site, name) in enumerate(self.folders.items()):
            folder = self.folder / "sites" / name
            spec = _with_inputs(site_spec(host, self.data.sites[site]), self.experiment, self.data, site)
            write_site_folder(folder, site, spec, self.deployment, __version__, code=["code"])
            (folder / "tls").mkdir()
            (folder / "tls/ca.crt").write_bytes(self.ca)
            private, public = certificates.make_node_key()
            write_secret(folder / "node.key", private)
            (folder / "node.pub").write_bytes(public)
            (self.server / f"keys/{name}.pub").write_bytes(public)
            link = {"address": str(self.address), "port": self.local_port + 1 + number}
            (folder / "link.json").write_text(json.dumps(link) + "\n", encoding="utf-8")
            (folder / "site.toml").write_text(self._site_part(site), encoding="utf-8")
            self._copy_code(folder)
            _write_templates(_TEMPLATES / "site", folder, folder=name)

    def write_readme(self) -> None:
        row = "| `sites/{}/` | site {} | its part of the experiment, its private key, its samples |"
        _write_templates(
            _TEMPLATES / "whole",
            self.folder,
            rows="\n".join(row.format(folder, site) for site, folder in self.folders.items()),
            count=len(self.folders),
            name=self.experiment.name,
            version=__version__,
            address=self.address,
            port=self.address.port,
            link=self.local_port,
            until=min(valid_until(self.server / "tls" / name) for name in ("server.crt", "link.crt")),
        )

    def _site_part(self, site: str) -> str:
        """Return a site's part of the experiment file: its section and the common settings that name no labels."""
        section = [section for section in self.experiment.sites or [] if section.name == site]
        name = self.experiment.method_name
        method = {"name": name, **site_settings(name, self.experiment.method)}
        defence = self.experiment.method.get("defence") or {}
        if defence.get("reconstruct"):  # sites should see that the server reconstructs their data
            method["defence"] = {key: defence[key] for key in ("kind", "reconstruct")}
        # [fairness] names a label that the site may not know.
        update = {"sites": section or None, "method": method, "labels": Labels(), "server": ServerSection()}
        part = self.experiment.model_copy(update={**update, "data": None, "fairness": None})
        packages = self._packages(site)
        fields = {"packages": ", ".join(packages), "trust": json.dumps(packages)}
        agreement = _fill(_TEMPLATES / "agreement.toml", fields) if packages else ""
        title = f"# The experiment of site '{site}', for information; the node reads `trust`.\n"
        return title + agreement + to_toml(part)

    def _packages(self, site: str) -> list[str]:
        """Return the packages outside FedAccord whose code a site runs."""
        named = {"methods": self.experiment.method_name, "models": self.experiment.model.name}
        named["views"] = self.data.sites[site].view.kind
        found = {outside_package(name, group) for group, name in named.items()}
        return sorted(package for package in found if package is not None)

    def _copy_code(self, folder: Path) -> None:
        """Copy the user's own modules, of method, model and views, to where the site's process finds them."""
        (folder / "code").mkdir()
        for package in sorted({package for site in self.data.sites for package in self._packages(site)}):
            module = self.base / package
            if module.with_suffix(".py").is_file():
                shutil.copy(module.with_suffix(".py"), folder / "code")
            elif module.is_dir():
                shutil.copytree(module, folder / "code" / package, ignore=shutil.ignore_patterns("__pycache__"))


def _without_private_words(experiment: Experiment) -> Experiment:
    """Return the experiment as the server needs it: words for labels, label columns and formats stay with the sites."""
    private: dict[str, Any] = {"synonyms": {}, "label": None, "header": None, "read": None}
    sites = experiment.sites and [site.model_copy(update=private) for site in experiment.sites]
    return experiment.model_copy(update={"sites": sites})


def _folder_names(sites: Sequence[str]) -> dict[str, str]:
    """Return a folder name for each site: the site's name if it is a valid file name, otherwise a number."""
    valid = {site for site in sites if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", site)}
    taken = {site.lower() for site in valid}
    if len(taken) < len(valid):  # the names would collide on a case-insensitive file system
        valid, taken = set(), set()
    folders = {}
    for number, site in enumerate(sites):
        free = (name for n in itertools.count(number) if (name := f"site-{n:04d}") not in taken)
        folders[site] = site if site in valid else next(free)
        taken.add(folders[site])
    return folders


def _write_templates(source: Traversable, target: Path, /, **fields: object) -> None:
    """Write a copy of the texts in a folder, with @NAME@ replaced by the field `name`; scripts become executable."""
    for part in source.iterdir():
        path = target / part.name.removesuffix(".in")  # Python texts end in .in, so that no tool takes them for ours
        if part.is_dir():
            path.mkdir()
            _write_templates(part, path, **fields)
            continue
        path.write_text(_fill(part, fields), encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)


def _fill(template: Traversable, fields: Mapping[str, object]) -> str:
    text = template.read_text(encoding="utf-8")
    for name, value in fields.items():
        text = text.replace(f"@{name.upper()}@", str(value))
    return text
