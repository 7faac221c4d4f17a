"""A server that strangers cannot fill with connections.

Anyone can connect to the gate, and a process has a limited number of open files: 1,100 connections that say nothing
would keep all nodes out. So a connection must finish its TLS handshake and send the headers of a request in time, an
address has a limited number of connections, and all together leave files for the connections to the SuperLink. A new
connection takes the place of the oldest one that has no request; if all have one, it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import sys
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.config import logger

HANDSHAKE = 10.0  # seconds for the TLS handshake
HEADERS = 10.0  # seconds without a request
PER_ADDRESS = 256
ALL = 4000
_OTHER_FILES = 128  # open files that are no connections
_LOOK = 0.5  # seconds between looks at idle connections
_FULL = 0.1  # seconds before the next connection is accepted if the process has no file left


@dataclass(eq=False)
class Connection:
    """A connection from an address, and since when it has had no request."""

    address: str
    idle_since: float
    serving: asyncio.Task[None] | None = None  # the handshake
    protocol: Any = None  # uvicorn's, after the handshake

    def is_busy(self) -> bool:
        """Return whether a request of this connection is being answered."""
        cycle = None if self.protocol is None else self.protocol.cycle
        return cycle is not None and not cycle.response_complete

    def end(self) -> None:
        """Close the connection at once, without waiting for the other side."""
        if self.protocol is not None:
            self.protocol.transport.abort()
        elif self.serving is not None:
            self.serving.cancel()


class CappedServer(uvicorn.Server):
    """A uvicorn server with limits on connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._listeners: list[socket.socket] = []
        self._background: list[asyncio.Task[None]] = []
        self._open: list[Connection] = []  # the oldest first
        self._most = min(ALL, max(PER_ADDRESS, (raise_file_limit() - _OTHER_FILES) // 3))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and accept connections until `shutdown`."""
        await self.lifespan.startup()
        try:
            self._listeners = _listen(self.config.host, self.config.port, self.config.backlog)
        except OSError as error:
            logger.error(error)
            sys.exit(1)
        self._background = [asyncio.create_task(self._accept(listener)) for listener in self._listeners]
        self._background.append(asyncio.create_task(self._end_idle()))
        self.servers = []
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and end all connections."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        for connection in self._open:
            if connection.protocol is None:
                connection.end()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError:  # no file is left, or the other side is gone already
                await asyncio.sleep(_FULL)
                continue
            connection = Connection(network_of(address[0]), loop.time())
            if not self._has_room(connection.address):
                accepted.close()
                continue
            self._open.append(connection)
            connection.serving = asyncio.create_task(self._hand_over(connection, accepted))

    async def _hand_over(self, connection: Connection, accepted: socket.socket) -> None:
        """Do the handshake and hand the connection to uvicorn."""
        config, state = self.config, {"server_state": self.server_state, "app_state": self.lifespan.state}
        protocol: Any = config.http_protocol_class(config=config, **state)  # type: ignore[call-arg]
        accepted.setblocking(False)
        limit = HANDSHAKE if config.ssl else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, accepted, ssl=config.ssl, ssl_handshake_timeout=limit
            )
            connection.protocol = protocol
        except (OSError, TimeoutError, asyncio.CancelledError):  # no TLS, too slow, or ended for a newer connection
            with contextlib.suppress(ValueError):
                self._open.remove(connection)

    def _has_room(self, address: str) -> bool:
        """Return whether a new connection may be opened; end an idle one if that makes room."""
        self._forget_closed()
        same = [connection for connection in self._open if connection.address == address]
        if len(same) < PER_ADDRESS and len(self._open) < self._most:
            return True
        crowd = same if len(same) >= PER_ADDRESS else self._open
        idle = next((connection for connection in crowd if not connection.is_busy()), None)
        if idle is None:
            return False
        self._open.remove(idle)
        idle.end()
        return True

    def _forget_closed(self) -> None:
        connected = self.server_state.connections
        self._open = [each for each in self._open if each.protocol is None or each.protocol in connected]

    async def _end_idle(self) -> None:
        """End connections that have sent no headers of a request in time; before the handshake they have its time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK)
            self._forget_closed()
            for connection in self._open:
                if connection.is_busy():
                    connection.idle_since = loop.time()
                elif connection.protocol is not None and loop.time() - connection.idle_since > HEADERS:
                    connection.end()


def network_of(address: str) -> str:
    """Return the address that connections are counted by; one machine has a whole /64 network of IPv6 addresses."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(found), 64), strict=False))
    return address


def raise_file_limit() -> int:
    """Raise the number of files that this process may open as far as it is allowed to, and return it."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2**16 if hard == resource.RLIM_INFINITY else min(hard, 2**16)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


def _listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, place in dict.fromkeys(found):
            listeners.append(socket.create_server(place[:2], family=family, backlog=backlog))
            listeners[-1].setblocking(False)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners
