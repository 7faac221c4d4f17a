"""The gate against callers that nobody knows: those who send slowly, too much, or nothing keep no node waiting."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from fleet import free_ports, within

from fedaccord.deployment.certificates import make_authority, make_certificate
from fedaccord.engines.flower.connections import network_of, raise_file_limit

NODES = "/v1/fleet/x"


class Behind(BaseHTTPRequestHandler):
    """In the place of the SuperLink: says how much it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers["content-length"])
        said = f"{length} {len(self.rfile.read(length))}".encode()
        self.server.heard.append(said)
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # connections that the gate let go of


PROGRAM = """
import json, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))  # as on many machines
from fedaccord.engines.flower import connections, gate
vars(gate).update(json.loads(sys.argv[1]))
vars(connections).update(json.loads(sys.argv[2]))
place = Path(sys.argv[3])
gate.make_gate("127.0.0.1", int(sys.argv[4]), place / "crt", place / "key", sys.argv[5], place / "ca").run()
"""


@contextlib.contextmanager
def served(folder, limits=None, **settings):
    """Serve a gate, in a process of its own, and what is behind it; gives a caller, its port and what was heard."""
    authority = make_authority("some")
    certificate, key = make_certificate(authority, ["localhost", "127.0.0.1"])
    for name, content in (("ca", authority.pem()), ("crt", certificate), ("key", key)):
        (folder / name).write_bytes(content)
    behind = Quiet(("127.0.0.1", 0), Behind)
    behind.heard = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    # The handshake in the thread of each connection: one that is slow is not in the way of others here.
    behind.socket = context.wrap_socket(behind.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=behind.serve_forever, args=(0.05,))
    thread.start()
    port, link = free_ports(1), f"https://127.0.0.1:{behind.server_address[1]}"
    words = [sys.executable, "-c", PROGRAM, json.dumps(settings), json.dumps(limits or {}), folder, str(port), link]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    trust = ssl.create_default_context(cafile=folder / "ca")
    try:
        within(30, lambda: answers(port), "the gate is open")
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trust, timeout=8, trust_env=False) as client:
            yield client, port, behind.heard
    finally:
        process.kill()
        process.wait()
        behind.shutdown()
        thread.join()
        behind.server_close()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2):
        return True
    return False


def stall(port: int, length: int = 9) -> ssl.SSLSocket:
    """Begin a call as a node's, from anywhere and without a key, and say no more."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    caller = trust.wrap_socket(socket.create_connection(("127.0.0.1", port), 8))
    caller.sendall(f"POST {NODES} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode())
    return caller


@pytest.mark.slow
def test_callers_that_stall_keep_no_node_waiting(tmp_path):
    with served(tmp_path) as (client, port, heard), contextlib.ExitStack() as stalled:
        for _ in range(110):
            stalled.enter_context(stall(port))
        assert client.post(NODES, content=b"hello").text == "5 5"
        assert heard == [b"5 5"]


def test_one_that_says_nothing_more_is_told_so_and_let_go(tmp_path):
    with served(tmp_path, _SILENCE=0.2) as (_, port, heard), stall(port) as caller:
        said = b""
        while part := caller.recv(1000):  # until the gate hangs up
            said += part
        assert said.startswith(b"HTTP/1.1 408 ")
        assert heard == []


def test_a_call_is_passed_on_whole_unless_it_is_too_long(tmp_path):
    with served(tmp_path, _LONGEST=100_000, _IN_MEMORY=1000, _PART=999) as (client, _, heard):
        assert client.post(NODES, content=b"x" * 100_000).text == "100000 100000"
        assert client.post(NODES, content=iter([b"x" * 7, b"x" * 5000])).text == "5007 5007"  # of no stated length
        assert client.post(NODES).text == "0 0"
        assert client.post(NODES, content=b"x" * 100_001).status_code == 413
        assert len(heard) == 3


def silent(port: int) -> socket.socket:
    """Connect and say nothing, not even a greeting of TLS."""
    return socket.create_connection(("127.0.0.1", port), 8)


def greeted(port: int) -> ssl.SSLSocket:
    """Do the handshake of TLS and send no request."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    return trust.wrap_socket(socket.create_connection(("127.0.0.1", port), 8))


def test_1100_idle_connections_keep_no_node_out(tmp_path):
    number = min(1100, (raise_file_limit() - 300) // 2)  # both ends of a connection are files of this process
    with served(tmp_path) as (client, port, heard), contextlib.ExitStack() as idle:
        for _ in range(number):
            idle.enter_context(silent(port))
        assert client.post(NODES, content=b"hello").text == "5 5"
        for _ in range(100):
            idle.enter_context(greeted(port))
        assert client.post(NODES, content=b"again").text == "5 5"
        assert heard == [b"5 5", b"5 5"]


@pytest.mark.parametrize(
    ("open_one", "limit"), [(silent, {"HANDSHAKE": 0.3}), (greeted, {"HEADERS": 0.3, "_LOOK": 0.1})]
)
def test_a_connection_without_a_request_is_let_go_in_time(tmp_path, open_one, limit):
    with served(tmp_path, limits=limit) as (client, port, _), open_one(port) as caller:
        caller.settimeout(5)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert caller.recv(100) == b""
        assert client.post(NODES, content=b"hello").text == "5 5"


def test_headers_that_never_end_are_let_go_too(tmp_path):
    limit = {"HEADERS": 0.5, "_LOOK": 0.1}
    with served(tmp_path, limits=limit) as (_, port, heard), greeted(port) as caller:
        caller.sendall(f"POST {NODES} HTTP/1.1\r\nhost: x\r\n".encode())
        caller.settimeout(5)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert caller.recv(100) == b""
        assert heard == []


def test_an_address_has_so_many_connections_and_busy_ones_stay(tmp_path):
    with served(tmp_path, limits={"PER_ADDRESS": 3}) as (client, port, heard), contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(stall(port)) for _ in range(2)]
        time.sleep(0.5)  # until the gate has read their headers
        for _ in range(5):
            stack.enter_context(greeted(port))  # each takes the place of the one before
        assert client.post(NODES, content=b"hello").text == "5 5"
        for caller in waiting:
            caller.sendall(b"123456789")
            assert caller.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert sorted(heard) == [b"5 5", b"9 9", b"9 9"]


def test_a_new_connection_is_refused_if_all_others_have_a_request(tmp_path):
    with served(tmp_path, limits={"PER_ADDRESS": 2}) as (_, port, heard), contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(stall(port)) for _ in range(2)]
        time.sleep(0.5)  # until the gate has read the headers
        with pytest.raises((ConnectionError, ssl.SSLError)):
            greeted(port)
        waiting[0].sendall(b"123456789")
        assert waiting[0].recv(1000).startswith(b"HTTP/1.1 200 ")
        assert heard == [b"9 9"]


def test_a_request_that_trickles_is_let_go(tmp_path):
    with served(tmp_path, _SILENCE=0.5) as (_, port, heard), stall(port) as caller:
        caller.settimeout(0.2)
        said = b""
        for _ in range(8):  # always in time for the silence, and slower than a kilobyte a second
            with contextlib.suppress(TimeoutError, ConnectionError):
                caller.sendall(b"1")
                said += caller.recv(1000)
            if said:
                break
        assert said.startswith(b"HTTP/1.1 408 ")
        assert heard == []


def test_the_bytes_of_an_address_are_bounded_and_given_back(tmp_path):
    with served(tmp_path, _PER_ADDRESS=10_000, _LONGEST=8_000) as (client, port, heard), stall(port, 8_000) as caller:
        caller.sendall(b"x" * 6_000)
        time.sleep(0.5)  # until the gate has read them
        assert client.post(NODES, content=b"x" * 5_000).status_code == 429
        assert client.post(NODES, content=b"x" * 3_000).text == "3000 3000"
        caller.sendall(b"x" * 2_000)
        assert caller.recv(1000).startswith(b"HTTP/1.1 200 ")
        for _ in range(3):
            assert client.post(NODES, content=b"x" * 7_000).text == "7000 7000"
        assert len(heard) == 5


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_connections_are_counted_by_machine(address, network):
    assert network_of(address) == network
