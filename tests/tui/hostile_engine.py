"""A local OpenAI-compatible engine that returns given texts as model names, answers and errors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["REFUSED", "hostile_engine"]

REFUSED = "refuse this"


@contextmanager
def hostile_engine(texts: Sequence[str]) -> Iterator[str]:
    """Give the address of one that answers questions with all of `texts`, and refuses REFUSED with some of them."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(texts)) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _handler_of(texts: Sequence[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._say(200, json.dumps({"data": [{"id": f"{texts[0]} {texts[20]}", "max_model_len": 8192}]}))
            else:
                self._say(404, "".join(texts))

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if asked["messages"][-1]["content"] == REFUSED:
                self._say(400, json.dumps({"error": {"message": "\n".join(texts[:12])}}))
            else:
                self._say(200, "".join(f"data: {json.dumps(_event(piece))}\n\n" for piece in "\n\n".join(texts)))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

        def _say(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json" if body.startswith("{") else "text/event-stream")
            self.end_headers()
            self.wfile.write(body.encode("utf-8", "surrogatepass"))

    return Handler


def _event(piece: str) -> dict[str, object]:
    return {"choices": [{"delta": {"content": piece}, "finish_reason": None}]}
