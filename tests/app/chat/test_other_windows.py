"""Two windows with one chat: nothing that one of them writes is taken away by the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from app.chat.conversation import MessageContent, MessageState, WrittenElsewhereError
from app.chat.events import ChatEvent, Note
from app.chat.session import ANSWERED_ELSEWHERE, OpenChat
from app.chat.store.chat_store import ChatStore
from app.tools.approval import Decision
from tests.app.chat.tool_chats import (
    WRITTEN,
    ask,
    backend_of,
    call,
    calling,
    decide,
    opened_chat,
    said,
    unbatched,
    until,
)
from tests.app.client.scripted_client import ScriptedClient, ScriptedReply

__all__ = ["unbatched"]

SCRIPT = (calling(call(1, "write")), said("Done."))


@pytest.mark.parametrize(
    "take_away",
    [
        OpenChat.undo_step,
        OpenChat.redo_step,
        lambda chat: chat.remove(chat.conversation.branch[0].id),
        lambda chat: chat.remove(chat.conversation.branch[-1].id),
    ],
    ids=["undo", "redo", "delete the question", "delete the answer"],
)
async def test_nothing_is_taken_away_where_another_window_runs_tools(
    tmp_path: Path, take_away: Callable[[OpenChat], Awaitable[object]]
) -> None:
    script = [said("Before."), *SCRIPT]
    backend = backend_of()
    async with opened_chat(ScriptedClient(*script), backend_of(), tmp_path) as writing:
        await ask(writing, "Before?")
        async with opened_chat(ScriptedClient(), backend, tmp_path) as other:
            await other.undo_step()  # so that there is something to do again
            questions = decide(writing)
            writing.ask(MessageContent(role="user", content="Do it."))
            await until(lambda: questions)
            await other.go_to_newest()
            before = other.conversation.entries()
            with pytest.raises(WrittenElsewhereError, match=r"Another window is answering here\. Wait until it has"):
                await take_away(other)
            assert other.conversation.entries() == before
            writing.approvals.answer(questions[0], Decision.ONCE)
            await writing.wait()
            assert (backend.undone, writing.conversation.last_answer) == ([], "Done.")
            await other.catch_up()
            assert other.conversation.last_answer == "Done."
            await other.undo_step()
            await other.undo_step()
            assert backend.undone == [WRITTEN]


async def test_text_of_an_answer_is_kept_that_another_window_wants_to_delete(tmp_path: Path) -> None:
    client = ScriptedClient(ScriptedReply(deltas=("Half", " and half."), pause_after=1))
    async with opened_chat(client, backend_of(), tmp_path) as writing:
        writing.ask(MessageContent(role="user", content="Why?"))
        await until(lambda: writing.conversation.last_answer == "Half")
        async with opened_chat(ScriptedClient(), backend_of(), tmp_path) as other:
            for message in other.conversation.branch:
                with pytest.raises(WrittenElsewhereError):
                    await other.remove(message.id)
            client.resume()
            await writing.wait()
            await other.catch_up()
            await other.remove(other.conversation.branch[-1].id)  # now that it has ended
            assert [message.content for message in other.conversation.branch] == ["Why?"]


async def test_a_deletion_brings_back_what_another_window_wrote_below(tmp_path: Path) -> None:
    async with opened_chat(ScriptedClient(said("One."), said("Two.")), backend_of(), tmp_path) as writing:
        question = (await ask(writing, "First?"))[0]
        async with opened_chat(ScriptedClient(), backend_of(), tmp_path) as other:
            await ask(writing, "Second?")
            removed = await other.remove(question.id)
            assert [message.content for message in removed.messages] == ["First?", "One.", "Second?", "Two."]
            await other.restore(removed)
    with ChatStore(tmp_path) as store:
        assert len(store.transcripts.read(1).messages) == 4


async def test_a_retry_leaves_an_answer_that_another_window_has_just_begun(tmp_path: Path) -> None:
    async with opened_chat(ScriptedClient(said("One."), said("Mine.")), backend_of(), tmp_path) as chat:
        question = (await ask(chat, "Why?"))[0]
        with ChatStore(tmp_path) as window:
            blank = MessageContent(role="assistant", state=MessageState.PARTIAL)
            begun = window.messages.add(1, question.id, blank, window.writers.window)
            await chat.catch_up()
            chat.answer_again(question.id)
            await chat.wait()
            assert begun.id in [message.id for message in window.messages.of(1)]
        assert chat.conversation.last_answer == "Mine."


async def test_nothing_is_summarised_before_an_answer_of_another_window(tmp_path: Path) -> None:
    seen: list[str] = []

    async def draw(event: ChatEvent) -> None:
        if isinstance(event, Note):
            seen.append(event.text)

    async with opened_chat(ScriptedClient(said("One.")), backend_of(), tmp_path) as chat:
        question = (await ask(chat, "Why?"))[0]
        with ChatStore(tmp_path) as window:
            window.writers.mark(1, chat.conversation.leaf_id)
            chat.view = draw
            chat.compact()
            await chat.wait()
        assert (seen, chat.conversation.branch[0]) == ([ANSWERED_ELSEWHERE], question)
