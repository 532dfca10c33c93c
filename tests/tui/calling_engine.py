"""A local OpenAI-compatible engine whose model calls tools by a script, for the app as it is installed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Turn", "calling_engine"]

Turn = str | tuple[str, Mapping[str, Any]]
"""What the model answers: a text, or a call with its arguments."""


@contextmanager
def calling_engine(turns: Sequence[Turn]) -> Iterator[str]:
    """Give the address of one that answers with the n-th of `turns` after n results of tools since the question; the
    last serves all later ones."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(turns)) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _handler_of(turns: Sequence[Turn]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(json.dumps({"data": [{"id": "scripted", "max_model_len": 8192}]}), "application/json")

        def do_POST(self) -> None:
            messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
            asked = max(n for n, message in enumerate(messages) if message["role"] == "user")
            n_results = sum(message["role"] == "tool" for message in messages[asked:])
            events = _events(turns[min(n_results, len(turns) - 1)], n_results)
            self._send("".join(f"data: {json.dumps(event)}\n\n" for event in events), "text/event-stream")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

        def _send(self, body: str, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

    return Handler


def _events(turn: Turn, number: int) -> Iterator[dict[str, Any]]:
    if isinstance(turn, str):
        yield {"choices": [{"delta": {"content": turn}, "finish_reason": None}]}
        yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        return
    name, arguments = turn
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"index": 0, "id": f"call-{number}", "type": "function", "function": function}
    yield {"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": None}]}
    yield {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
