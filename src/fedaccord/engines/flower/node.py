"""A site's node: keeps Flower's SuperNode running and the site's host loaded until a signal ends it.

    python -m fedaccord.engines.flower.node SITE_FOLDER

The folder's `link.json` has the server's address and the port of the loopback interface for the node.
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

_RETRY = 15.0  # seconds; after a crash the server lists the old node for a minute and rejects the new one


def main() -> None:
    """Run a site's node."""
    folder = SiteFolder.open(Path(sys.argv[1]).resolve())
    link = json.loads((folder.path / "link.json").read_text(encoding="utf-8"))
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
    threading.Thread(target=_run_keeper, args=(folder,), daemon=True).start()
    while not ending.is_set():
        node[:] = [subprocess.Popen(_command(folder.path, link), stdin=subprocess.DEVNULL)]
        code = node[0].wait()
        if not ending.is_set():
            retry = float(os.environ.get("RETRY_SECONDS", _RETRY))
            folder.log(f"the node ended with exit code {code}; it restarts in {retry:g} s")
            ending.wait(retry)


def _command(folder: Path, link: dict[str, str]) -> list[str]:
    return [
        "flower-supernode",
        f"--superlink={link['address']}",
        f"--root-certificates={folder / 'tls/ca.crt'}",
        f"--auth-supernode-private-key={folder / 'node.key'}",
        "--host=127.0.0.1",
        f"--port={link['port']}",
        f"--node-config=site={json.dumps(str(folder))}",
    ]


def _run_keeper(folder: SiteFolder) -> None:
    from fedaccord.engines.flower.client import answer
    from fedaccord.engines.flower.keeper import run_keeper

    # Opened again for each question, because its owner may have rewritten it.
    run_keeper(folder.path, lambda question: answer(SiteFolder.open(folder.path), question))


if __name__ == "__main__":
    main()
