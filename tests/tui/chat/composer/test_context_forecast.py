"""What sending a draft means for the context, shown before it is sent."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.chat.backend import ConnectionState
from app.chat.conversation import Attachment, MessageContent
from app.protocol.errors import RequestError
from tests.app.client.scripted_client import ScriptedClient
from tui.chat.composer.context_forecast import ContextForecast, DraftCounter


class CountingClient(ScriptedClient):
    """Counts words, and remembers what it counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[str] = []

    async def count_tokens(self, text: str, model: str = "") -> int:
        self.counted.append(text)
        return await super().count_tokens(text, model)


class MuteClient(ScriptedClient):
    """Has no way to count, as OpenAI's API."""

    async def count_tokens(self, text: str, model: str = "") -> int:
        raise RequestError("It does not count tokens.", "")


async def no_parts(files):
    raise AssertionError("there are no pictures and sounds")


STATE = ConnectionState(phase="ready", model="guide", n_ctx=100)
BOOK = Attachment("book.txt", "word " * 50)


async def test_draft_attachments_and_chat_are_added_up_and_an_attachment_is_counted_once():
    client, counter = CountingClient(), DraftCounter(no_parts)
    first = await counter.forecast(MessageContent(content="Sum it", attachments=(BOOK,)), 20, client, STATE)
    assert first == ContextForecast(20 + 50 + 5 + 8, 100)  # with its name and its fences, and the template
    assert not first.is_too_long
    longer = await counter.forecast(MessageContent(content="word " * 20, attachments=(BOOK,)), 20, client, STATE)
    assert (longer.n_tokens, longer.is_too_long) == (101, True)
    assert client.counted.count(BOOK.content) == 1
    await counter.forecast(
        MessageContent(content="Sum it", attachments=(BOOK,)), 20, client, replace(STATE, model="other")
    )
    assert client.counted.count(BOOK.content) == 2


async def test_an_engine_that_counts_nothing_is_estimated_and_its_limit_may_be_unknown():
    state = ConnectionState(phase="ready", model="far")
    forecast = await DraftCounter(no_parts).forecast(MessageContent(content="x" * 400), 0, MuteClient(), state)
    assert (forecast.n_tokens, forecast.is_too_long) == (108, False)


@pytest.mark.slow
async def test_the_context_after_sending_is_said_before_it(open_app, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("word " * 30)
    monkeypatch.chdir(tmp_path)
    async with open_app(ScriptedClient()) as user:
        await user.sees("● ready")
        await user.types("one two three")
        await user.sees("≈0 + 11 of 2k")
        await user.pastes("word\n" * 20)
        await user.sees("≈0 + 35 of 2k")
        await user.presses("enter")
        await user.sees("Hello.", "52 of 2k")
        await user.no_longer_sees(" + ")
        await user.types("and @notes.txt")
        await user.sees("≈52 + 43 of 2k")  # 52 before, 30 in the file
        await user.presses("ctrl+u")
        await user.no_longer_sees(" + ")
        await user.types("/")
        await asyncio.sleep(0.5)  # longer than the pause after which a question is counted
        assert " + " not in user.screen_text
        await user.types("system Be brief")
        await user.presses("enter")
        await user.sees("System prompt")
        assert " + " not in user.screen_text


async def test_a_draft_that_does_not_fit_is_said_to_be_too_long(open_app):
    async with open_app(ScriptedClient(), (60, 18)) as user:
        await user.sees("● ready")
        await user.pastes("word " * 3000)
        await user.sees("≈0 + 3.0k of 2k · too long")
