"""What other programs get of localllm by MCP: answers, transcripts, vectors, and places in chats, within bounds."""

from __future__ import annotations

import asyncio
import base64
import json
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.chat.conversation import MessageContent
from app.chat.store.chat_store import ChatStore
from app.protocol.chat import AnswerDelta, Completed
from app.protocol.transcript import Segment, Transcribed, TranscriptEvent
from app.settings.settings import Settings
from app.tools.mcp import offered
from app.tools.mcp.offered import OfferedTools
from quantizer.system.errors import UsageError, UserError
from tests.app.client.scripted_client import COMPLETED


@dataclass(frozen=True, slots=True)
class _Loaded:
    id: str


class Service:
    """A service whose models say the same to everybody."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.sounds: list[tuple[str, bytes, Mapping[str, str]]] = []
        self.n_open = 0
        self.waits = asyncio.Event()
        self.completed: Completed = COMPLETED

    async def chat(self, messages: Sequence[Any], model: str, options: Any) -> AsyncIterator[Any]:
        self.asked.append((messages, model, options))
        yield AnswerDelta("Good day.")
        if messages[-1].content == "wait":
            self.waits.set()
            await asyncio.Event().wait()
        yield self.completed

    async def transcribe(self, path: Path, model: str, fields: Mapping[str, str]) -> AsyncIterator[TranscriptEvent]:
        self.sounds.append((path.name, path.read_bytes(), fields))  # noqa: ASYNC240 - a few bytes
        yield "He"
        yield Segment(0, 0.0, 2.0, 4.0, "Hello")
        yield Transcribed("Hello there.", "en", 4.0, 1, 2)

    async def embed(self, texts: Sequence[str], model: str) -> list[bytes]:
        return [array("f", (1.0, 0.0)).tobytes() for _ in texts]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()

    @asynccontextmanager
    async def opened(_settings: Settings, *, keeps: bool) -> AsyncIterator[Service]:
        assert keeps
        service.n_open += 1
        try:
            yield service
        finally:
            service.n_open -= 1

    async def load(_client: object, model: str, _note: object) -> _Loaded:
        return _Loaded(model or "guide")

    monkeypatch.setattr(offered, "open_service", opened)
    monkeypatch.setattr(offered, "load_model", load)
    return service


def tools_in(folder: Path, sound_as: Any = "path") -> OfferedTools:
    return OfferedTools(Settings(data_dir=folder / "data", cache_dir=folder / "cache", model="guide"), sound_as)


async def call(
    tools: OfferedTools, name: str, **arguments: object
) -> tuple[str, list[tuple[str, float, float | None]]]:
    reports: list[tuple[str, float, float | None]] = []

    async def report(message: str, done: float, total: float | None) -> None:
        reports.append((message, done, total))

    return await tools.call(name, arguments, report), reports


async def test_a_model_answers_within_a_bound_of_tokens(tmp_path: Path, service: Service) -> None:
    tools = tools_in(tmp_path)
    text, _ = await call(tools, "ask", prompt="Hello?", system="Be brief.")
    ((messages, model, options),) = service.asked
    assert (text, model, options.max_tokens) == ("Good day.", "guide", 1024)
    assert [(message.role, message.content) for message in messages] == [("system", "Be brief."), ("user", "Hello?")]
    with pytest.raises(UserError, match=r"max_tokens"):
        await call(tools, "ask", prompt="Hello?", max_tokens=100_000)
    with pytest.raises(UserError, match=r"prompt"):
        await call(tools, "ask", prompt="x" * 200_001)
    with pytest.raises(UsageError, match=r"There is no tool 'other'"):
        await call(tools, "other")


async def test_a_call_that_is_cancelled_leaves_the_service(tmp_path: Path, service: Service) -> None:
    asking = asyncio.create_task(call(tools_in(tmp_path), "ask", prompt="wait"))
    await service.waits.wait()
    asking.cancel()
    await asyncio.wait({asking})
    assert (asking.cancelled(), service.n_open) == (True, 0)


async def test_a_sound_is_named_by_a_program_of_this_machine_and_sent_by_any_other(
    tmp_path: Path, service: Service
) -> None:
    sound = tmp_path / "talk.wav"
    sound.write_bytes(b"RIFF")
    text, reports = await call(tools_in(tmp_path), "transcribe", path=str(sound), language="en")
    assert (text, reports) == ("Hello there.", [("transcribing", 2.0, 4.0)])
    with pytest.raises(UsageError, match=r"not an absolute path"):
        await call(tools_in(tmp_path), "transcribe", path="talk.wav")
    remote = tools_in(tmp_path, "data")
    text, _ = await call(remote, "transcribe", data=base64.b64encode(b"OggS").decode())
    assert [(content, dict(fields)) for _, content, fields in service.sounds] == [
        (b"RIFF", {"language": "en"}),
        (b"OggS", {}),
    ]
    for wrong in ({"path": str(sound)}, {"data": "%%%%"}):
        with pytest.raises(UserError):
            await call(remote, "transcribe", **wrong)
    assert len(service.sounds) == 2


async def test_texts_become_vectors(tmp_path: Path, service: Service) -> None:
    text, _ = await call(tools_in(tmp_path), "embed", texts=["a", "b"], model="minilm")
    assert json.loads(text) == [[1.0, 0.0], [1.0, 0.0]]
    with pytest.raises(UserError):
        await call(tools_in(tmp_path), "embed", texts=["a"] * 65, model="minilm")


async def test_chats_are_found_by_words_and_nothing_of_them_is_changed(tmp_path: Path) -> None:
    tools = tools_in(tmp_path)
    (tmp_path / "data").mkdir()
    with ChatStore(tmp_path / "data") as store:
        chat = store.chats.create(title="Tides\x1b[2J", model="guide")
        store.messages.add(chat.id, None, MessageContent(role="user", content="Where is the tide table?"))
    text, _ = await call(tools, "search_chats", query="tide table")
    assert text.startswith("Tides")
    assert "\x1b" not in text
    assert (await call(tools, "search_chats", query="nothing"))[0] == "No chat matches."
    assert {tool.name for tool in await tools.tools()} == {"ask", "transcribe", "embed", "search_chats"}
