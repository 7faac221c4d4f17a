"""Serves the report of a run to browsers on this machine, made anew whenever the run has recorded something."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedaccord.errors import RunFolderError, UserError
from fedaccord.runs.examined import recorded_alone
from fedaccord.runs.folder import is_locked
from fedaccord.runs.progress import read_any_run
from fedaccord.runs.report import report_page

LOOPBACK = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_SHOWN = ("config.toml", "federation.json", "metrics.jsonl", "summary.json")  # files that the report is made from


class LiveReport:
    """The report of a run, kept until a file of the run changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._version, self._page = "", b""

    def version(self) -> str:
        """Return an entity tag that changes whenever the report would."""
        seen = [str(is_locked(self.folder))]
        for name in _SHOWN:
            try:
                stat = (self.folder / name).stat()
                seen.append(f"{stat.st_mtime_ns}-{stat.st_size}")
            except OSError:
                seen.append("none")
        return f'"{sha256(" ".join(seen).encode()).hexdigest()[:16]}"'

    def page(self) -> tuple[str, bytes]:
        """Return the version and the page; raise RunFolderError if the folder cannot be read."""
        with self._lock:  # several tabs share one page
            version = self.version()  # before the files are read: a later change gives another version
            if version != self._version:
                page = report_page(read_any_run(self.folder), recorded_alone(self.folder), version)
                self._version, self._page = version, page.encode()
            return self._version, self._page


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, report: LiveReport, port: int) -> None:
        self.report = report
        super().__init__((LOOPBACK, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "fedaccord", ""
    timeout = 30  # seconds until a silent connection is closed

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        # Other names may be those of a foreign page whose address was rebound to this machine.
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            return self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"this server answers to 127.0.0.1 and localhost only")
        if self.path != "/":
            return self._answer(HTTPStatus.NOT_FOUND, b"only the report is served, at /")
        if self.headers.get("If-None-Match") == self.server.report.version():
            return self._answer(HTTPStatus.NOT_MODIFIED)
        try:
            version, page = self.server.report.page()
        except RunFolderError as error:
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error).encode())
        return self._answer(HTTPStatus.OK, page, {"ETag": version, "Content-Type": "text/html; charset=utf-8"})

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (HEADERS | {"Content-Type": "text/plain; charset=utf-8"} | (headers or {})).items():
            self.send_header(name, value)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal shows the address only."""


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve the report of a run on loopback and yield its address; port 0 picks a free one.

    Raise RunFolderError for a folder that is not that of a run, and UserError for a port that cannot be used.
    """
    report = LiveReport(folder)
    report.page()
    try:
        server = _Server(report, port)
    except OSError as error:
        hint = "choose another one with --port, or leave it out for a free one"
        raise UserError(f"port {port} cannot be used: {error.strerror}; {hint}") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
