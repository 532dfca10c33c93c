"""How often the same question gets another answer, at temperature 0, and what exact repetition costs.

    uv run python -m tests.bench.service.repeatability [MODEL] [--questions 50] [--times 4] [--tokens 48] [--clients 8]

Fifty questions are asked four times each, alone and beside clients that ask all the time, as they are and with
`"deterministic": true`. The rounds take turns, so that what the service has read differs each time. Told: questions
with more than one answer, those whose log probabilities differ, and the tokens a second of the answers, of which exact
repetition takes its share. Exits with 1 where a deterministic answer differs.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from tests.bench.peer.categories import OWN_SAMPLES
from tests.bench.served import Served, free_port, serve
from tests.real.packages import SMOLLM, fetch
from tests.real.texts import PASSAGE, QUESTIONS, TEXTS

_TOPICS = ("rain", "bread", "bridges", "the moon", "whales", "clocks", "glass", "trade", "maps", "salt", "wool")
_TIMEOUT_S = 600.0


@dataclass
class Asked:
    """What was answered: by question the texts and the log probabilities, the tokens, and the seconds they took."""

    texts: dict[str, set[str]] = field(default_factory=dict)
    logprobs: dict[str, set[tuple[float, ...]]] = field(default_factory=dict)
    n_tokens: int = 0
    spent_s: float = 0.0

    @property
    def n_other_texts(self) -> int:
        return sum(len(each) > 1 for each in self.texts.values())

    @property
    def n_other_logprobs(self) -> int:
        return sum(len(each) > 1 for each in self.logprobs.values())


def questions(n: int) -> list[str]:
    """Return `n` questions, short and long, of all kinds."""
    own = [sample.turns[0] for sample in OWN_SAMPLES]
    texts = [f"{text}\n\nWhat is this, in one sentence?" for text in TEXTS.values()]
    made = [f"{begin} {topic}." for begin in ("Tell me something about", "Write a line about") for topic in _TOPICS]
    return [*QUESTIONS, *own, *texts, f"{PASSAGE * 3}\nWhat is this about?", *made][:n]


def answer(http: httpx.Client, question: str, n_tokens: int, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": n_tokens, **fields}
    response = http.post("/v1/chat/completions", json=body, timeout=_TIMEOUT_S)
    response.raise_for_status()
    found: dict[str, Any] = response.json()
    return found


@contextmanager
def clients(served: Served, n_clients: int) -> Iterator[None]:
    """Let so many clients ask all the time, each question once."""
    is_over = threading.Event()

    def keep_asking(number: int) -> None:
        n_asked = 0
        while not is_over.is_set():
            n_asked += 1
            text = f"{number}.{n_asked}: {PASSAGE[: 40 * (n_asked % 7)]} What is this about?"
            answer(served.http, text, 5 + n_asked % 9)

    threads = [threading.Thread(target=keep_asking, args=(number,)) for number in range(n_clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def ask(served: Served, asked: Asked, question: str, n_tokens: int, *, is_exact: bool) -> None:
    fields = {"deterministic": True} if is_exact else {}
    begun_s = time.monotonic()
    found = answer(served.http, question, n_tokens, logprobs=True, **fields)
    asked.spent_s += time.monotonic() - begun_s
    asked.n_tokens += found["usage"]["completion_tokens"]
    choice = found["choices"][0]
    asked.texts.setdefault(question, set()).add(choice["message"]["content"])
    asked.logprobs.setdefault(question, set()).add(tuple(each["logprob"] for each in choice["logprobs"]["content"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="SmolLM2 135M Q4_1, when not given")
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    asked_of: dict[tuple[int, bool], Asked] = {}
    with serve(options.model or fetch(SMOLLM), free_port()) as served:
        for time_number in range(1, options.times + 1):
            for n_clients in (0, options.clients):
                with clients(served, n_clients):
                    for is_exact in (False, True):
                        asked = asked_of.setdefault((n_clients, is_exact), Asked())
                        for question in questions(options.questions):
                            ask(served, asked, question, options.tokens, is_exact=is_exact)
                        print(  # a whole run takes an hour or more
                            f"{time_number} of {options.times}, {n_clients} clients, deterministic {is_exact}: "
                            f"{asked.n_other_texts} of {len(asked.texts)} with other texts, "
                            f"{asked.n_tokens / asked.spent_s:.1f} tok/s so far",
                            flush=True,
                        )
    table = Table("", "questions", "with other texts", "with other probabilities", "tok/s", box=None)
    for (n_clients, is_exact), asked in asked_of.items():
        name = f"{'deterministic' if is_exact else 'as it is'}, {f'beside {n_clients}' if n_clients else 'alone'}"
        counts = (len(asked.texts), asked.n_other_texts, asked.n_other_logprobs)
        table.add_row(name, *map(str, counts), f"{asked.n_tokens / asked.spent_s:.1f}")
    Console(width=120).print(table)
    return int(any(asked.n_other_logprobs for (_, is_exact), asked in asked_of.items() if is_exact))


if __name__ == "__main__":
    raise SystemExit(main())
