"""A reverse proxy in front of the SuperLink that forwards only requests of nodes.

    nodes --TLS--> gate --TLS, loopback--> SuperLink

Flower serves requests of nodes and requests that submit apps on one port, and authenticates only the nodes: anyone who
could reach `/v1/control/` could start a run. So the SuperLink listens on the loopback interface only, and
the gate forwards requests of nodes, whose signature the SuperLink checks, and health checks.

Anyone can connect, so a request is received completely before it gets a connection to the SuperLink: a slow or endless
request blocks no other.
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
# Hop-by-hop headers, which are not forwarded (RFC 9110, section 7.6.1).
_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"}
_SILENCE = 30.0  # seconds between two parts of a request
_LONGEST = 2**31  # bytes of a request; Flower's messages are never longer
_IN_MEMORY = 2**24  # bytes of a request above which it is buffered in a file
_PART = 2**18  # bytes forwarded at a time


def is_forwarded(path: str) -> bool:
    """Return whether a request for a path may reach the SuperLink."""
    # Reject every path that the server behind might normalise: parent steps, double slashes, escapes.
    plain = not any(odd in path for odd in ("..", "//", "%", "\\"))
    return plain and (path in _OPEN or path.startswith(_NODES))


def gate_app(link: str, ca: Path) -> Starlette:
    """Return the gate for the SuperLink at `link`, whose certificate is signed by `ca`."""
    client = httpx.AsyncClient(
        base_url=link,
        verify=ssl.create_default_context(cafile=str(ca)),
        trust_env=False,
        timeout=httpx.Timeout(30, read=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
    )

    async def forward(request: Request) -> Response:
        raw = request.scope["raw_path"].decode("latin-1").partition("?")[0]
        if not is_forwarded(raw):
            return PlainTextResponse("only requests of nodes are forwarded\n", 403)
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP | {"content-length"}]
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as buffer:
            refusal = await _receive(request, buffer)
            if refusal is not None:
                return refusal
            headers.append(("content-length", str(buffer.tell())))
            forwarded = client.build_request(request.method, raw, headers=headers, content=_parts(buffer))
            try:
                answer = await client.send(forwarded, stream=True)
            except httpx.TransportError:
                return PlainTextResponse("the SuperLink does not answer\n", 502)
        answer_headers = {name: value for name, value in answer.headers.items() if name not in _HOP}

        async def body() -> AsyncIterator[bytes]:
            async with contextlib.aclosing(answer):
                async for part in answer.aiter_raw():
                    yield part

        return StreamingResponse(body(), answer.status_code, answer_headers)

    return Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST"])])


async def _receive(request: Request, buffer: IO[bytes]) -> Response | None:
    """Read the body of a request into a buffer; return an error response if it is too long or too slow."""
    try:
        async with asyncio.timeout(_SILENCE) as limit:
            async for part in request.stream():
                limit.reschedule(asyncio.get_running_loop().time() + _SILENCE)
                if buffer.tell() + len(part) > _LONGEST:
                    return PlainTextResponse("too long\n", 413, {"connection": "close"})
                buffer.write(part)
    except TimeoutError:
        return PlainTextResponse("too slow\n", 408, {"connection": "close"})
    except ClientDisconnect:
        return Response(status_code=400)  # nobody receives it
    return None


async def _parts(buffer: IO[bytes]) -> AsyncIterator[bytes]:
    buffer.seek(0)
    while part := buffer.read(_PART):
        yield part


def make_gate(host: str, port: int, certificate: Path, key: Path, link: str, ca: Path) -> uvicorn.Server:
    """Return the gate as a server that is ready to run."""
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
