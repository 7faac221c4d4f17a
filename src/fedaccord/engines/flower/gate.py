"""The one address of a deployment that the outside can reach: it lets nodes through and nobody else.

    nodes --TLS--> gate --TLS, loopback--> SuperLink

Flower serves the nodes' calls and those that submit apps on one port, and asks a credential of the nodes only: whoever
could call `/v1/control/` could run code at every site. So the SuperLink listens on the loopback alone, and the gate
passes on the calls of nodes, which carry a signature that the SuperLink checks, and the question whether it is well.

Anyone can call, so a call is taken in whole before it gets a connection to the SuperLink: who sends slowly, or for
ever, keeps nobody else waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

_OPEN = ("/health",)
_NODES = "/v1/fleet/"
# A hop's own headers, which are not passed on (RFC 9110, section 7.6.1).
_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"}
_SILENCE = 30.0  # seconds that a caller may take for the next part of what it sends
_LONGEST = 2**31  # bytes of a call; Flower's own messages cannot be longer
_IN_MEMORY = 2**24  # bytes of a call that are held without a file
_PART = 2**18  # bytes passed on at a time


def is_let_through(path: str) -> bool:
    """Say whether a call from outside may reach the SuperLink."""
    # Never by what a server behind might make of it: a path with steps up, or written in another way, is refused.
    plain = not any(odd in path for odd in ("..", "//", "%", "\\"))
    return plain and (path in _OPEN or path.startswith(_NODES))


def gate_app(link: str, ca: Path) -> Starlette:
    """Return the gate in front of the SuperLink at `link`, whose certificate `ca` vouches for."""
    client = httpx.AsyncClient(
        base_url=link,
        verify=ssl.create_default_context(cafile=str(ca)),
        trust_env=False,
        timeout=httpx.Timeout(30, read=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
    )

    async def pass_on(request: Request) -> Response:
        raw = request.scope["raw_path"].decode("latin-1").partition("?")[0]
        if not is_let_through(raw):
            return PlainTextResponse("only nodes are let through here\n", 403)
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP | {"content-length"}]
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as held:
            refusal = await _take_in(request, held)
            if refusal is not None:
                return refusal
            headers.append(("content-length", str(held.tell())))
            onward = client.build_request(request.method, raw, headers=headers, content=_parts(held))
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


async def _take_in(request: Request, held: IO[bytes]) -> Response | None:
    """Write down what a caller sends; returns what to tell one that sends too much, or nothing for too long."""
    try:
        async with asyncio.timeout(_SILENCE) as limit:
            async for part in request.stream():
                limit.reschedule(asyncio.get_running_loop().time() + _SILENCE)
                if held.tell() + len(part) > _LONGEST:
                    return PlainTextResponse("too long\n", 413, {"connection": "close"})
                held.write(part)
    except TimeoutError:
        return PlainTextResponse("too slow\n", 408, {"connection": "close"})
    except ClientDisconnect:
        return Response(status_code=400)  # which nobody hears
    return None


async def _parts(held: IO[bytes]) -> AsyncIterator[bytes]:
    held.seek(0)
    while part := held.read(_PART):
        yield part


def make_gate(host: str, port: int, certificate: Path, key: Path, link: str, ca: Path) -> uvicorn.Server:
    """Return the gate, ready to run until it is told to exit."""
    config = uvicorn.Config(
        gate_app(link, ca),
        host=host,
        port=port,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        log_level="warning",
        access_log=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=3,
    )
    return uvicorn.Server(config)
