"""A site's own folder: who it is, how its host is built, and its data as files that are mapped, not read.

    site.json     name, deployment, entry and spec of the host, which file holds which tensor
    data/*.npy    the site's samples; plain arrays, never pickled
    memory/       what the site keeps between rounds, by run
    log.txt       what the site's own people should know; traces are only here

A new process serves every question Flower brings, so all of this must be quick to open, and nothing of it may need
torch before there is work to do.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaccord.durable import atomic_write
from fedaccord.errors import DataError

if TYPE_CHECKING:
    from fedaccord.engines.engine import Host, HostSpec

_DESCRIPTION, _DATA = "site.json", "data"


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder, opened."""

    path: Path
    site: str
    deployment: str
    version: str
    entry: str
    spec: dict[str, Any]
    files: dict[str, str]
    code: tuple[str, ...]

    @classmethod
    def open(cls, path: Path) -> SiteFolder:
        """Read a folder that `write_site_folder` wrote; anything else is a `DataError` that says what is wrong."""
        try:
            told = json.loads((path / _DESCRIPTION).read_text(encoding="utf-8"))
            return cls(
                path,
                told["site"],
                told["deployment"],
                told["fedaccord"],
                told["entry"],
                told["spec"],
                dict(told["tensors"]),
                tuple(told["code"]),
            )
        except OSError as error:
            raise DataError(f"'{path}' is no site's folder: {_DESCRIPTION} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise DataError(f"'{path}' is no site's folder: its {_DESCRIPTION} is damaged") from None

    def build_host(self) -> Host:
        """Build the host from the folder, its tensors mapped from the files; they may not be written to."""
        from fedaccord.engines.engine import build_host

        for place in self.code:
            at = str((self.path / place).resolve())
            if at not in sys.path:
                sys.path.append(at)
        return build_host(self.entry, self.spec, self._tensors())

    def log(self, text: str) -> None:
        """Add a line to the site's log, with the time."""
        try:
            with (self.path / "log.txt").open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        except OSError as error:  # a full disk must not keep a site from answering
            sys.stderr.write(f"the log of site '{self.site}' cannot be written ({error.strerror}): {text}\n")

    def _tensors(self) -> dict[str, Any]:
        import numpy as np
        import torch

        tensors = {}
        for name, file in self.files.items():
            place = self.path / _DATA / Path(file).name
            try:
                # Copy on write: torch takes no read-only memory, and the file stays as it is. An .npy file begins with
                # a header of a multiple of 64 bytes, so the data are aligned as in the embedded engine, which matters
                # to the last bit of a sum.
                array = np.load(place, mmap_mode="c", allow_pickle=False)
            except OSError as error:
                raise DataError(f"'{place}' cannot be read: {error.strerror or error}") from None
            except (ValueError, EOFError):  # numpy's own words advise to open it as a pickle
                raise DataError(f"'{place}' cannot be read: it is no .npy file of numbers") from None
            # An empty array cannot be mapped.
            tensors[name] = torch.from_numpy(np.array(array) if array.size == 0 else array)
        return tensors


def write_site_folder(
    path: Path, site: str, host: HostSpec, deployment: str, version: str, code: Sequence[str] = ()
) -> None:
    """Write a site's folder; `code` names places, from the folder, where the modules of its model are."""
    import numpy as np

    (path / _DATA).mkdir(parents=True, exist_ok=True)
    files = {name: f"{number:04d}.npy" for number, name in enumerate(sorted(host.tensors))}
    for name, file in files.items():
        # Not in place: the process that keeps the host ready may have the old file mapped.
        with atomic_write(path / _DATA / file) as new:
            np.save(new, host.tensors[name].contiguous().numpy(), allow_pickle=False)
    told = {
        "site": site,
        "deployment": deployment,
        "fedaccord": version,
        "entry": host.entry,
        "spec": host.spec,
        "tensors": files,
        "code": list(code),
    }
    write_whole(path / _DESCRIPTION, (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode())


def write_whole(target: Path, content: bytes) -> None:
    """Write a file of a site, at which more than one process may work."""
    with atomic_write(target, f".{os.getpid()}") as file:
        file.write(content)
