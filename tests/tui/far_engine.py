"""A remote OpenAI-compatible engine that streams text on command."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["FarEngine"]

_END = "end"


class FarEngine:
    """Text passed to `send` is streamed to the client; `requests` holds the received bodies. It has `models`, and
    answers with the error of `failure`, a status and a message, if there is one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.models = ["far"]
        self.failure: tuple[int, str] | None = None
        self.requests: list[dict[str, Any]] = []
        self.pieces: queue.Queue[tuple[str, str]] = queue.Queue()

    def send(self, text: str = "", *, reasoning: str = "") -> None:
        """Let a piece of the answer come."""
        if reasoning:
            self.pieces.put(("reasoning_content", reasoning))
        if text:
            self.pieces.put(("content", text))

    def end(self) -> None:
        """Let the answer be whole."""
        self.pieces.put((_END, ""))

    @classmethod
    @contextmanager
    def serving(cls) -> Iterator[FarEngine]:
        """Serve at `url` as long as this lasts."""
        with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
            server.daemon_threads = True
            engine = cls(f"http://127.0.0.1:{server.server_port}")
            _Handler.engine = engine
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield engine
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    engine: FarEngine

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._begin("application/json")
            self.wfile.write(json.dumps({"data": [{"id": name} for name in self.engine.models]}).encode())
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        self.engine.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if self.engine.failure is not None:
            status, message = self.engine.failure
            self._begin("application/json", status)
            self.wfile.write(json.dumps({"error": {"message": message}}).encode())
            return
        self._begin("text/event-stream")
        try:
            self._stream()
        except OSError:  # who asked has left
            return

    def _stream(self) -> None:
        while True:
            kind, text = self.engine.pieces.get()
            if kind == _END:
                self._send({"choices": [{"delta": {}, "finish_reason": "stop"}]})
                self.wfile.write(b"data: [DONE]\n\n")
                return
            self._send({"choices": [{"delta": {kind: text}, "finish_reason": None}]})

    def _begin(self, media_type: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.end_headers()

    def _send(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""
