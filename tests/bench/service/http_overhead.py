"""The overhead of HTTP: first tokens, streamed tokens, and eight streams at full speed.

Run: `uv run python tests/bench/service/http_overhead.py MODEL.gguf`, on a quiet machine. The engine runs in this
process and in a service by turns, with the same prompts and seeds. A first token is timed from the last byte sent to
the first text received, against the engine's own time of that very request; a streamed token from the first text to the
last, against the engine's time for the same tokens. Exits with 1 if a first token costs more than 8 ms, a streamed one
more than 0.25 ms, or eight streams reach less than 85 % of the engine's tokens a second.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.table import Table

from app.bench.workloads import RandomText
from app.engine.llama import LlamaModel
from app.engine.loop.core import Engine, Event
from app.engine.messages import EngineConfig, Failed
from app.engine.request import Request, SamplingParams
from app.engine.tuning.tune_results import RuntimeSettings
from offload.devices.host import default_threads
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.validation import validate_gguf
from tests.bench.report import show
from tests.bench.served import Served, serve

__all__ = ["Stream"]

MAX_FIRST_MS, MAX_TOKEN_MS, MIN_SHARE = 8.0, 0.25, 0.85
N_STREAMS, N_CTX = 8, 512
_N_WORDS, _N_ALONE_TOKENS = 48, 128
_CHUNK_BYTES = 1 << 18


@dataclass(slots=True)
class Stream:
    """A streamed answer over a socket of its own; times are of time.perf_counter."""

    connection: socket.socket
    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    data: bytearray = field(default_factory=bytearray)

    @classmethod
    def open(cls, port: int, request: Request) -> Stream:
        """Connect, send `request` as a body of /v1/completions, without waiting."""
        sampling = {"temperature": request.sampling.temperature, "seed": request.sampling.seed}
        fields = {"prompt": request.prompt, "max_tokens": request.max_tokens, "ignore_eos": True, "stream": True}
        body = json.dumps({**fields, **sampling}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(head.encode() + body)
        return cls(connection, time.perf_counter())

    def read(self) -> bool:
        """Take what has come; return whether the answer is whole."""
        part = self.connection.recv(_CHUNK_BYTES)
        if not part:
            sys.exit(f"The service hung up: {bytes(self.data[-500:])!r}")
        self.data += part
        now_s = time.perf_counter()
        if not self.first_s and b'"text":' in self.data:
            self.first_s = now_s
        is_over = b"[DONE]" in self.data[-64:]
        if is_over:
            self.connection.close()
        else:
            self.last_s = now_s
        return is_over

    def ended(self) -> dict[str, float]:
        """Return the engine's own figures of this answer. Exits where it has none."""
        lines = [line for line in bytes(self.data).split(b"\n") if b'"timings":' in line]
        if not lines:
            sys.exit(f"The service refused: {bytes(self.data[:500])!r}")
        timings: dict[str, float] = json.loads(lines[-1].removeprefix(b"data: "))["timings"]
        return timings


def new_requests(n_requests: int, n_tokens: int, seed: int) -> list[Request]:
    """Return requests with new prompts that draw their tokens by seeds, and end with the last only."""
    prose = RandomText(seed)
    return [
        Request(
            request_id=f"{seed}-{index}",
            prompt=prose.words(_N_WORDS),
            sampling=SamplingParams(temperature=1.0, seed=seed + index),
            max_tokens=n_tokens,
            ignore_eos=True,
        )
        for index in range(n_requests)
    ]


def engine_rate(engine: Engine, events: list[Event], requests: Sequence[Request]) -> float:
    """Return the tokens a second of `engine`, which emits `events`, for all `requests` at once."""
    events.clear()
    begun_s = time.perf_counter()
    for request in requests:
        engine.submit(request)
    while not engine.is_idle:
        engine.step()
    took_s = time.perf_counter() - begun_s
    if failed := [event for event in events if isinstance(event, Failed)]:
        sys.exit(failed[0].error.cause)
    return sum(request.max_tokens or 0 for request in requests) / took_s


def service_rate(served: Served, requests: Sequence[Request]) -> float:
    """Return the tokens a second that the service streams for all `requests` at once."""
    begun_s = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for request in requests:
            stream = Stream.open(served.port, request)
            selector.register(stream.connection, selectors.EVENT_READ, stream)
        while selector.get_map():
            for key, _ in selector.select():
                if key.data.read():
                    selector.unregister(key.fileobj)
    return sum(request.max_tokens or 0 for request in requests) / (time.perf_counter() - begun_s)


@dataclass(frozen=True, slots=True)
class Overhead:
    """The time that HTTP added to one answer, in ms: to its first token, and to each later one."""

    first_ms: float
    token_ms: float


def overhead(served: Served, request: Request) -> Overhead:
    """Send `request` alone, and compare its times with the engine's."""
    stream = Stream.open(served.port, request)
    while not stream.read():
        pass
    engines = stream.ended()
    first_ms = 1000 * (stream.first_s - stream.sent_s) - engines["time_to_first_token_ms"]
    token_ms = (1000 * (stream.last_s - stream.first_s) - engines["predicted_ms"]) / (engines["predicted_n"] - 1)
    return Overhead(first_ms, token_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=7, help="of eight streams, in turns; the median counts (7)")
    parser.add_argument("--tokens", type=int, default=256, help="of each of the eight streams (256)")
    parser.add_argument("--threads", type=int, default=default_threads())
    options = parser.parse_args()
    validate_gguf(options.model)
    model = LlamaModel(options.model, ON_HOST, extra_buffers=False, on_progress=lambda _fraction: True)
    config = EngineConfig(n_ctx=N_CTX, n_sequences=N_STREAMS)
    backend = model.context(config, RuntimeSettings(options.threads, flash_attention=False, extra_buffers=False))
    events: list[Event] = []
    engine = Engine(backend, events.append)
    flags = ("--ctx", str(N_CTX), "--parallel", str(N_STREAMS), "--threads", str(options.threads))
    rates: list[tuple[float, float]] = []
    with serve(options.model, 0, *flags, idle_tune="false", prefill_ahead="false") as served:
        alone = [overhead(served, request) for request in new_requests(5 * options.runs, _N_ALONE_TOKENS, 1)][
            options.runs :
        ]
        for run in range(options.runs + 1):
            batch = new_requests(N_STREAMS, options.tokens, 1000 * (run + 1))
            rates.append((engine_rate(engine, events, batch), service_rate(served, batch)))
    engine.close()
    backend.close()
    model.close()
    sys.exit(not report(alone, rates[1:]))


def report(alone: Sequence[Overhead], rates: Sequence[tuple[float, float]]) -> bool:
    """Print the results; return whether all are within their limits."""
    first_ms, token_ms = (sorted(values) for values in zip(*((it.first_ms, it.token_ms) for it in alone), strict=True))
    share = median(service / engine for engine, service in rates)
    made = Table("what", "median", "worst", "", box=None, pad_edge=False)
    rows = (
        ("ms before a first token", f"{median(first_ms):.2f}", f"{first_ms[-1]:.2f}", median(first_ms) <= MAX_FIRST_MS),
        ("ms a streamed token", f"{median(token_ms):.3f}", f"{token_ms[-1]:.3f}", median(token_ms) <= MAX_TOKEN_MS),
        (
            "eight streams: share of the engine",
            f"{share:.1%}",
            f"{min(b / a for a, b in rates):.1%}",
            share >= MIN_SHARE,
        ),
    )
    for what, middle, worst, is_right in rows:
        made.add_row(what, middle, worst, "" if is_right else "MISSED")
    made.add_row("eight streams: tok/s, engine", f"{median(rate for rate, _ in rates):.0f}", "", "")
    made.add_row("eight streams: tok/s, service", f"{median(rate for _, rate in rates):.0f}", "", "")
    show(made)
    return all(row[-1] for row in rows)


if __name__ == "__main__":
    main()
