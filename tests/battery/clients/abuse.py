"""Does the service keep its head and its memory when what comes is no request? Raw abuse of every POST route.

Run: `uv run python tests/battery/clients/abuse.py`. Bodies of 1 GiB, declared and streamed, JSON 100,000 deep, half
characters, numbers that are none, lengths that contradict each other, and more, each sent to each route of the OpenAPI
document. All must be refused, none by a 5xx but 501; a route that reads no body may as well answer. The service must be
as it was, and its memory may never have grown by more than the largest body and 8 MiB. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from rich.table import Table

from app.service.http.guard import GuardPolicy
from tests.battery.tally import finish
from tests.bench.report import show
from tests.bench.served import Served, serve, wait_ready

__all__ = ["CASES", "Case"]

MAX_GROWTH_BYTES = GuardPolicy().max_body_bytes + (8 << 20)
BODY_BYTES, DEPTH = 1 << 30, 100_000
_GUIDE = Path(__file__).parents[3] / "assets" / "guide" / "guide-Q8_0.gguf"
_BLOCK = b" " * 65536
_TIMEOUT_S = 90.0
_POLL_S = 0.01
# What makes a request good on all routes, so that each case has one fault only.
_GOOD: dict[str, Any] = {
    "prompt": "x",
    "messages": [{"role": "user", "content": "x"}],
    "input": "x",
    "query": "x",
    "documents": ["x"],
    "content": "x",
    "tokens": [1],
    "max_tokens": 1,
}


@dataclass(frozen=True, slots=True)
class Case:
    """What is sent behind the request line and Host: header lines, then a body in parts."""

    headers: Sequence[str]
    body: Callable[[], Iterable[bytes]]


def _whole(body: bytes, *headers: str) -> Case:
    return Case((f"Content-Length: {len(body)}", *headers), lambda: (body,))


def _with(name: str, value: str) -> bytes:
    """Return a good body with a field of the JSON text `value` before all others."""
    return f'{{"{name}":{value},'.encode() + json.dumps(_GOOD).encode()[1:]


def _chunks() -> Iterator[bytes]:
    block = b"%x\r\n%b\r\n" % (len(_BLOCK), _BLOCK)
    yield from repeat(block, BODY_BYTES // len(_BLOCK))
    yield b"0\r\n\r\n"


_GOOD_BODY = json.dumps(_GOOD).encode()
CASES: Mapping[str, Case] = {
    "1 GiB declared": Case((f"Content-Length: {BODY_BYTES}",), lambda: repeat(_BLOCK, BODY_BYTES // len(_BLOCK))),
    "1 GiB streamed": Case(("Transfer-Encoding: chunked",), _chunks),
    "deep lists": _whole(_with("x", "[" * DEPTH + "]" * DEPTH)),
    "deep objects": _whole(_with("x", '{"a":' * DEPTH + "1" + "}" * DEPTH)),
    "half a pair": _whole(_with("x", '"\\ud800"')),
    "NaN": _whole(_with("temperature", "NaN")),
    "a number past all": _whole(_with("temperature", "1e999")),
    "no UTF-8": _whole(_with("x", '"\xff"').decode().encode("latin-1")),
    "a body that is zipped": _whole(gzip.compress(_GOOD_BODY), "Content-Encoding: gzip"),
    "two lengths": _whole(_GOOD_BODY, "Content-Length: 1"),
    "a length below 0": Case(("Content-Length: -1",), lambda: (_GOOD_BODY,)),
    "a length in words": Case(("Content-Length: all",), lambda: (_GOOD_BODY,)),
    "a chunk of no length": Case(("Transfer-Encoding: chunked",), lambda: (b"zz\r\n", _GOOD_BODY)),
    "a header without end": Case((f"X-Long: {'x' * (1 << 20)}",), lambda: ()),
}
# Of the routes that take it.
_MANY_ANSWERS = _whole(_with("n", str(10**9)))


@contextmanager
def peak_of(served: Served) -> Iterator[list[int]]:
    """Look at the memory of the service all the time; at the end the list holds what it was, in bytes."""
    sizes: list[int] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_POLL_S):
            sizes.append(served.process.memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield sizes
    finally:
        is_over.set()
        thread.join()


def send(port: int, path: str, case: Case) -> int:
    """Send `case` until the service has had enough; return the status of its reply, 0 where it only hung up."""
    head = "".join(f"{line}\r\n" for line in (f"POST {path} HTTP/1.1", "Host: localhost", *case.headers, ""))
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(head.encode("latin-1"))
            for part in case.body():
                connection.sendall(part)
        with contextlib.suppress(ConnectionError):
            line = connection.recv(1024).split(b" ", 2)
            return int(line[1]) if len(line) > 1 else 0
    return 0


@dataclass(frozen=True, slots=True)
class Route:
    """A path that takes a POST, whether it reads a body, and the fields of that."""

    path: str
    reads_body: bool
    fields: Sequence[str]

    def cases(self) -> Mapping[str, Case]:
        """Return what is sent to it."""
        return {**CASES, **({"1,000,000,000 answers": _MANY_ANSWERS} if "n" in self.fields else {})}

    def is_right(self, status: int, case: str) -> bool:
        """Whether a case got what it should: who sends on after a refusal may find the connection closed before it."""
        is_refused = 400 <= status < 500 or status == 501 or (status == 0 and "GiB" in case)
        return is_refused or (200 <= status < 300 and not self.reads_body)


def routes(served: Served) -> Iterator[Route]:
    """Yield every route that takes a POST."""
    document = served.http.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        if "post" in operations:
            body = operations["post"].get("requestBody", {})
            schema = body.get("content", {}).get("application/json", {}).get("schema", {})
            name = schema.get("$ref", "").rpartition("/")[2]
            fields = document["components"]["schemas"].get(name, {}).get("properties", ())
            yield Route(path, bool(body), tuple(fields))


def state_of(served: Served) -> dict[str, Any]:
    """Return what a request could have changed."""
    model = served.model()
    return {name: model[name] for name in ("id", "state", "n_running", "worker_pid", "counters", "occupancy")}


def table(seen: Mapping[str, Counter[int]], wrong: Counter[str]) -> Table:
    """Return how often each case got which status."""
    made = Table("case", "statuses", "", box=None, pad_edge=False)
    for case, statuses in seen.items():
        told = ", ".join(f"{status or 'hung up'} × {count}" for status, count in sorted(statuses.items()))
        made.add_row(case, told, "WRONG" if wrong[case] else "")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the names of the cases that are sent")
    options = parser.parse_args()
    seen: defaultdict[str, Counter[int]] = defaultdict(Counter)
    wrong = Counter[str]()
    with serve(_GUIDE, 0, engine="fake", keep_alive="-1") as served:  # the trial may take longer than models stay
        found = list(routes(served))
        good = Counter(send(served.port, route.path, _whole(_GOOD_BODY)) for route in found)
        wait_ready(served)  # one of those routes loads the model anew
        state, before_bytes = state_of(served), served.process.memory_info().rss
        with peak_of(served) as sizes:
            for route in found:
                for name, case in route.cases().items():
                    if options.only in name:
                        status = send(served.port, route.path, case)
                        seen[name][status] += 1
                        wrong[name] += not route.is_right(status, name)
        after_bytes, after = served.process.memory_info().rss, state_of(served)
    changed = ", ".join(f"{name} {state[name]} → {value}" for name, value in after.items() if value != state[name])
    show(table(seen, wrong))
    n_cases = sum(statuses.total() for statuses in seen.values())
    grown, most = after_bytes - before_bytes, max(sizes) - before_bytes
    print(f"{len(found)} routes, {good[200]} of which answer what has no fault; {n_cases} cases, {wrong.total()} wrong")
    print(f"memory {grown / 2**20:+.1f} MiB, {most / 2**20:+.1f} MiB at most; changed: {changed or 'nothing'}")
    finish(n_cases, wrong.total() + (most > MAX_GROWTH_BYTES) + bool(changed))


if __name__ == "__main__":
    main()
