from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.conversation import Message, MessageContent, MessageState
from app.chat.store import chat_store as recorder
from app.chat.store.chat_store import AnswerRecorder, ChatStore, StoreThread
from quantizer.system.errors import StorageError


@pytest.fixture
async def thread(tmp_path: Path) -> AsyncIterator[StoreThread]:
    async with StoreThread(tmp_path) as opened:
        yield opened


async def _question(thread: StoreThread) -> tuple[int, int]:
    chat = await thread.do(lambda store: store.chats.create())
    said = MessageContent(role="user", content="why?")
    return chat.id, (await thread.do(lambda store: store.messages.add(chat.id, None, said))).id


def _last(tmp_path: Path, chat_id: int) -> Message:
    with ChatStore(tmp_path) as window:
        return window.messages.of(chat_id)[-1]


def _append(answer: AnswerRecorder, content: str, reasoning: str = "") -> None:
    message = answer.message
    answer.update(replace(message, content=message.content + content, reasoning=message.reasoning + reasoning))


async def _eventually(tmp_path: Path, chat_id: int, content: str) -> Message:
    """Look from another window until the last message has this content."""
    for _ in range(3000):
        if (seen := _last(tmp_path, chat_id)).content == content:
            return seen
        await asyncio.sleep(0.02)
    raise AssertionError(f"{content!r} was not saved")


async def test_another_window_sees_the_text_while_it_is_written(thread: StoreThread, tmp_path: Path) -> None:
    place = await _question(thread)
    async with AnswerRecorder(thread, *place, "guide") as answer:
        _append(answer, "Because ")
        _append(answer, "it is so", "hm")
        seen = await _eventually(tmp_path, place[0], "Because it is so")
        assert (seen.reasoning, seen.state, seen.model) == ("hm", MessageState.PARTIAL, "guide")
        answer.update(replace(answer.message, state=MessageState.FINISHED, stats={"n_output_tokens": 4}))
    whole = _last(tmp_path, place[0])
    assert (whole.content, whole.state, whole.stats) == (
        "Because it is so",
        MessageState.FINISHED,
        {"n_output_tokens": 4},
    )


async def test_an_answer_that_is_cancelled_keeps_all_that_came_of_it(thread: StoreThread, tmp_path: Path) -> None:
    place = await _question(thread)
    has_begun = asyncio.Event()

    async def answering() -> None:
        async with AnswerRecorder(thread, *place) as answer:
            _append(answer, "Half an ans")
            has_begun.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(answering())
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    kept = _last(tmp_path, place[0])
    assert (kept.content, kept.state) == ("Half an ans", MessageState.PARTIAL)


async def test_an_answer_without_a_word_is_partial_and_shown(thread: StoreThread, tmp_path: Path) -> None:
    chat_id, question_id = await _question(thread)
    async with AnswerRecorder(thread, chat_id, question_id) as answer:
        pass
    kept = _last(tmp_path, chat_id)
    assert (kept.id, kept.parent_id, kept.state) == (answer.message.id, question_id, MessageState.PARTIAL)
    with ChatStore(tmp_path) as window:
        assert window.chats.get(chat_id).leaf_id == kept.id


async def test_a_save_that_fails_is_tried_again(
    thread: StoreThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SAVED_AFTER_S", 0.01)
    place = await _question(thread)
    n_failures = 3
    save = AnswerRecorder._save

    def failing_at_first(self: AnswerRecorder, store: ChatStore) -> None:
        nonlocal n_failures
        n_failures -= 1
        if n_failures > 0:
            raise StorageError("The disk is full.")
        save(self, store)

    monkeypatch.setattr(AnswerRecorder, "_save", failing_at_first)
    async with AnswerRecorder(thread, *place) as answer:
        _append(answer, "text")
        await _eventually(tmp_path, place[0], "text")


async def test_the_loop_runs_while_the_disk_is_busy(thread: StoreThread, tmp_path: Path) -> None:
    place = await _question(thread)
    with ChatStore(tmp_path) as other, other._database.writing():
        adding = asyncio.create_task(
            thread.do(lambda store: store.messages.add(*place, MessageContent(role="user", content="late")))
        )
        for _ in range(10):
            await asyncio.sleep(0.005)
        assert not adding.done()
    assert (await adding).content == "late"


async def test_pending_actions_complete_before_the_store_closes(tmp_path: Path) -> None:
    async with StoreThread(tmp_path) as thread:
        asked = [asyncio.create_task(thread.do(lambda store: store.chats.create())) for _ in range(5)]
        await asyncio.sleep(0)
    assert len(await asyncio.gather(*asked)) == 5


async def test_an_answer_that_is_written_on_stays_one_message(thread: StoreThread, tmp_path: Path) -> None:
    chat_id, question_id = await _question(thread)
    async with AnswerRecorder(thread, chat_id, question_id) as answer:
        _append(answer, "Once ", "hm ")
    half = _last(tmp_path, chat_id)
    async with AnswerRecorder(thread, chat_id, question_id, continued=half) as answer:
        _append(answer, "upon", "so")
        answer.update(replace(answer.message, state=MessageState.FINISHED))
    whole = _last(tmp_path, chat_id)
    assert (whole.id, whole.content, whole.reasoning, whole.state) == (
        half.id,
        "Once upon",
        "hm so",
        MessageState.FINISHED,
    )
