"""Rounds over the real service: with the fake engine, which says what it is asked to, and with the guide, whose calls a
grammar demands. What was computed before is in the cache of the next round, and after a step is taken back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.chat.backend import ChatBackend
from app.chat.branches import Conversation
from app.chat.conversation import ChatSettings
from app.chat.repository import OpenedChat, SqliteChatRepository
from app.chat.session import OpenChat
from app.connection import Opener, ServiceConnection, local_service
from app.protocol.chat import AnswerEvent, GenerationOptions, Message, Tool
from app.settings.settings import Settings
from app.tools.approval import ToolSettings
from app.tools.tool import Effect, ServerTool, ToolOutput
from tests.app.chat.tool_chats import ask, roles
from tests.app.tools.fake import FakeToolBackend, FakeToolServer, ScriptedCall
from tests.quantizer.gguf_files import tiny_llama

pytestmark = pytest.mark.slow

NAMES = ["a.txt", "b.txt"]
SCHEMA = {"type": "object", "properties": {"path": {"enum": NAMES}}, "required": ["path"]}
READ = ServerTool("fake", "read", Tool("read", "Read a text file.", SCHEMA), Effect.READ)
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"
QUESTION = "Which files are there?"


def _call(path: str) -> str:
    return f'<tool_call>\n{{"name": "read", "arguments": {{"path": "{path}"}}}}\n</tool_call>'


@asynccontextmanager
async def _opened(opener: Opener, model: str, results: Sequence[str], data_dir: Path) -> AsyncIterator[OpenChat]:
    script = {"read": [ScriptedCall(ToolOutput(text)) for text in results]}
    backend = FakeToolBackend(FakeToolServer(tools=(READ,), script=script))
    async with ServiceConnection(opener, model) as connection, SqliteChatRepository(data_dir) as repository:
        settings = ChatSettings(options={"temperature": 0.0, "max_tokens": 200}, tools=ToolSettings(("fake",)))
        opened = OpenedChat(repository.new(), Conversation(settings))
        chat = OpenChat(opened, connection, lambda: 0.0, lambda _: None, backend)
        try:
            yield chat
        finally:
            await chat.close()


def _stats(chat: OpenChat) -> list[tuple[int, int, int]]:
    """Return the prompt, the cached part of it and the output of each answer on the branch, in tokens."""
    names = ("n_prompt_tokens", "n_cached_tokens", "n_output_tokens")
    return [tuple(m.stats[name] for name in names) for m in chat.conversation.branch if m.role == "assistant"]


async def test_rounds_of_the_real_service_reuse_what_was_computed(tmp_path: Path):
    model = tiny_llama(tmp_path / "tiny.gguf", lambda writer: writer.add_chat_template(TEMPLATE))
    settings = Settings(engine="fake", port=0, model=str(model), data_dir=tmp_path, cache_dir=tmp_path / "cache")
    results = (f"Leeks. <say>{_call('b.txt')}</say>", "Potatoes. <say>Soup.</say>")
    async with _opened(local_service(settings), settings.model, results, tmp_path) as chat:
        branch = await ask(chat, f"{QUESTION} <say>One moment.\n{_call('a.txt')}</say>")
        assert roles(branch) == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        assert (branch[1].content.strip(), branch[-1].content) == ("One moment.", "Soup.")
        assert [call.arguments for message in branch for call in message.calls] == [
            '{"path": "a.txt"}',
            '{"path": "b.txt"}',
        ]
        (first, _, n_first), (second, cached, n_second), (_, cached_last, _) = _stats(chat)
        assert (cached, cached_last) == (first + n_first, second + n_second)  # the calls too, as they were written
        await _check_reuse(chat)


async def test_rounds_of_the_guide_reuse_what_was_computed(tmp_path: Path):
    settings = Settings(port=0, model="guide", data_dir=tmp_path, cache_dir=tmp_path / "cache", ctx=2048)
    results = ("Leeks and potatoes, in that order.", "Salt.")
    async with _opened(_demanding_calls(local_service(settings), 2), "guide", results, tmp_path) as chat:
        branch = await ask(chat, QUESTION)
        assert roles(branch) == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        await _check_reuse(chat)


async def _check_reuse(chat: OpenChat) -> None:
    """Check what of each prompt was cached, in these rounds and after their last step is taken back."""
    (first, _, _), (second, second_cached, _), (_, third_cached, _) = _stats(chat)
    assert (second_cached >= first, third_cached >= second) == (True, True)
    step = await chat.undo_step()
    assert step is not None
    assert roles(step.messages) == ["assistant", "tool", "assistant"]
    chat.continue_answer(chat.conversation.branch[-1])  # the prompt of the second round once more
    await chat.wait()
    again, again_cached, _ = _stats(chat)[1]
    assert (again, again_cached) == (second, second - 1)


def _demanding_calls(opener: Opener, n_answers: int) -> Opener:
    """Return an opener of a client whose first answers have to be calls."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[ChatBackend]:
        async with opener() as client:
            yield _DemandingClient(client, n_answers)  # type: ignore[misc]

    return opened


class _DemandingClient:
    def __init__(self, client: ChatBackend, n_answers: int) -> None:
        self._client = client
        self._n_left = n_answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def chat(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[AnswerEvent, None]:
        assert options is not None
        if self._n_left:
            options = replace(options, samplers={**options.samplers, "tool_choice": "required"})
        self._n_left = max(0, self._n_left - 1)
        return self._client.chat(messages, model, options)
