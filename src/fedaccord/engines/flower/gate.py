"""The one address of a deployment that the outside can reach: it lets nodes through and nobody else.

    nodes --TLS--> gate --TLS, loopback--> SuperLink

Flower serves the nodes' calls and those that submit apps on one port, and asks a credential of the nodes only: whoever
could call `/v1/control/` could run code at every site. So the SuperLink listens on the loopback alone, and the gate
passes on the calls of nodes, which carry a signature that the SuperLink checks, and the question whether it is well.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

_OPEN = ("/health",)
_NODES = "/v1/fleet/"
# A hop's own headers, which are not passed on (RFC 9110, section 7.6.1).
_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"}


def is_let_through(path: str) -> bool:
    """Say whether a call from outside may reach the SuperLink."""
    # Never by what a server behind might make of it: a path with steps up, or written in another way, is refused.
    plain = not any(odd in path for odd in ("..", "//", "%", "\\"))
    return plain and (path in _OPEN or path.startswith(_NODES))


def gate_app(link: str, ca: Path) -> Starlette:
    """Return the gate in front of the SuperLink at `link`, whose certificate `ca` vouches for."""
    client = httpx.AsyncClient(
        base_url=link, verify=ssl.create_default_context(cafile=str(ca)), timeout=None, trust_env=False
    )

    async def pass_on(request: Request) -> Response:
        raw = request.scope["raw_path"].decode("latin-1").partition("?")[0]
        if not is_let_through(raw):
            return PlainTextResponse("only nodes are let through here\n", 403)
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP]
        onward = client.build_request(request.method, raw, headers=headers, content=request.stream())
        try:
            answer = await client.send(onward, stream=True)
        except httpx.TransportError:
            return PlainTextResponse("the SuperLink does not answer\n", 502)
        back = {name: value for name, value in answer.headers.items() if name not in _HOP}

        async def body() -> AsyncIterator[bytes]:
            async with contextlib.aclosing(answer):
                async for part in answer.aiter_raw():
                    yield part

        return StreamingResponse(body(), answer.status_code, back)

    return Starlette(routes=[Route("/{path:path}", pass_on, methods=["GET", "POST"])])


def make_gate(host: str, port: int, certificate: Path, key: Path, link: str, ca: Path) -> uvicorn.Server:
    """Return the gate, ready to run until it is told to exit."""
    config = uvicorn.Config(
        gate_app(link, ca), host=host, port=port, ssl_certfile=str(certificate), ssl_keyfile=str(key),
        log_level="warning", access_log=False, ws="none", lifespan="off",
        timeout_graceful_shutdown=3,
    )  # fmt: skip
    return uvicorn.Server(config)
