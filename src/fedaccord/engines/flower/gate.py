"""A reverse proxy in front of the SuperLink that forwards only requests of nodes.

    nodes --TLS--> gate --TLS, loopback--> SuperLink

Flower serves requests of nodes and requests that submit apps on one port, and authenticates only the nodes: anyone who
could reach `/v1/control/` could start a run. So the SuperLink listens on the loopback interface only, and
the gate forwards requests of nodes, whose signature the SuperLink checks, and health checks.

Anyone can connect, so a request is received completely before it gets a connection to the SuperLink: a slow or endless
request blocks no other. `connections.py` limits the number of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedaccord.engines.flower.connections import CappedServer, network_of

_OPEN = ("/health",)
_NODES = "/v1/fleet/"
# Hop-by-hop headers, which are not forwarded (RFC 9110, section 7.6.1).
_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"}
_SILENCE = 30.0  # seconds between two parts of a request
_SLOWEST = 1000.0  # bytes per second of a request, on average after the first `_SILENCE` seconds
_LONGEST = 2**31  # bytes of a request; Flower's messages are never longer
_IN_MEMORY = 2**24  # bytes of a request above which it is buffered in a file
_PART = 2**18  # bytes forwarded at a time
_PER_ADDRESS, _ALL = 2**32, 2**34  # bytes of requests that are buffered at a time


class Quota:
    """Counts the bytes that are buffered, for each address and for all together."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()

    def take(self, address: str, number: int) -> bool:
        """Count further bytes of an address; return False, and count nothing, if they are too many."""
        if self._bytes[address] + number > _PER_ADDRESS or self._bytes.total() + number > _ALL:
            return False
        self._bytes[address] += number
        return True

    def give_back(self, address: str, number: int) -> None:
        """Forget bytes that are no longer buffered."""
        self._bytes[address] -= number
        if not self._bytes[address]:
            del self._bytes[address]


class _Counted:
    """The bytes of one request in a quota."""

    def __init__(self, quota: Quota, address: str) -> None:
        self._quota, self._address, self._number = quota, address, 0

    def take(self, number: int) -> bool:
        """Count further bytes."""
        has_room = self._quota.take(self._address, number)
        self._number += number * has_room
        return has_room

    def give_back(self) -> None:
        """Forget all of them."""
        self._quota.give_back(self._address, self._number)


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

    quota = Quota()

    async def forward(request: Request) -> Response:
        raw = request.scope["raw_path"].decode("latin-1").partition("?")[0]
        if not is_forwarded(raw):
            return PlainTextResponse("only requests of nodes are forwarded\n", 403)
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP | {"content-length"}]
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as buffer, contextlib.ExitStack() as stack:
            address = network_of(request.client.host if request.client else "")
            counted = _Counted(quota, address)
            stack.callback(counted.give_back)
            refusal = await _receive(request, buffer, counted.take)
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


async def _receive(request: Request, buffer: IO[bytes], has_room: Callable[[int], bool]) -> Response | None:
    """Read the body of a request into a buffer; return an error response if it is too long or too slow.

    `has_room` counts further bytes, and returns False if the sender has too many of them buffered.
    """
    start = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(_SILENCE) as limit:
            async for part in request.stream():
                if buffer.tell() + len(part) > _LONGEST:
                    return PlainTextResponse("too long\n", 413, {"connection": "close"})
                if not has_room(len(part)):
                    return PlainTextResponse("too much at a time\n", 429, {"connection": "close"})
                buffer.write(part)
                slow = start + _SILENCE + buffer.tell() / _SLOWEST
                limit.reschedule(min(asyncio.get_running_loop().time() + _SILENCE, slow))
    except TimeoutError:
        return PlainTextResponse("too slow\n", 408, {"connection": "close"})
    except ClientDisconnect:
        return Response(status_code=400)  # nobody receives it
    return None


async def _parts(buffer: IO[bytes]) -> AsyncIterator[bytes]:
    buffer.seek(0)
    while part := buffer.read(_PART):
        yield part


def make_gate(host: str, port: int, certificate: Path, key: Path, link: str, ca: Path) -> CappedServer:
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
    return CappedServer(config)
