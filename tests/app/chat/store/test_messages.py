from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.chat.conversation import Attachment, MessageContent, MessageState
from app.chat.store.chat_store import ChatStore
from app.chat.store.database import storable
from app.protocol.chat import ToolCall
from app.tools.tool import FileChange, ToolOutcome, ToolResult
from quantizer.system.errors import StorageError


def _said(content: str) -> MessageContent:
    return MessageContent(role="user", content=content)


def test_a_message_round_trips(store: ChatStore) -> None:
    said = MessageContent(
        role="assistant",
        content="Forty-two.",
        reasoning="Let me think.",
        attachments=(Attachment("notes.txt", "a\nb"), Attachment("x.py", "print()", "text/x-python")),
        model="guide",
        stats={"decode_tokens_per_s": 12.5, "finish_reason": "stop", "n_output_tokens": 3},
        state=MessageState.PARTIAL,
        created_ms=123,
        calls=(ToolCall("1", "read_file", '{"path": "a"}'), ToolCall("2", "web__fetch", "")),
        result=ToolResult(
            call_id="1",
            tool="write_file",
            server="files",
            title="wrote a",
            outcome=ToolOutcome.TIMED_OUT,
            detail="+1",
            n_bytes=3,
            diff="+a",
            duration_s=0.5,
            changes=(FileChange("/a", "", "ab", 0o644),),
            is_undone=True,
        ),
        n_kept=4,
    )
    chat_id = store.chats.create().id
    added = store.messages.add(chat_id, None, said)
    assert store.messages.of(chat_id) == (added,)
    assert all(getattr(added, name) == getattr(said, name) for name in MessageContent.__dataclass_fields__)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.text(st.characters(exclude_categories=())))
def test_any_text_round_trips_in_its_storable_form(store: ChatStore, content: str) -> None:
    chat_id = store.chats.create().id
    store.messages.add(
        chat_id, None, MessageContent(role="user", content=content, attachments=(Attachment(content, content),))
    )
    (message,) = store.messages.of(chat_id)
    assert message.content == storable(content)
    message.attachments[0].content.encode()


def test_what_is_added_is_shown_and_moves_its_chat_up(store: ChatStore) -> None:
    chat = store.chats.create()
    message = store.messages.add(chat.id, None, _said("hello"))
    found = store.chats.get(chat.id)
    assert found.leaf_id == message.id
    assert found.updated_ms >= chat.updated_ms
    assert message.created_ms >= chat.created_ms


def test_an_answer_is_partial_until_it_is_finished(store: ChatStore) -> None:
    chat_id = store.chats.create().id
    answer = store.messages.add(chat_id, None, MessageContent(role="assistant", content="", state=MessageState.PARTIAL))
    store.messages.write(answer.id, "Once upon", "hm")
    (half,) = store.messages.of(chat_id)
    assert (half.content, half.reasoning, half.state) == ("Once upon", "hm", MessageState.PARTIAL)
    ended = MessageContent(role="assistant", content="Once upon a time.", reasoning="hm.", stats={"n_output_tokens": 4})
    store.messages.finish(answer.id, ended)
    (whole,) = store.messages.of(chat_id)
    assert (whole.content, whole.reasoning, whole.state) == ("Once upon a time.", "hm.", MessageState.FINISHED)
    assert whole.stats == {"n_output_tokens": 4}


def test_a_call_is_running_until_it_is_finished_and_its_result_may_change_later(store: ChatStore) -> None:
    chat_id = store.chats.create().id
    running = ToolResult(call_id="1", tool="write_file", server="files")
    added = MessageContent(role="tool", content="", state=MessageState.PARTIAL, result=running)
    message_id = store.messages.add(chat_id, None, added).id
    changing = replace(running, title="write a", changes=(FileChange("/a", "", "ab"),))
    store.messages.write_result(message_id, changing)
    (cut,) = store.messages.of(chat_id)
    assert (cut.result, cut.state) == (changing, MessageState.PARTIAL)
    ended = replace(changing, outcome=ToolOutcome.DONE)
    store.messages.finish_call(message_id, "wrote a", ended)
    store.messages.write_result(message_id, replace(ended, is_undone=True))
    (whole,) = store.messages.of(chat_id)
    assert (whole.content, whole.state) == ("wrote a", MessageState.FINISHED)
    assert whole.result == replace(ended, is_undone=True)


def test_removing_a_message_removes_what_followed_it_and_shows_what_came_before(store: ChatStore) -> None:
    chat_id = store.chats.create().id
    question = store.messages.add(chat_id, None, _said("question"))
    answer = store.messages.add(chat_id, question.id, _said("answer"))
    other = store.messages.add(chat_id, question.id, _said("other answer"))
    store.messages.add(chat_id, answer.id, _said("next question"))
    store.messages.remove(chat_id, answer.id)
    assert {message.id for message in store.messages.of(chat_id)} == {question.id, other.id}
    assert store.chats.get(chat_id).leaf_id == question.id


def test_removing_another_branch_leaves_the_one_that_is_shown(store: ChatStore) -> None:
    chat_id = store.chats.create().id
    first = store.messages.add(chat_id, None, _said("first"))
    second = store.messages.add(chat_id, None, _said("second"))
    store.messages.remove(chat_id, first.id)
    store.messages.remove(chat_id, first.id)  # another window may have been quicker
    assert store.chats.get(chat_id).leaf_id == second.id


def test_a_parent_of_another_chat_is_refused_and_nothing_is_kept(store: ChatStore) -> None:
    here, there = store.chats.create(), store.chats.create()
    message = store.messages.add(there.id, None, _said("there"))
    with pytest.raises(StorageError, match="no longer exists"):
        store.messages.add(here.id, message.id, _said("here"))
    assert store.messages.of(here.id) == ()
    store.messages.add(here.id, None, _said("and goes on"))


def test_removed_messages_are_restored(store: ChatStore) -> None:
    chat_id = store.chats.create().id
    question = store.messages.add(chat_id, None, _said("why?"))
    store.messages.add(chat_id, question.id, MessageContent(role="assistant", content="Because.", stats={"n": 1}))
    before = store.transcripts.read(chat_id)
    store.messages.remove(chat_id, question.id)
    assert store.messages.of(chat_id) == ()
    store.messages.restore(chat_id, before.messages, before.chat.leaf_id)
    assert store.transcripts.read(chat_id) == before
    assert [hit.chat.id for hit in store.search.find("because")] == [chat_id]
