"""A site's folder: its name, how its host is built, and its data as memory-mapped files.

    site.json     name, deployment, entry and spec of the host, the file of each tensor
    site.toml     what the site's staff decide: `trust`, the packages outside FedAccord whose code may run
    data/*.npy    the site's samples as plain arrays, without pickle
    memory/       the site's memories between rounds, by run
    log.txt       messages for the site's staff; traces are only here

The folder is opened for every question, so this must be quick, without importing torch before a task needs it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaccord import __version__
from fedaccord.durable import atomic_write
from fedaccord.errors import ConfigError, DataError, UntrustedError
from fedaccord.plain_text import printable

if TYPE_CHECKING:
    from fedaccord.engines.engine import Host, HostSpec

_DESCRIPTION, _DECISIONS, _DATA = "site.json", "site.toml", "data"
_KEYS = ("site", "deployment", "fedaccord", "entry", "spec", "tensors", "code")  # of site.json, as in SiteFolder


@dataclass(frozen=True)
class SiteFolder:
    """An open folder of a site."""

    path: Path
    site: str
    deployment: str
    version: str  # of FedAccord
    entry: str
    spec: dict[str, Any]
    files: dict[str, str]  # by the name of the tensor
    code: list[str]

    @classmethod
    def open(cls, path: Path) -> SiteFolder:
        """Read a folder that `write_site_folder` wrote; raise DataError if it cannot be read."""
        try:
            description = json.loads((path / _DESCRIPTION).read_text(encoding="utf-8"))
            return cls(path, *(description[key] for key in _KEYS))
        except OSError as error:
            problem = f"{_DESCRIPTION} cannot be read: {error.strerror}"
            raise DataError(f"'{path}' is not the folder of a site: {problem}") from None
        except (ValueError, KeyError, TypeError):
            raise DataError(f"'{path}' is not the folder of a site: its {_DESCRIPTION} is damaged") from None

    @property
    def trust(self) -> list[str]:
        """The packages outside FedAccord that the site has agreed to run, from its `site.toml`."""
        try:
            agreed = tomllib.loads((self.path / _DECISIONS).read_text(encoding="utf-8")).get("trust", [])
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise DataError(f"'{self.path / _DECISIONS}' cannot be read: {error}") from None
        if not isinstance(agreed, list) or not all(isinstance(package, str) for package in agreed):
            raise DataError(f"'{self.path / _DECISIONS}': trust must be a list of package names")
        return agreed

    def written(self) -> tuple[int, ...]:
        """Return when the files that describe the host were written."""
        files = (self.path / name for name in (_DESCRIPTION, _DECISIONS))
        return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)

    def build_host(self) -> Host:
        """Build the host, with read-only tensors that are mapped from the files.

        Raise ConfigError if another version wrote the folder, or if the host would run code of a package that the site
        has not agreed to.
        """
        from fedaccord.engines.engine import OUR_HOST, build_host

        if self.version not in (__version__, ""):  # a simulation writes none
            versions = f"was written by fedaccord {self.version}, but {__version__} is installed"
            raise ConfigError(f"the folder of site '{self.site}' {versions}; install the version that wrote it")
        trust, package = self.trust, self.entry.partition(":")[0].partition(".")[0]
        if package == "fedaccord" and self.entry != OUR_HOST:  # agreeing to other packages must not lead elsewhere
            raise DataError(f"'{self.path / _DESCRIPTION}' is damaged: its entry must be '{OUR_HOST}'")
        if self.entry != OUR_HOST and package not in trust:
            raise self._refusal(package)
        for folder in self.code if trust else ():  # without trust nothing is looked for there
            absolute = str((self.path / folder).resolve())
            if absolute not in sys.path:
                sys.path.append(absolute)
        try:
            return build_host(self.entry, self.spec | {"trust": trust}, self._tensors())
        except UntrustedError as error:
            raise self._refusal(error.package) from None

    def _refusal(self, package: str) -> ConfigError:
        return ConfigError(
            f"site '{self.site}' has not agreed to run code of '{package}', which is not part of FedAccord; its staff "
            f'can agree with trust = ["{package}"] in {_DECISIONS} of its folder'
        )

    def log(self, text: str) -> None:
        """Append a line to the site's log, with the time."""
        try:
            with (self.path / "log.txt").open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(text)}\n")
        except OSError as error:  # a full disk must not prevent an answer
            sys.stderr.write(f"the log of site '{self.site}' cannot be written ({error.strerror}): {printable(text)}\n")

    def _tensors(self) -> dict[str, Any]:
        import numpy as np
        import torch

        tensors = {}
        for name, file in self.files.items():
            place = self.path / _DATA / Path(file).name
            try:
                # Copy on write, because torch accepts no read-only memory and the file must not change. The header of
                # an .npy file is a multiple of 64 bytes, so data are aligned as in the embedded engine, and sums round
                # the same way.
                array = np.load(place, mmap_mode="c", allow_pickle=False)
            except OSError as error:
                raise DataError(f"'{place}' cannot be read: {error.strerror or error}") from None
            except (ValueError, EOFError):  # numpy's message suggests to unpickle the file
                raise DataError(f"'{place}' cannot be read: it is not an .npy file of numbers") from None
            # An empty array cannot be mapped.
            tensors[name] = torch.from_numpy(np.array(array) if array.size == 0 else array)
        return tensors


def write_site_folder(
    path: Path, site: str, host: HostSpec, deployment: str, version: str, code: Sequence[str] = ()
) -> None:
    """Write a site's folder; `code` lists the folders, relative to it, with the modules of its model."""
    import numpy as np

    (path / _DATA).mkdir(parents=True, exist_ok=True)
    files = {name: f"{number:04d}.npy" for number, name in enumerate(sorted(host.tensors))}
    for name, file in files.items():
        # Not in place, because the keeper may have the old file mapped.
        with atomic_write(path / _DATA / file) as new:
            np.save(new, host.tensors[name].contiguous().numpy(), allow_pickle=False)
    values = (site, deployment, version, host.entry, host.spec, files, list(code))
    description = dict(zip(_KEYS, values, strict=True))
    write_site_file(path / _DESCRIPTION, (json.dumps(description, indent=1, ensure_ascii=False) + "\n").encode())


def write_site_file(target: Path, content: bytes) -> None:
    """Write a file of a site atomically; several processes may write it at the same time."""
    with atomic_write(target, f".{os.getpid()}") as file:
        file.write(content)
