"""Long chats with a very small model, whose summaries do not end within their tokens, in small contexts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.chat.compaction import NO_SUMMARY
from app.chat.conversation import ChatSettings, MessageContent, MessageState
from app.chat.repository import SqliteChatRepository
from app.connection import ServiceConnection, local_service
from app.settings.settings import Settings
from tests.real.texts import QUESTIONS
from tui.chat.session import ChatSession

pytestmark = pytest.mark.slow

N_TURNS = 40


@pytest.mark.parametrize("n_ctx", [512, 1024])
async def test_forty_turns_in_a_small_context_are_all_answered(smollm_file: Path, tmp_path: Path, n_ctx: int) -> None:
    """In the smaller one there is no room to ask for a summary."""
    folders = {"data_dir": tmp_path / "data", "cache_dir": tmp_path / "cache"}
    settings = Settings(model=str(smollm_file), port=0, ctx=n_ctx, idle_tune=False, **folders)
    async with (
        SqliteChatRepository(settings.data_dir) as repository,
        ServiceConnection(local_service(settings), settings.model) as connection,
    ):
        session = ChatSession(connection, repository, time.monotonic)
        session.conversation.settings = ChatSettings(options={"seed": 1, "max_tokens": 40})
        connection.start()
        await connection.client()
        for number in range(N_TURNS):
            session.chat.ask(MessageContent(role="user", content=QUESTIONS[number % len(QUESTIONS)]))
            await session.chat.wait()
            assert not session.conversation.errors, f"turn {number}"
        branch = session.conversation.branch
        await session.close()
    answers = [message for message in branch if message.role == "assistant"]
    summaries = [message for message in branch if message.role == "summary"]
    assert [answer.state for answer in answers] == [MessageState.FINISHED] * N_TURNS
    assert all(int(answer.stats["n_prompt_tokens"]) < n_ctx for answer in answers)
    print([(summary.stats.get("finish_reason"), summary.content[:40]) for summary in summaries])
    assert len(summaries) > 1
    assert any(summary.content == NO_SUMMARY for summary in summaries) == (n_ctx == 512)
