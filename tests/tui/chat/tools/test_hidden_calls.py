"""A call that waits for the person while another chat is shown."""

from __future__ import annotations

from pathlib import Path

from app.chat.conversation import ChatSettings, MessageContent
from app.chat.repository import SqliteChatRepository
from app.connection import ServiceConnection
from app.tools.approval import Decision
from tests.app.chat.tool_chats import TOOLS, backend_of, call, calling, said, unbatched, until
from tests.app.client.scripted_client import ScriptedClient
from tui.chat.session import ChatSession

__all__ = ["unbatched"]


async def test_a_question_about_a_call_reaches_the_person_in_another_chat_and_waits_there(tmp_path: Path):
    client, backend = ScriptedClient(calling(call(1, "run")), said("Done.")), backend_of()
    n_changes = 0

    def changed() -> None:
        nonlocal n_changes
        n_changes += 1

    async with ServiceConnection(client.opened, "guide") as connection, SqliteChatRepository(tmp_path) as repository:
        session = ChatSession(connection, repository, lambda: 0.0, changed, backend)
        calling_chat = session.chat
        calling_chat.conversation.settings = ChatSettings(tools=TOOLS)
        calling_chat.ask(MessageContent(role="user", content="Do it."))
        await until(lambda: calling_chat.stored.id)
        session.new_chat()
        n_before = n_changes
        await until(lambda: session.asking)
        assert (session.asking, n_changes > n_before) == ((calling_chat,), True)
        await session.open(calling_chat.stored.id)
        assert (session.chat, session.asking) == (calling_chat, ())
        calling_chat.approvals.answer(calling_chat.approvals.questions[0], Decision.ONCE)
        await calling_chat.wait()
        assert calling_chat.conversation.branch[-1].content == "Done."
        await session.close()


async def test_closing_the_window_stops_what_waits_and_stores_that_it_did_not_run(tmp_path: Path):
    client, backend = ScriptedClient(calling(call(1, "run"))), backend_of()
    async with ServiceConnection(client.opened, "guide") as connection, SqliteChatRepository(tmp_path) as repository:
        session = ChatSession(connection, repository, lambda: 0.0, tools=backend)
        session.chat.conversation.settings = ChatSettings(tools=TOOLS)
        session.chat.ask(MessageContent(role="user", content="Do it."))
        await until(lambda: session.chat.approvals.questions)
        await session.close()
        assert "did not run" in (await repository.open()).conversation.branch[-1].content
    assert backend.server.called == []
