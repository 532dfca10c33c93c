"""How the options of the command line begin the first chat on the full screen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.chat.conversation import ChatSettings, MessageContent
from app.chat.repository import OpenedChat, SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.chat.tool_switches import RequestedTools
from app.cli.prompts import ChatOptions
from app.connection import ServiceConnection
from app.settings.settings import Settings
from tests.app.chat.tool_chats import backend_of
from tests.app.client.scripted_client import ScriptedClient
from tests.tui.conftest import User
from tui.app import LocalllmApp


@asynccontextmanager
async def _app(folder: Path, client: ScriptedClient, **given: Any) -> AsyncIterator[User]:
    settings = Settings(data_dir=folder, cache_dir=folder)
    options = ChatOptions(settings=settings, **{"chat": ChatSettings(), "is_saved": True, **given})
    async with (
        SqliteChatRepository(folder) as repository,
        ServiceConnection(client.opened, "guide") as connection,
    ):
        app = LocalllmApp(connection, repository, settings=settings, opening=options, tools=backend_of())
        async with app.run_test(size=(100, 24)) as pilot:
            yield User(pilot)


def _keep_chats(folder: Path) -> list[int]:
    ids = []
    with ChatStore(folder) as store:
        for title in ("soup", "bread"):
            chat = store.chats.create(title=title)
            store.messages.add(chat.id, None, MessageContent(role="user", content=f"About {title}"))
            ids.append(chat.id)
    return ids


async def test_a_new_chat_with_its_settings_and_tools(tmp_path):
    _keep_chats(tmp_path)
    client = ScriptedClient()
    chat = ChatSettings("Be brief.", {"temperature": 0.5})
    async with _app(
        tmp_path, client, is_new=True, chat=chat, tools=RequestedTools(("fake",)), shows_stats=True
    ) as user:
        await user.sees("tools: fake", "ready", "Ask something")
        assert "About bread" not in user.screen_text
        await user.asks("hello")
        await user.sees("Hello.", "48 tokens a second · first word after 0.2 s")
    assert [message.content for message in client.requests[0]] == ["Be brief.", "hello"]
    assert client.options[0].temperature == 0.5


async def test_a_chat_by_its_number(tmp_path):
    soup, _ = _keep_chats(tmp_path)
    async with _app(tmp_path, ScriptedClient(), chat_id=soup) as user:
        await user.sees("About soup", "ready")


async def test_tools_that_nobody_has_are_said(tmp_path):
    async with _app(tmp_path, ScriptedClient(), is_new=True, tools=RequestedTools(("nosuch",))) as user:
        await user.sees("nosuch")


async def test_prompt_is_on_the_terminal_before_a_chat_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    display, read = LocalllmApp._display, SqliteChatRepository.open

    def note_display(self: LocalllmApp, screen: Any, renderable: Any) -> None:
        if renderable is not None and not self._batch_count:
            happened.append("drawn")
        display(self, screen, renderable)

    async def note_read(self: SqliteChatRepository, chat_id: int | None = None) -> OpenedChat:
        happened.append("read")
        return await read(self, chat_id)

    monkeypatch.setattr(LocalllmApp, "_display", note_display)
    monkeypatch.setattr(SqliteChatRepository, "open", note_read)
    _keep_chats(tmp_path)
    async with _app(tmp_path, ScriptedClient()) as user:
        await user.sees("About bread")
    assert happened.index("drawn") < happened.index("read")
