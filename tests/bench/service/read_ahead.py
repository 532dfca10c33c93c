"""How soon does an answer begin when what is certain of the question was read before Enter, and what was read in vain?

Run: `python -m tests.bench.service.read_ahead MODEL.gguf`. Twenty scripted persons attach, paste, edit and send; each
script is run twice on other words, with the reading (`app.chat.read_ahead`, as the app has it) and without it. Columns:
tokens that the engine computes after Enter, seconds of a processor of its worker until the answer has ended, and by the
clock until the first word; each before → after. Then a second chat asks while a file of the first is read, in pairs
with asking alone. On a machine that others use, the counts and the seconds of the processor hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import psutil
from rich.table import Table

from app.bench.workloads import RandomText
from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import Conversation
from app.chat.conversation import Attachment, ChatSettings, MessageContent, MessageState
from app.chat.events import ChatEvent, Written
from app.chat.read_ahead import Draft, ReadAhead
from app.chat.repository import InMemoryChatRepository, OpenedChat
from app.chat.session import OpenChat
from app.client.service_client import ServiceClient
from app.protocol.status import EngineCounters
from tests.app.chat.tool_chats import TOOLS, backend_of
from tests.bench.report import show
from tests.bench.served import Served, serve

FILE_WORDS, PASTE_WORDS, HISTORY_WORDS, N_ANSWER_TOKENS = 500, 200, 100, 4
KEY_S = 0.12  # a fast typist
GUIDE = "guide"
_READ_WITHIN_S = 240.0
_LEAST_RATIO = 0.97


@dataclass(slots=True)
class Person:
    """Somebody at the prompt of a chat; `is_reading` is whether the app reads ahead. Texts are made with `words`."""

    served: Served
    client: ServiceClient
    chat: OpenChat
    words: RandomText
    is_reading: bool
    model: str
    text: str = ""
    cursor: int | None = None
    attachments: tuple[Attachment, ...] = ()
    ahead: ReadAhead = field(init=False)

    def __post_init__(self) -> None:
        self.ahead = ReadAhead(lambda: self.chat, self._draft, lambda: self.is_reading)

    async def _draft(self) -> Draft:
        return Draft(self.text, len(self.text) if self.cursor is None else self.cursor, self.attachments)

    def _changed(self) -> None:
        if self.is_reading:
            self.ahead.look(self.text)

    async def attach(self, n_words: int = FILE_WORDS) -> None:
        name = f"notes-{len(self.attachments)}.txt"
        self.attachments = (*self.attachments, Attachment(name, self.words.words(n_words)))
        self._changed()

    async def type(self, text: str, at: int | None = None) -> None:
        """Type `text` at a place, the end by default; without reading nobody waits for the keys."""
        place = len(self.text) if at is None else at
        for character in text:
            self.text = f"{self.text[:place]}{character}{self.text[place:]}"
            place += 1
            self.cursor = place
            self._changed()
            await asyncio.sleep(KEY_S if self.is_reading else 0)
        self.cursor = len(self.text)

    async def type_anew(self, text: str) -> None:
        """Type `text` behind words that no other person types: they are not cached."""
        await self.type(f"{self.words.words(4).strip()} {text}")

    async def erase(self, n_characters: int, at: int | None = None) -> None:
        end = len(self.text) if at is None else at + n_characters
        self.text = self.text[: end - n_characters] + self.text[end:]
        self.cursor = end - n_characters
        self._changed()

    async def wait(self, seconds: float) -> None:
        if self.is_reading:
            await asyncio.sleep(seconds)

    async def until_read(self) -> None:
        """Wait as somebody who types for longer than the reading takes, and who looks at it for a while then."""
        begun_s = quiet_s = time.monotonic()
        while self.is_reading and quiet_s > time.monotonic() - 4.0 and begun_s > time.monotonic() - _READ_WITHIN_S:
            if self.ahead.is_reading:
                quiet_s = time.monotonic()
            await asyncio.sleep(0.05)

    async def use(self, model: str) -> None:
        """Switch the model, and wait until it is loaded."""
        model_id = await self.client.load(model)
        while (status := (await self.client.status()).model(model_id)) is None or status.state != "ready":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        self.model = model_id
        self.chat.connection = LoadedModel(self.client, ConnectionState.of_model(status))
        self._changed()

    async def switch_tools(self) -> None:
        settings = self.chat.conversation.settings
        self.chat.conversation.settings = replace(settings, tools=TOOLS)
        self._changed()

    async def change_system(self, text: str) -> None:
        self.chat.conversation.settings = replace(self.chat.conversation.settings, system=text)
        self._changed()

    async def open_old(self, n_turns: int = 3) -> None:
        """Open a chat that is not cached."""
        conversation, parent_id = self.chat.conversation, None
        for number in range(2 * n_turns):
            role = "assistant" if number % 2 else "user"
            made = MessageContent(role=role, content=self.words.words(HISTORY_WORDS).strip(), model=self.model)
            message = await self.chat.stored.add_message(parent_id, replace(made, state=MessageState.FINISHED))
            conversation.add(message)
            parent_id = message.id
        self._changed()

    async def enter(self) -> Sent:
        """Ask, and return what it cost after that."""
        self.ahead.stop()
        question, self.text, self.attachments = (
            MessageContent(content=self.text.strip(), attachments=self.attachments),
            "",
            (),
        )
        worker = next(each.worker_pid for each in (await self.client.status()).models if each.id == self.model)
        first_s: list[float] = []

        async def view(event: ChatEvent) -> None:
            if isinstance(event, Written) and not first_s:
                first_s.append(time.perf_counter())

        self.chat.view = view
        begun_s, begun_cpu_s = time.perf_counter(), cpu_s(worker)
        self.chat.ask(question)
        await self.chat.wait()
        cost = self.chat.figures.cost
        assert cost is not None, self.chat.conversation.errors
        wall_s = (first_s[0] if first_s else time.perf_counter()) - begun_s
        return Sent(
            cost.n_prompt_tokens, cost.n_prompt_tokens - cost.n_cached_tokens, cpu_s(worker) - begun_cpu_s, wall_s
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """What a question cost from Enter on: tokens of its prompt, those computed then, seconds of a processor until its
    short answer had ended, seconds until its first word."""

    n_prompt: int
    n_computed: int
    processor_s: float
    first_word_s: float
    n_read: int = 0
    n_in_vain: int = 0


def cpu_s(pid: int | None) -> float:
    assert pid is not None, "the model is loaded"
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


Play = Callable[[Person], Awaitable[None]]
SENTENCE = "Summarise this in three short sentences, and name the two words that occur most often."


def script(*moves: Play) -> Play:
    async def play(person: Person) -> None:
        for move in moves:
            await move(person)

    return play


SCRIPTS: dict[str, Play] = {
    "attach, type, send": script(lambda p: p.attach(), lambda p: p.type(SENTENCE), Person.until_read),
    "attach, send late": script(lambda p: p.attach(), Person.until_read, lambda p: p.type(SENTENCE)),
    "attach, send at once": script(lambda p: p.attach(), lambda p: p.type("Sum it up.")),
    "attach, send in the middle": script(lambda p: p.attach(2 * FILE_WORDS), lambda p: p.type(SENTENCE[:40])),
    "paste, type, send": script(lambda p: p.attach(PASTE_WORDS), lambda p: p.type(SENTENCE), Person.until_read),
    "two files": script(
        lambda p: p.attach(PASTE_WORDS), lambda p: p.wait(3), lambda p: p.attach(PASTE_WORDS), Person.until_read,
        lambda p: p.type(SENTENCE),
    ),
    "a file too many, removed": script(
        lambda p: p.attach(PASTE_WORDS), lambda p: p.attach(PASTE_WORDS), lambda p: p.wait(4),
        lambda p: drop_last(p), lambda p: p.type(SENTENCE), Person.until_read,
    ),
    "type only": script(lambda p: p.type_anew(SENTENCE), lambda p: p.wait(3)),
    "type at length": script(lambda p: p.type_anew(f"{SENTENCE} " * 2), lambda p: p.wait(3)),
    "send at once": script(lambda p: p.type_anew("Hello!")),
    "edit the end": script(
        lambda p: p.attach(), lambda p: p.type(SENTENCE), Person.until_read, lambda p: p.erase(31),
        lambda p: p.type("the one that is longest of all."),
    ),
    "edit the beginning": script(
        lambda p: p.attach(), lambda p: p.type(SENTENCE), Person.until_read, lambda p: p.erase(9, 0),
        lambda p: p.type("Tell me ", 0), lambda p: p.wait(3),
    ),
    "begin anew": script(
        lambda p: p.type_anew(f"{SENTENCE} "), lambda p: p.wait(3), lambda p: p.erase(len(p.text)),
        lambda p: p.type_anew("Something else: what do you know of the sea, of ships, and of their captains?"),
        lambda p: p.wait(3),
    ),
    "open an old chat, read it again": script(Person.open_old, Person.until_read, lambda p: p.type("And then?")),
    "open an old chat, ask at once": script(Person.open_old, lambda p: p.type("And then?")),
    "an old chat and a file": script(
        lambda p: p.open_old(1), lambda p: p.wait(1), lambda p: p.attach(PASTE_WORDS), lambda p: p.type(SENTENCE),
        Person.until_read,
    ),
    "switch tools on": script(
        lambda p: p.attach(PASTE_WORDS), lambda p: p.wait(2), Person.switch_tools, lambda p: p.type(SENTENCE),
        Person.until_read,
    ),
    "change the system prompt": script(
        lambda p: p.attach(PASTE_WORDS), lambda p: p.wait(2), lambda p: p.change_system("Be brief."),
        lambda p: p.type(SENTENCE), Person.until_read,
    ),
    "switch the model": script(
        lambda p: other_model_first(p), lambda p: p.type(SENTENCE), Person.until_read,
    ),
    "a second question of a chat": script(
        lambda p: first_question(p), lambda p: p.type(SENTENCE), lambda p: p.wait(3),
    ),
}  # fmt: skip


async def drop_last(person: Person) -> None:
    person.attachments = person.attachments[:-1]
    person._changed()


async def other_model_first(person: Person) -> None:
    """Attach a file while another model is chosen, and switch to the one that is asked."""
    asked = person.model
    await person.use(GUIDE)
    await person.attach(PASTE_WORDS)
    await person.wait(2)
    await person.use(asked)


async def first_question(person: Person) -> None:
    person.text = person.words.words(200)
    await person.enter()


@asynccontextmanager
async def sitting(served: Served, model: str, seed: int, *, is_reading: bool) -> AsyncIterator[Person]:
    async with ServiceClient(f"http://127.0.0.1:{served.port}") as client:
        status = (await client.status()).model(model)
        assert status is not None
        settings = ChatSettings(options={"max_tokens": N_ANSWER_TOKENS, "temperature": 0.0})
        opened = OpenedChat(InMemoryChatRepository(uuid4().hex).new(), Conversation(settings))
        chat = OpenChat(opened, LoadedModel(client, ConnectionState.of_model(status)), tools=backend_of())
        person = Person(served, client, chat, RandomText(seed), is_reading, model)
        try:
            yield person
        finally:
            await person.ahead.close()
            await chat.close()


async def counters_of(client: ServiceClient, model: str) -> EngineCounters:
    found = (await client.status()).model(model)
    assert found is not None
    assert found.counters is not None
    return found.counters


async def played(served: Served, model: str, play: Play, seed: int, *, is_reading: bool) -> Sent:
    async with sitting(served, model, seed, is_reading=is_reading) as person:
        before = await counters_of(person.client, model)
        await play(person)
        sent = await person.enter()
        after = await counters_of(person.client, model)
    n_read = after.n_read_ahead_tokens - before.n_read_ahead_tokens
    return replace(sent, n_read=n_read, n_in_vain=after.n_vain_tokens - before.n_vain_tokens)


@dataclass(frozen=True, slots=True)
class Beside:
    """An answer of a second chat: seconds of a processor, tokens a second after the first, seconds until the first."""

    processor_s: float
    rate: float
    first_word_s: float
    n_computed: int


async def asked_beside(served: Served, model: str, seed: int, *, is_read_beside: bool) -> Beside:
    """Ask in a second chat, while a file of the first is read or not."""
    async with (
        sitting(served, model, seed, is_reading=True) as first,
        sitting(served, model, seed + 1, is_reading=False) as second,
    ):
        second.chat.conversation.settings = ChatSettings(options={"max_tokens": 48, "temperature": 0.0})
        if is_read_beside:
            await first.attach(2 * FILE_WORDS)
            before = await counters_of(first.client, model)
            n_before = before.n_read_ahead_tokens
            while (await counters_of(first.client, model)).n_read_ahead_tokens == n_before:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        second.text = second.words.words(150)
        sent = await second.enter()
        cost = second.chat.figures.cost
        assert cost is not None
    return Beside(sent.processor_s, cost.decode_tokens_per_s, cost.time_to_first_token_s, sent.n_computed)


def of_scripts(name: str, rows: dict[str, tuple[Sent, Sent]]) -> Table:
    made = Table(
        name,
        "prompt",
        "computed after Enter",
        "processor s",
        "first word s",
        "read",
        "in vain",
        box=None,
        pad_edge=False,
    )
    for title, (plain, read) in rows.items():
        made.add_row(
            title,
            f"{read.n_prompt:,}",
            f"{plain.n_computed:,} → {read.n_computed:,}",
            f"{plain.processor_s:.2f} → {read.processor_s:.2f}",
            f"{plain.first_word_s:.2f} → {read.first_word_s:.2f}",
            f"{read.n_read:,}",
            f"{read.n_in_vain:,}",
        )
    pairs = list(rows.values())
    n_read, n_in_vain = sum(read.n_read for _, read in pairs), sum(read.n_in_vain for _, read in pairs)
    made.add_row(
        "all",
        f"{sum(read.n_prompt for _, read in pairs):,}",
        f"{sum(plain.n_computed for plain, _ in pairs):,} → {sum(read.n_computed for _, read in pairs):,}",
        f"{sum(plain.processor_s for plain, _ in pairs):.1f} → {sum(read.processor_s for _, read in pairs):.1f}",
        " → ".join(f"{median(each[is_read].first_word_s for each in pairs):.2f}" for is_read in (0, 1)),
        f"{n_read:,}",
        f"{n_in_vain:,} ({n_in_vain / max(1, n_read):.0%})",
    )
    return made


def of_pairs(pairs: Sequence[tuple[Beside, Beside]]) -> Table:
    """Return the medians of the pairs (alone, beside), and of their ratios: above 1 it is better beside."""
    made = Table("a second chat", "alone", "beside", "ratio", box=None, pad_edge=False)
    for title, of, is_rate in (
        ("processor s of the answer", lambda each: each.processor_s, False),
        ("tokens a second", lambda each: each.rate, True),
        ("first word s", lambda each: each.first_word_s, False),
        ("tokens computed", lambda each: float(each.n_computed), False),
    ):
        alone, beside = [of(one) for one, _ in pairs], [of(other) for _, other in pairs]
        ratios = [after / before if is_rate else before / after for before, after in zip(alone, beside, strict=True)]
        made.add_row(title, f"{median(alone):.2f}", f"{median(beside):.2f}", f"{median(ratios):.3f}")
    return made


async def measure(served: Served, model: str, only: Sequence[str], n_pairs: int) -> dict[str, Any]:
    rows: dict[str, tuple[Sent, Sent]] = {}
    for number, (title, play) in enumerate(SCRIPTS.items()):
        if only and not any(word in title for word in only):
            continue
        plain = await played(served, model, play, 1000 + 2 * number, is_reading=False)
        await asyncio.sleep(0.5)
        rows[title] = plain, await played(served, model, play, 1001 + 2 * number, is_reading=True)
        print(f"{title}: {plain} → {rows[title][1]}", flush=True)
    pairs = []
    for number in range(n_pairs):
        one, other = [
            await asked_beside(served, model, 5000 + 4 * number + 2 * is_beside, is_read_beside=is_beside)
            for is_beside in ((False, True) if number % 2 == 0 else (True, False))
        ]
        pairs.append((one, other) if number % 2 == 0 else (other, one))
    return {"rows": rows, "pairs": pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--only", default="", help="scripts whose names have one of these words, separated by commas")
    parser.add_argument("--pairs", type=int, default=6, help="of a second chat's answers, alone and beside")
    parser.add_argument("--ctx", default="16384")
    parser.add_argument("--port", type=int, default=0, help="any free one, when not given")
    options = parser.parse_args()
    only = [word for word in options.only.split(",") if word]
    with serve(options.model, options.port, idle_tune="false", prefill_ahead="true", ctx=options.ctx) as served:
        model = str(served.model()["id"])
        found = asyncio.run(measure(served, model, only, options.pairs))
    if found["rows"]:
        show(of_scripts(options.model.stem, found["rows"]))
    if found["pairs"]:
        show(of_pairs(found["pairs"]))
        ratio = median(alone.processor_s / beside.processor_s for alone, beside in found["pairs"])
        print(json.dumps({"beside": round(ratio, 3), "is_enough": ratio >= _LEAST_RATIO}))


if __name__ == "__main__":
    main()
