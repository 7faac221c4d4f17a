"""A tap on the wire to one node: TLS on both sides, and a copy of every byte that goes to it.

As a module: `Tap`, the test's end. As a script: the tap itself, a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key


class Tap:
    """Stands between a node and the gate, with a certificate of the deployment's own authority."""

    def __init__(self, deployment: Path, port: int, gate: int, environment: dict[str, str]) -> None:
        from fedaccord.deployment.certificates import Authority, make_certificate

        ca = deployment / "authority"
        authority = Authority(
            load_pem_private_key((ca / "ca.key").read_bytes(), None),
            x509.load_pem_x509_certificate((ca / "ca.crt").read_bytes()),
        )
        (deployment / "tap.pem").write_bytes(b"".join(make_certificate(authority, ["localhost"])))
        self.port, self.copy = port, deployment / "tapped"
        words = [sys.executable, __file__, str(deployment), str(port), str(gate)]
        self.process = subprocess.Popen(words, env=environment)

    def __enter__(self):
        from fleet import within

        within(30, self._listens, "the tap listens")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(15)

    def _listens(self) -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def seen(self) -> bytes:
        return self.copy.read_bytes()

    def messages(self, since: int = 0) -> list[tuple[dict, bytes]]:
        """Return all messages of ours that went by: what each holds by name, dtype and shape, and its bytes."""
        seen, found = self.seen[since:], []
        for at in re.finditer(rb'\{"__metadata__":\{"fedaccord":', seen):
            end = at.start() + int.from_bytes(seen[at.start() - 8 : at.start()], "little")
            with contextlib.suppress(ValueError):
                header = json.loads(seen[at.start() : end])
                held = max((told["data_offsets"][1] for told in header.values() if "data_offsets" in told), default=0)
                found.append((header, seen[at.start() : end + held]))
        return found


def main() -> None:
    import uvicorn

    from fedaccord.engines.flower.gate import gate_app

    deployment, port, gate = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    inner = gate_app(f"https://localhost:{gate}", deployment / "authority/ca.crt")
    copy = (deployment / "tapped").open("ab", buffering=0)

    async def listening(scope, receive, send):
        async def copied(message):
            copy.write(message.get("body", b""))
            await send(message)

        await inner(scope, receive, copied)

    pem = str(deployment / "tap.pem")
    uvicorn.run(
        listening,
        host="127.0.0.1",
        port=port,
        ssl_certfile=pem,
        ssl_keyfile=pem,
        log_level="error",
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main()
