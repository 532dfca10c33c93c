"""A chat with the guide that fills a small context, over the real service."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.chat.conversation import ChatSettings, Message, MessageContent
from app.chat.repository import SqliteChatRepository
from app.connection import ServiceConnection, local_service
from app.settings.settings import Settings
from tui.chat.session import ChatSession

pytestmark = pytest.mark.slow

QUESTIONS = (
    "What can you do?",
    "How do I quantize a model?",
    "Which keys does this app have?",
    "How do I attach a file to a question?",
    "What is a KV cache?",
    "How do I change the context length?",
    "How do I export a chat?",
    "Where are chats stored?",
    "How do I compare two models?",
    "What does F7 show?",
)


async def _asked(session: ChatSession, question: str) -> Message:
    session.chat.ask(MessageContent(role="user", content=question))
    await session.chat.wait()
    assert not session.conversation.errors
    return session.conversation.branch[-1]


async def test_a_chat_that_fills_the_context_is_compacted_from_the_cache_and_goes_on(tmp_path: Path) -> None:
    settings = Settings(
        model="guide", port=0, ctx=1536, data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", idle_tune=False
    )
    async with (
        SqliteChatRepository(settings.data_dir) as repository,
        ServiceConnection(local_service(settings), settings.model) as connection,
    ):
        session = ChatSession(connection, repository, time.monotonic)
        session.conversation.settings = ChatSettings(options={"seed": 1})
        connection.start()
        await connection.client()
        n_before = 0
        for question in QUESTIONS * 3:
            answer = await _asked(session, question)
            if any(message.role == "summary" for message in session.conversation.branch):
                break
            n_before = session.conversation.context_size(answer.id).n_tokens
        (summary,) = [message for message in session.conversation.branch if message.role == "summary"]
        counts = {name: summary.stats[name] for name in ("n_prompt_tokens", "n_cached_tokens", "n_output_tokens")}
        print(counts, n_before, session.conversation.context_size(answer.id))
        assert int(summary.stats["n_cached_tokens"]) > 500
        n_new = int(summary.stats["n_prompt_tokens"]) - int(summary.stats["n_cached_tokens"])
        assert n_new < 256, "more than the words that ask for the summary"
        assert session.conversation.context_size(answer.id).n_tokens < n_before
        assert answer.content
        again = await _asked(session, "Which keys does this app have?")
        assert again.content
        assert int(again.stats["n_prompt_tokens"]) < n_before
        await session.close()
