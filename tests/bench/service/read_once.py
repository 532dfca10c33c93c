"""How soon does an answer begin about a document that was read before, in another chat or before a restart?

Run: `python -m tests.bench.service.read_once MODEL.gguf`. A document is attached in chats as the app has them, stored,
with titles and a second question; another document is read in between, and then the service and its worker are started
anew. Columns: tokens of the prompt, those that the engine computed, seconds of a processor of its worker until the
answer has ended, and by the clock until the first word. `reading it` is the first chat. A private chat asks what is
asked after the restart, with the state from memory, and the last row asks it in a new cache: whether the greedy answers
are equal is printed, but on random words the likeliest tokens are close, and other cells, batches and threads round
otherwise (`tests/real/test_restart.py` compares on a text). On a machine that others use, the counts and the seconds of
the processor hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from app.bench.workloads import RandomText
from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import Conversation
from app.chat.conversation import Attachment, ChatSettings, MessageContent
from app.chat.events import ChatEvent, Written
from app.chat.repository import InMemoryChatRepository, OpenedChat, SqliteChatRepository
from app.chat.session import OpenChat
from app.client.service_client import ServiceClient
from tests.bench.report import show
from tests.bench.served import serve
from tests.bench.service.read_ahead import cpu_s

N_ANSWER_TOKENS = 24
MOST_RATIO = 0.3
SYSTEM = "You answer questions about documents. Keep to what they say, and be brief."


@dataclass(frozen=True, slots=True)
class Asked:
    """A question: tokens of its prompt, those computed for it, seconds of a processor until its answer had ended and by
    the clock until its first word, and the answer."""

    n_prompt: int
    n_computed: int
    processor_s: float
    first_word_s: float
    answer: str


@dataclass(slots=True)
class Reader:
    """Somebody who asks in stored chats of one service, and whose questions are `asked`, by their titles."""

    client: ServiceClient
    repository: SqliteChatRepository
    model: str
    asked: dict[str, Asked] = field(default_factory=dict)

    async def new_chat(self, *, is_private: bool = False) -> OpenChat:
        status = (await self.client.status()).model(self.model)
        assert status is not None
        settings = ChatSettings(system=SYSTEM, options={"max_tokens": N_ANSWER_TOKENS, "temperature": 0.0})
        repository = InMemoryChatRepository() if is_private else self.repository
        opened = OpenedChat(repository.new(), Conversation(settings))
        return OpenChat(opened, LoadedModel(self.client, ConnectionState.of_model(status)))

    async def ask(self, title: str, chat: OpenChat, question: str, *documents: Attachment) -> None:
        """Ask, wait for the answer and, in a new chat, for its title, and note what it cost."""
        status = (await self.client.status()).model(self.model)
        worker = None if status is None else status.worker_pid
        first_s: list[float] = []

        async def view(event: ChatEvent) -> None:
            if isinstance(event, Written) and not first_s:
                first_s.append(time.perf_counter())

        chat.view = view
        begun_s, begun_cpu_s = time.perf_counter(), cpu_s(worker)
        chat.ask(MessageContent(content=question, attachments=documents))
        await chat.wait()
        cost = chat.figures.cost
        assert cost is not None, chat.conversation.errors
        n_computed = cost.n_prompt_tokens - cost.n_cached_tokens
        wall_s = (first_s[0] if first_s else time.perf_counter()) - begun_s
        processor_s = cpu_s(worker) - begun_cpu_s
        self.asked[title] = Asked(
            cost.n_prompt_tokens, n_computed, processor_s, wall_s, chat.conversation.branch[-1].content
        )
        print(f"{title}: {n_computed:,} of {cost.n_prompt_tokens:,} tokens, {wall_s:.2f} s", flush=True)
        while chat.has_news:  # noqa: ASYNC110 - a title comes
            await asyncio.sleep(0.02)

    async def ask_anew(self, title: str, question: str, *documents: Attachment, is_private: bool = False) -> None:
        chat = await self.new_chat(is_private=is_private)
        await self.ask(title, chat, question, *documents)
        await chat.close()


READING, SECOND, PRIVATE = "reading it", "a second chat", "a third, private"
RESTARTED, ANEW = "as the third, after a restart", "the same, in a new cache"
_AGAIN = "Which two words occur most often?"


def documents_of(n_words: int) -> tuple[Attachment, Attachment]:
    """Return two documents that differ."""
    words = RandomText(7)
    return Attachment("report.txt", words.words(n_words)), Attachment("minutes.txt", words.words(n_words))


async def first_sitting(reader: Reader, n_words: int) -> None:
    report, minutes = documents_of(n_words)
    chat = await reader.new_chat()
    await reader.ask(READING, chat, "Sum this up in a sentence.", report)
    await reader.ask("its second question", chat, "And what is it not about?")
    await chat.close()
    await reader.ask_anew("another document", "What is this about?", minutes)
    await reader.ask_anew(SECOND, "Who should read this?", report)
    await reader.ask_anew(PRIVATE, _AGAIN, report, is_private=True)
    later = await reader.new_chat()
    await reader.ask("a chat without it", later, "What makes a good report?")
    await reader.ask("it comes later in that chat", later, "Is this one?", report)
    await later.close()
    await reader.ask_anew("beside another one, after it", "How do they differ?", report, minutes)
    await reader.ask_anew("beside another one, before it", "How do they differ?", minutes, report)


async def second_sitting(reader: Reader, n_words: int) -> None:
    await reader.ask_anew(RESTARTED, _AGAIN, documents_of(n_words)[0])


async def new_sitting(reader: Reader, n_words: int) -> None:
    await reader.ask_anew(ANEW, _AGAIN, documents_of(n_words)[0])


Sitting = Callable[[Reader, int], Awaitable[None]]


def sit(model: Path, folder: Path, sitting: Sitting, n_words: int, ctx: str) -> dict[str, Asked]:
    """Start a service over the data and the cache in `folder`, and return what was asked of it."""

    async def asked(port: int, model_id: str) -> dict[str, Asked]:
        async with (
            ServiceClient(f"http://127.0.0.1:{port}") as client,
            SqliteChatRepository(folder / "data") as repository,
        ):
            reader = Reader(client, repository, model_id)
            await reader.ask_anew("", "Hello!")  # what a model's first answer takes is not the document's
            await sitting(reader, n_words)
            return {title: asked for title, asked in reader.asked.items() if title}

    for name in ("data", "cache"):
        (folder / name).mkdir(0o700, exist_ok=True)
    folders = {"data_dir": str(folder / "data"), "cache_dir": str(folder / "cache")}
    with serve(model, 0, idle_tune="false", ctx=ctx, **folders) as served:
        return asyncio.run(asked(served.port, str(served.model()["id"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--words", type=int, default=1200, help="of the document")
    parser.add_argument("--ctx", default="8192")
    options = parser.parse_args()
    asked: dict[str, Asked] = {}
    with tempfile.TemporaryDirectory() as used, tempfile.TemporaryDirectory() as new:
        for folder, sitting in ((used, first_sitting), (used, second_sitting), (new, new_sitting)):
            asked |= sit(options.model, Path(folder), sitting, options.words, options.ctx)
    table = Table(options.model.stem, "prompt", "computed", "processor s", "first word s", box=None, pad_edge=False)
    for title, each in asked.items():
        row = (f"{each.n_prompt:,}", f"{each.n_computed:,}", f"{each.processor_s:.2f}", f"{each.first_word_s:.2f}")
        table.add_row(title, *row)
    show(table)
    ratios = {title: asked[title].first_word_s / asked[READING].first_word_s for title in (SECOND, RESTARTED)}
    is_enough, is_same = max(ratios.values()) <= MOST_RATIO, asked[RESTARTED].answer == asked[PRIVATE].answer
    found = {title: round(ratio, 3) for title, ratio in ratios.items()}
    is_read_alike = asked[RESTARTED].answer == asked[ANEW].answer
    print(json.dumps({"ratios": found, "is_enough": is_enough, "is_same": is_same, "as_read_anew": is_read_alike}))
    sys.exit(0 if is_enough else 1)


if __name__ == "__main__":
    main()
