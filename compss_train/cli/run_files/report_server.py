"""``ReportServer``: serves the report of a run to browsers on this machine, and pushes what changes in it."""

import errno
import hmac
import json
import secrets
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from compss_train.cli.run_files.live_report import LiveReport

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.5
"""Seconds after which files are looked at again."""
HEARTBEAT_SECONDS = 15.0
"""Seconds after which a viewer that has nothing new is sent an empty comment, as it may be gone."""
_NAMES = (LOOPBACK, "localhost", "::1")
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class ReportServer(ThreadingTCPServer):
    """Serves one report on the loopback interface, to those who know its random token.

    Pages of other sites cannot read it through a browser: names of hosts that they could have pointed to this
    machine are refused. Raises ``ValueError`` for a port that is in use or that no machine has, and
    ``PermissionError`` for one that is reserved. 0 is any free port.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, report: LiveReport, port: int = 0) -> None:
        self.report = report
        self.token = secrets.token_urlsafe(24)
        self.closed = threading.Event()
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OverflowError as error:
            raise ValueError(f"port {port}: give 0 to 65535, 0 for any free port") from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise ValueError(f"port {port} of this machine is in use: name another one, 0 for any") from error

    @property
    def port(self) -> int:
        """The port."""
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    def server_close(self) -> None:
        """Stop listening, and end the streams of all viewers."""
        self.closed.set()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing of connections that browsers have closed."""


class _Handler(BaseHTTPRequestHandler):
    """A request for the page, or for the stream of its changes (server-sent events)."""

    server: ReportServer
    timeout = 30.0  # seconds for a request to come, and for a viewer to take what it is sent

    def do_GET(self) -> None:
        """Answer with 403 unless the address has the token and the name of the host is one of this machine."""
        path, _, query = self.path.partition("?")
        token, _, name = path.removeprefix("/").partition("/")
        if not _is_local(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, f"use the address with {LOOPBACK} or localhost\n")
        elif not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._send(HTTPStatus.FORBIDDEN, "use the address that compss-train watch has printed\n")
        elif name == "":
            self._send(HTTPStatus.OK, self.server.report.page(), "text/html")
        elif name == "events":
            with suppress(OSError):  # the viewer has gone
                self._push(_number(self.headers.get("Last-Event-ID") or parse_qs(query).get("version", [""])[0]))
        else:
            self._send(HTTPStatus.NOT_FOUND, "this is no page\n")

    def _send(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        content = text.encode()
        self._start(status, kind, {"Content-Length": str(len(content))})
        self.wfile.write(content)

    def _start(self, status: HTTPStatus, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": f"{kind}; charset=utf-8", **_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _push(self, version: int) -> None:
        """Send the parts of the page that change, until the viewer or the server goes."""
        self._start(HTTPStatus.OK, "text/event-stream", {})
        sent = time.monotonic()
        while True:
            version, parts = self.server.report.changes(version)
            if parts or time.monotonic() - sent > HEARTBEAT_SECONDS:
                event = f"id: {version}\ndata: {json.dumps(parts)}\n\n" if parts else ":\n\n"
                self.wfile.write(event.encode())
                sent = time.monotonic()
            if self.server.closed.wait(POLL_SECONDS):
                return

    def log_message(self, format: str, *args: Any) -> None:
        """Print no line for each request."""


def _is_local(host: str) -> bool:
    """Return whether the name of the host is one of this machine; ports differ behind a tunnel."""
    with suppress(ValueError):
        return urlsplit(f"//{host}").hostname in _NAMES
    return False


def _number(text: str) -> int:
    with suppress(ValueError):
        return int(text)
    return 0
