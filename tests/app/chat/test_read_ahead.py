"""What is read before a question: what has settled of a draft, when it is read; and the question begins with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat import read_ahead
from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import Conversation
from app.chat.conversation import Attachment, ChatSettings, MessageContent
from app.chat.read_ahead import SETTLED_S, Draft, ReadAhead, ReadTarget, SettledText, next_move
from app.chat.repository import InMemoryChatRepository, OpenedChat
from app.chat.session import OpenChat
from app.protocol.chat import GenerationOptions, Message, PromptProgress, Tool
from app.tools.approval import ToolSettings
from app.tools.tool import ServerStatus
from quantizer.system.errors import StorageError
from tests.app.chat.tool_chats import TOOLS, backend_of
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

FILE = Attachment("notes.txt", "A line of notes.\n" * 20)


# What has settled


def typed(*states: tuple[float, str]) -> SettledText:
    settled = SettledText()
    for at_s, text in states:
        settled.observe(text, at_s)
    return settled


@pytest.mark.parametrize(
    ("states", "cursor", "at_s", "beginning"),
    [
        ([], 0, 9, ""),
        ([(0, "Tell me more")], 12, 1, ""),  # too soon
        ([(0, "Tell me more")], 12, 9, "Tell me"),  # the last word may go on
        ([(0, "Tell me more ")], 13, 9, "Tell me more"),
        ([(0, "Tell me more\n")], 13, 9, "Tell me more"),
        ([(0, "Tell me"), (8, "Tell me more")], 12, 9, "Tell me"),  # the blank is new, but it ends the word
        ([(0, "Tell me "), (8, "Tell me more")], 12, 9, "Tell me"),
        ([(0, "Tell me more"), (8, "Tell us more")], 7, 9, "Tell"),
        ([(0, "Tell me more of it ")], 6, 9, "Tell"),  # the cursor is in the second word
        ([(0, "Tell me more of it ")], 5, 9, "Tell"),
        ([(0, "Tell me more of it ")], 0, 9, ""),
        ([(0, "Tell me more of it "), (8, "")], 0, 20, ""),
        ([(0, "  Tell me  ")], 11, 9, "Tell me"),  # as it is sent
        ([(0, "Tell"), (1, "Tell me"), (2, "Tell me all "), (3, "Tell me all of it ")], 18, 4.5, "Tell me all"),
        ([(0, "\u6587\u4ef6\u8bf4\u4ec0\u4e48")], 5, 9, "\u6587\u4ef6\u8bf4\u4ec0"),  # no blanks in Chinese
        ([(0, "word")], 4, 9, ""),
    ],
)
def test_what_has_settled_are_whole_words_that_nobody_is_at(
    states: list[tuple[float, str]], cursor: int, at_s: float, beginning: str
) -> None:
    assert typed(*states).beginning(cursor, at_s) == beginning


def test_it_is_known_when_more_settles() -> None:
    settled = typed((0, "Tell me "), (1, "Tell me more "))
    assert settled.next_settles_s(1) == SETTLED_S
    assert settled.next_settles_s(2.5) == SETTLED_S + 1
    assert settled.next_settles_s(9) is None


words = st.text("ab \n", max_size=12)


@given(st.lists(st.tuples(words, st.floats(0, 3), st.integers(0, 12)), max_size=25))
def test_what_has_settled_was_there_all_the_time(states: list[tuple[str, float, int]]) -> None:
    settled, now_s = SettledText(), 0.0
    seen: list[tuple[float, str]] = []
    for text, pause_s, cursor in states:
        now_s += pause_s
        settled.observe(text, now_s)
        seen.append((now_s, text))
        beginning = settled.beginning(min(cursor, len(text)), now_s)
        since = [state for at_s, state in seen if at_s > now_s - SETTLED_S]
        before = [state for at_s, state in seen if at_s <= now_s - SETTLED_S][-1:]
        assert all(state.lstrip().startswith(beginning) or not beginning for state in (*before, *since))
        assert beginning == beginning.strip()
        assert len(settled._since) <= len(seen) + 2


# What is done


def target(text: str = "", *before: str, model: str = "guide", **options: object) -> ReadTarget:
    messages = [Message("user", each) for each in before]
    return ReadTarget(model, (*messages, Message("user", text)), GenerationOptions(**options))  # type: ignore[arg-type]


LONG = "word " * 20


@pytest.mark.parametrize(
    ("wanted", "running", "read", "move"),
    [
        (None, None, None, "wait"),
        (None, target("a"), None, "stop"),
        (target("a"), None, None, "start"),
        (target("a"), target("a"), None, "wait"),
        (target("ab"), target("a"), None, "wait"),  # it is taken up where this one ends
        (target("a"), target("ab"), None, "restart"),
        (target("b"), target("a"), None, "restart"),
        (target("a"), None, target("a"), "wait"),
        (target("a"), None, target("ab"), "wait"),  # all of it is read
        (target("a b"), None, target("a"), "wait"),  # too few
        (target("a" + LONG), None, target("a"), "start"),
        (target("b"), None, target("a"), "start"),
        (target("a", "before"), None, target("a"), "start"),
        (target("a", model="other"), target("a"), None, "restart"),
        (target("a", tools=(Tool("add"),)), target("a"), None, "restart"),
        (target("a", think="off"), None, target("a"), "start"),
    ],
)
def test_what_is_read_next(
    wanted: ReadTarget | None, running: ReadTarget | None, read: ReadTarget | None, move: str
) -> None:
    assert next_move(wanted, running, read) == move


edits = st.lists(
    st.one_of(
        st.tuples(st.just("type"), st.text("ab ", min_size=1, max_size=30)),
        st.tuples(st.just("delete"), st.integers(1, 20)),
        st.tuples(st.just("insert"), st.integers(0, 40)),
        st.tuples(st.just("wait"), st.floats(0.1, 5)),
        st.tuples(st.just("ends"), st.none()),
    ),
    max_size=40,
)


@given(edits)
def test_what_runs_when_a_draft_is_sent_is_a_beginning_of_it(moves: list[tuple[str, object]]) -> None:
    settled, text, now_s = SettledText(), "", 0.0
    running: ReadTarget | None = None
    read: ReadTarget | None = None
    for kind, how in moves:
        cursor = len(text)
        if kind == "type":
            text += str(how)
        elif kind == "delete":
            text = text[: -int(str(how))]
        elif kind == "insert":
            cursor = min(int(str(how)), len(text))
            text = f"{text[:cursor]}x {text[cursor:]}"
        elif kind == "wait":
            now_s += float(str(how))
        elif running is not None:
            running, read = None, running
        settled.observe(text, now_s)
        wanted = target(settled.beginning(min(cursor, len(text)), now_s))
        move = next_move(wanted, running, read)
        if move in ("stop", "restart"):
            running = None
        if move in ("start", "restart"):
            running = wanted
        if running is not None:
            assert text.lstrip().startswith(running.messages[-1].content), "Enter finds it of use"


# The task


@dataclass
class Prompt:
    """What is in the prompt of a test."""

    draft: Draft | None = field(default_factory=Draft)
    is_on: bool = True

    async def now(self) -> Draft | None:
        return self.draft


@dataclass
class Desk:
    """A chat with its reader ahead, and what a person does there."""

    client: ScriptedClient
    chat: OpenChat
    prompt: Prompt
    ahead: ReadAhead
    model: LoadedModel
    seen: list[str] = field(default_factory=list)

    def types(self, text: str, *attachments: Attachment, edited_id: int | None = None) -> None:
        self.prompt.draft = Draft(text, len(text), attachments, edited_id)
        self.ahead.look(text)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():  # noqa: ASYNC110 - the task under test notifies nobody
                await asyncio.sleep(0.005)

    async def rests(self) -> None:
        """Wait long enough that something would have been read."""
        await asyncio.sleep(0.15)

    @property
    def asked(self) -> list[str]:
        """The unfinished messages that were to be read."""
        return [messages[-1].content for messages, _, _ in self.client.read_ahead_requests]


WHOLE = (PromptProgress(n_tokens=6000, n_read=3100), PromptProgress(n_tokens=6000, n_read=6000))


@asynccontextmanager
async def desk(
    monkeypatch: pytest.MonkeyPatch, *replies: ScriptedReply, settings: ChatSettings | None = None, n_ctx: int = 8192
) -> AsyncIterator[Desk]:
    for name, seconds in (("SETTLED_S", 0.02), ("PAUSE_S", 0.005), ("RETRY_S", 0.02), ("MOST_RETRY_S", 0.05)):
        monkeypatch.setattr(read_ahead, name, seconds)
    client, prompt = ScriptedClient(*replies), Prompt()
    client.reading = WHOLE
    model = LoadedModel(client, ConnectionState(phase="ready", model="guide", n_ctx=n_ctx))
    opened = OpenedChat(InMemoryChatRepository().new(), Conversation(settings or ChatSettings()))
    chat = OpenChat(opened, model, tools=backend_of())
    ahead = ReadAhead(lambda: chat, prompt.now, lambda: prompt.is_on)
    at = Desk(client, chat, prompt, ahead, model)
    ahead._on_change = lambda: at.seen.append(ahead.words)
    try:
        yield at
    finally:
        await ahead.close()
        await chat.close()


async def test_a_question_begins_with_what_was_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ChatSettings(system="Be brief.", tools=TOOLS)
    async with desk(monkeypatch, settings=settings) as at:
        text = "What is it about, whom was it written for, and how much of it is true in"
        at.types(text, FILE)
        await at.until(lambda: at.asked[-1:] != [] and at.asked[-1].endswith("is true") and at.ahead.words == "read")
        messages, model, options = at.client.read_ahead_requests[-1]
        at.ahead.stop()
        at.chat.ask(MessageContent(content=f"{text} a word?", attachments=(FILE,)))
        await at.chat.wait()
        (sent,) = at.client.requests
        assert sent[:-1] == messages[:-1]
        assert sent[-1].content.startswith(messages[-1].content)
        assert messages[-1].content.endswith(f"```\n\n{text[:-3]}")
        assert model == "guide"
        assert replace(options, prompt_cache_key=None, prompt_cache_retention=None) == at.client.options[0]
        assert options.tools
        assert at.seen[:2] == ["read 3,100 of 6,000", "read"]
        assert at.ahead.words == ""


async def test_a_file_is_read_when_it_is_attached_and_the_words_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch) as at:
        at.types("", FILE)
        await at.until(lambda: at.ahead.words == "read")
        at.types("word " * 12, FILE)
        await at.until(lambda: len(at.asked) == 2)
        assert at.asked[1].startswith(at.asked[0])
        assert at.asked[0].endswith("```\n\n")
        at.types("word " * 13, FILE)
        await at.rests()
        assert len(at.asked) == 2, "a few words more are read with the question"


async def test_what_follows_the_passages_of_a_searched_text_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch) as at:
        at.types("word " * 40, replace(FILE, is_searched=True))
        await at.until(lambda: at.ahead.words == "read")
        assert len(at.asked) == 1
        assert at.asked[0].endswith("are given with the question.\n\n"), "the passages come next, by the whole question"


async def test_a_draft_that_goes_on_does_not_end_the_reading_and_another_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch) as at:
        at.client.holds_reading = True
        at.types("word " * 12)
        await at.until(lambda: len(at.asked) == 1)
        at.types("word " * 40)
        await at.rests()
        assert (len(at.asked), at.client.n_ended_readings) == (1, 0)
        at.types("other " * 12)
        await at.until(lambda: len(at.asked) == 2)
        assert at.client.n_ended_readings == 1


async def test_enter_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, ScriptedReply(deltas=("Yes.",))) as at:
        at.client.holds_reading = True
        at.types("word " * 12)
        await at.until(lambda: at.ahead.words != "")
        at.ahead.stop()
        await at.until(lambda: at.client.n_ended_readings == 1)
        assert at.ahead.words == ""


async def test_the_history_is_read_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch) as at:
        at.chat.ask(MessageContent(content="Hello?"))
        await at.chat.wait()
        at.types("")
        await at.until(lambda: len(at.asked) == 1)
        messages = at.client.read_ahead_requests[0][0]
        assert [message.role for message in messages] == ["user", "assistant", "user"]
        assert messages[-1].content == ""


async def test_an_edited_question_is_read_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch) as at:
        for text in ("First?", "Second?"):
            at.chat.ask(MessageContent(content=text))
            await at.chat.wait()
        second = [each for each in at.chat.conversation.branch if each.role == "user"][1]
        at.types("Another second one, which is longer than it was before", edited_id=second.id)
        await at.until(lambda: len(at.asked) == 1)
        assert len(at.client.read_ahead_requests[0][0]) == 3


async def test_another_model_and_other_tools_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch) as at:
        at.types("word " * 12)
        await at.until(lambda: at.client.n_whole_readings == 1)
        at.chat.connection = LoadedModel(at.client, replace(at.model.state, model="larger"))
        at.types("word " * 12)
        await at.until(lambda: at.client.n_whole_readings == 2)
        at.chat.conversation.settings = replace(at.chat.conversation.settings, system="Be kind.")
        at.types("word " * 12)
        await at.until(lambda: at.client.n_whole_readings == 3)
        assert [model for _, model, _ in at.client.read_ahead_requests] == ["guide", "larger", "larger"]


async def test_a_refused_reading_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch) as at:
        at.client.reading = ()
        at.types("word " * 12)
        await at.until(lambda: len(at.asked) >= 2)
        assert at.ahead.words == ""
        at.client.reading = WHOLE
        await at.until(lambda: at.ahead.words == "read")


async def test_something_else_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch) as at:
        monkeypatch.setattr(read_ahead, "RETRY_S", 600.0)
        at.client.reading = ()
        at.ahead._retry_after_s = 600.0
        at.types("word " * 12)
        await at.until(lambda: len(at.asked) == 1)
        at.types("word " * 30)
        await at.rests()
        assert len(at.asked) == 1, "it goes on, and waits with the former"
        at.types("word " * 12, FILE)
        await at.until(lambda: len(at.asked) == 2)


@pytest.mark.parametrize(
    "why", ["off", "command", "nothing", "loading", "answering", "template", "near", "unstarted program", "summary"]
)
async def test_nothing_is_read_that_may_not_be(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    text, n_ctx = "word " * 12, 64 if why == "near" else 8192
    async with desk(monkeypatch, ScriptedReply(deltas=("Half", "more"), pause_after=1), n_ctx=n_ctx) as at:
        state, settings = at.model.state, at.chat.conversation.settings
        if why == "off":
            at.prompt.is_on = False
        elif why == "loading":
            at.chat.connection = LoadedModel(at.client, replace(state, phase="loading"))
        elif why == "template":
            at.chat.conversation.settings = replace(settings, options={"template": "chatml"})
        elif why == "near":
            at.chat.conversation.add(await at.chat.stored.add_message(None, MessageContent(content="word " * 60)))
        elif why == "unstarted program":
            at.chat.conversation.settings = replace(settings, tools=ToolSettings(enabled=("others/add",)))

            async def servers(*, start: bool = False) -> tuple[ServerStatus, ...]:
                return (ServerStatus("others", "mcp.json", "stopped"),)

            monkeypatch.setattr(at.chat.tools, "servers", servers)
        elif why == "summary":
            kept = await at.chat.stored.add_message(None, MessageContent(role="summary", content="It was said."))
            at.chat.conversation.add(kept)
        elif why == "answering":
            at.chat.ask(MessageContent(content="Hello?"))
            await at.until(lambda: at.chat.figures.time_to_first_token_s is not None)
        at.types("" if why == "nothing" else text, edited_id=kept.id if why == "summary" else None)
        if why == "command":
            at.prompt.draft = None
        await at.rests()
        assert at.asked == []


async def test_an_engine_that_knows_nothing_of_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch) as at:

        def refuse(*_: object) -> AsyncIterator[PromptProgress]:
            raise StorageError("Gone.", "Wait.")

        monkeypatch.setattr(at.client, "read_ahead", refuse)
        at.types("word " * 12)
        await at.rests()
        assert at.ahead.words == ""
