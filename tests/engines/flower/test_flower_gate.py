"""The gate against callers that nobody knows: those who send slowly, too much, or nothing keep no node waiting."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from fleet import free_ports, within

from fedaccord.deployment.certificates import make_authority, make_certificate

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
import json, sys
from pathlib import Path
from fedaccord.engines.flower import gate
vars(gate).update(json.loads(sys.argv[1]))
place = Path(sys.argv[2])
gate.make_gate("127.0.0.1", int(sys.argv[3]), place / "crt", place / "key", sys.argv[4], place / "ca").run()
"""


@contextlib.contextmanager
def served(folder, **settings):
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
    words = [sys.executable, "-c", PROGRAM, json.dumps(settings), folder, str(port), link]
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


def stall(port: int) -> ssl.SSLSocket:
    """Begin a call as a node's, from anywhere and without a key, and say no more."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    caller = trust.wrap_socket(socket.create_connection(("127.0.0.1", port), 8))
    caller.sendall(f"POST {NODES} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n".encode())
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
