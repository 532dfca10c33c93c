"""A web server on loopback for tests: pages by path, ranges, redirects, and bodies that end early."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Page", "WebServer"]

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Page:
    """A reply, whose bytes from `ends_at` on are never sent. Only a client with the header `login` gets it, if any."""

    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200
    login: str = ""
    ends_at: int = 1 << 62


class WebServer:
    """A context manager; `url` calls it 127.0.0.1 and `other_url` localhost, which to clients is another host. `log`
    has path and headers of each request."""

    def __init__(self, **pages: Page) -> None:
        self.pages: dict[str, Page] = dict(pages)
        self.log: list[tuple[str, dict[str, str]]] = []
        self.n_sent = 0
        self._server = _QuietServer(("127.0.0.1", 0), partial(_Handler, self))
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def other_url(self) -> str:
        return f"http://localhost:{self._server.server_address[1]}"

    def paths(self) -> list[str]:
        return [path for path, _headers in self.log]

    def __enter__(self) -> WebServer:
        threading.Thread(target=partial(self._server.serve_forever, poll_interval=0.02), daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: tests have clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, web: WebServer, *connection: Any) -> None:
        self._web = web
        super().__init__(*connection)

    def do_GET(self) -> None:
        self._web.log.append((self.path, dict(self.headers)))
        page = self._web.pages.get(self.path, Page(b"not found", status=404))
        if page.login and self.headers.get("Authorization") != page.login:
            page = Page(b"no", status=401)
        status, body, headers, begin = page.status, page.body, dict(page.headers), 0
        if status == 200 and (match := _RANGE.fullmatch(self.headers.get("Range", ""))):
            begin, last = int(match[1]), min(int(match[2]), len(body) - 1)
            headers["Content-Range"] = f"bytes {begin}-{last}/{len(body)}"
            status, body = 206, body[begin : last + 1]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if begin + len(body) > page.ends_at:
            body, self.close_connection = body[: max(page.ends_at - begin, 0)], True
        self._web.n_sent += len(body)  # before it is received: whoever has it may ask how much was sent
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Stay silent."""
