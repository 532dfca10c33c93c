"""An engine that streams Markdown at a given pace over OpenAI's API: what a face does with it can then be timed.

Owns the text and the pace. Knows no model.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["ANSWER", "PacedEngine"]

ANSWER = """Quantization stores each weight in fewer bits. It works because most weights are small:

- a block of 32 weights shares one scale,
- the scale is kept in *half precision*, and `K` types keep scales of scales.

```python
def dequantized(scale: float, quants: list[int]) -> list[float]:
    return [scale * quant for quant in quants]  # what the dot product does in passing
```

| type | bits |
|---|---|
| Q4_K_M | 4.8 |
| Q8_0 | 8.5 |

What is lost is a little precision, and what is gained is speed: decoding reads every weight once a token, and so half
the bytes are nearly half the time. Measure it on your own machine, since memory differs more than processors do.

End.
"""
_N_CHARACTERS = 4  # a token has in English text
_LONG = "## Part {number}\n\n" + ANSWER
_CODE = """class Layer{number}(Protocol):
    \"\"\"A layer with its scales, as the loop of decoding reads it.\"\"\"

    def dequantized(self, scale: float, quants: list[int]) -> list[float]:
        return [scale * quant for quant in quants]  # what the dot product does in passing

"""


@dataclass
class PacedEngine:
    """Answers every question with `n_tokens` tokens, `tokens_per_s` of them a second, all in one code block if
    `is_code`; the last answer was streamed from `begun_s` to `ended_s`."""

    n_tokens: int = 1000
    tokens_per_s: float = 100.0
    is_code: bool = False
    begun_s: float | None = None
    ended_s: float | None = None
    url: str = ""

    @classmethod
    def of_code(cls, n_lines: int, tokens_per_s: float) -> PacedEngine:
        """Return an engine that answers with one code block of `n_lines` lines."""
        n_characters = len(_CODE) * n_lines // _CODE.count("\n")
        return cls(n_characters // _N_CHARACTERS, tokens_per_s, is_code=True)

    def deltas(self) -> Iterator[str]:
        """Yield the answer token by token."""
        begin, part = ("```python\n", _CODE) if self.is_code else ("", _LONG)
        n_parts = 1 + self.n_tokens * _N_CHARACTERS // len(part)
        text = begin + "".join(part.format(number=number) for number in range(n_parts))
        for number in range(self.n_tokens):
            yield text[number * _N_CHARACTERS : (number + 1) * _N_CHARACTERS]

    @contextmanager
    def serving(self) -> Iterator[PacedEngine]:
        """Serve on any free port of loopback, at `url`."""
        with ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self)) as server:
            self.url = f"http://127.0.0.1:{server.server_port}"
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield self
            server.shutdown()

    def stream_to(self, send: Callable[[dict[str, object]], None]) -> None:
        """Send the events of one answer when each is due."""
        self.begun_s = begun_s = time.perf_counter()
        for number, text in enumerate(self.deltas()):
            time.sleep(max(0.0, begun_s + number / self.tokens_per_s - time.perf_counter()))
            send({"choices": [{"delta": {"content": text}, "finish_reason": None}]})
        send({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": self.n_tokens}})
        self.ended_s = time.perf_counter()


def _handler_of(engine: PacedEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._begin("application/json")
                self.wfile.write(json.dumps({"data": [{"id": "paced", "max_model_len": 8192}]}).encode())
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._begin("text/event-stream")
            engine.stream_to(self._send)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing: figures are printed here."""

        def _begin(self, media_type: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", media_type)
            self.end_headers()

        def _send(self, event: dict[str, object]) -> None:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    return Handler
