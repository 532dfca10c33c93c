"""Times searching and listing many chats, as a person types.

    uv run python tests/bench/screen/search_chats.py [--chats 10000] [--messages 10]

Chats are made of the words of the texts that ship, drawn as often as they stand there. Each query is timed anew from
every length that it has while it is typed. Fails the run when one takes more than 100 ms. Seeded.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from app.chat.conversation import Chat, Message, Transcript
from app.chat.store.chat_store import FILE_NAME, ChatStore
from app.chat.store.search import ANYTHING, ChatFilter
from app.cli.resources import shipped

_LIMIT_MS = 100.0
_WORDS_A_MESSAGE = 80
_SPACING_MS = 3_600_000
_QUERIES = ("the", "the and of", "system design", '"one of the"', "zebra", "needle haystack")
_FILTERS = {
    "all": ANYTHING,
    "a rare model": ChatFilter(model="rare"),
    "a rare model, one day": ChatFilter(model="rare", since_ms=_SPACING_MS * 5_000, until_ms=_SPACING_MS * 5_024),
}


def fill(store: ChatStore, n_chats: int, n_messages: int) -> None:
    """Keep `n_chats` chats of `n_messages` messages, an hour apart; one in a thousand with a rare model."""
    chance = random.Random(1)
    words = " ".join(path.read_text(encoding="utf-8") for path in sorted(shipped("").glob("*.txt"))).split()
    for number in range(n_chats):
        moment_ms = (number + 1) * _SPACING_MS
        messages = []
        for index in range(1, n_messages + 1):
            text = " ".join(chance.choices(words, k=_WORDS_A_MESSAGE))
            text += " needle in a haystack" if (number, index) == (n_chats // 2, 1) else ""
            role = "user" if index % 2 else "assistant"
            parent_id = index - 1 or None
            messages.append(Message(id=index, parent_id=parent_id, role=role, content=text, created_ms=moment_ms))
        title = " ".join(chance.choices(words, k=5))
        model = "usual" if number % 1000 else "rare"
        chat = Chat(
            id=1, title=title, created_ms=moment_ms, updated_ms=moment_ms, model=model, leaf_id=n_messages or None
        )
        store.transcripts.insert(Transcript(chat, tuple(messages)))


def slowest_ms(action: Callable[[], object], n_runs: int = 5) -> tuple[float, float]:
    """The median and the longest of `n_runs`, in milliseconds."""
    times = []
    for _ in range(n_runs):
        begun_s = time.perf_counter()
        action()
        times.append((time.perf_counter() - begun_s) * 1000)
    return sorted(times)[n_runs // 2], max(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with ChatStore(path) as store:
            begun_s = time.perf_counter()
            fill(store, options.chats, options.messages)
            elapsed_s = time.perf_counter() - begun_s
        size_mb = (path / FILE_NAME).stat().st_size / 1e6
        print(
            f"{options.chats:,} chats of {options.messages} messages: {elapsed_s:.0f} s, {size_mb:.0f} MB", flush=True
        )
        with ChatStore(path) as store:
            worst = max(_searches(store), _pages(store))
    print(f"the slowest of all: {worst:.1f} ms")
    sys.exit(worst > _LIMIT_MS)


def _searches(store: ChatStore) -> float:
    """Time each query as it is typed, and print the length that took longest: median and longest run."""
    worst = 0.0
    for name, chat_filter in _FILTERS.items():
        for query in _QUERIES:
            typed = [query[:length] for length in range(1, len(query) + 1)]
            timed = [(*slowest_ms(lambda: store.search.find(text, chat_filter)), text) for text in typed]  # noqa: B023
            median, longest, text = max(timed)
            worst = max(worst, *(run[1] for run in timed))
            n_hits = len(store.search.find(query, chat_filter))
            print(f"{name:<22} {query:<16} {n_hits:>3} hits  {median:7.2f} ms, at most {longest:7.2f}  at {text!r}")
    return worst


def _pages(store: ChatStore) -> float:
    first, later = store.chats.page(), store.chats.page(limit=9_000)[-1:]
    after = later[0] if later else None
    worst = 0.0
    for name, action in {
        "the first page": store.chats.page,
        "a late page": lambda: store.chats.page(after=after),
        "a transcript": lambda: store.transcripts.read(first[0].id),
    }.items():
        median, longest = slowest_ms(action)
        worst = max(worst, longest)
        print(f"{name:<49} {median:7.2f} ms, at most {longest:7.2f}")
    return worst


if __name__ == "__main__":
    main()
