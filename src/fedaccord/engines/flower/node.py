"""A site's node: keeps Flower's SuperNode running and the site's host ready, until it is told to end.

    python -m fedaccord.engines.flower.node SITE_FOLDER

The folder's `link.json` says where the server is and which port of the loopback the node may use.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

from fedaccord.engines.flower.environment import flower_environment
from fedaccord.engines.flower.site_folder import SiteFolder

_RETRY = 15.0  # seconds; after a crash the server holds the old node for a minute and refuses the new one


def main() -> None:
    """Run a site's node."""
    folder = SiteFolder.open(Path(sys.argv[1]).resolve())
    told = json.loads((folder.path / "link.json").read_text(encoding="utf-8"))
    os.environ.update(flower_environment(folder.path))
    ending = threading.Event()
    node: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: FrameType | None) -> None:
        ending.set()
        for process in node:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    threading.Thread(target=_keep_host, args=(folder,), daemon=True).start()
    while not ending.is_set():
        node[:] = [subprocess.Popen(_command(folder, told), stdin=subprocess.DEVNULL)]
        code = node[0].wait()
        if not ending.is_set():
            retry = float(os.environ.get("RETRY_SECONDS", _RETRY))
            folder.log(f"the node ended with exit code {code}; it is started again in {retry:g} s")
            ending.wait(retry)


def _command(folder: SiteFolder, told: dict[str, str]) -> list[str]:
    return [
        "flower-supernode",
        "--superlink",
        told["address"],
        "--root-certificates",
        str(folder.path / "tls/ca.crt"),
        "--auth-supernode-private-key",
        str(folder.path / "node.key"),
        "--host",
        "127.0.0.1",
        "--port",
        str(told["port"]),
        "--node-config",
        f"site={json.dumps(str(folder.path))}",
    ]


def _keep_host(folder: SiteFolder) -> None:
    from fedaccord.engines.flower.client import answer
    from fedaccord.engines.flower.keeper import keep

    # Opened anew for each question: its owner may have written it anew.
    keep(folder.path, lambda question: answer(SiteFolder.open(folder.path), question))


if __name__ == "__main__":
    main()
