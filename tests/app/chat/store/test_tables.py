from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.chat.conversation import Attachment, Chat, ChatSettings, MessageContent, MessageState
from app.chat.store.chat_store import ChatStore
from app.chat.store.database import storable
from app.chat.store.search import ChatFilter
from app.chat.store.tables import PAGE_SIZE, UnknownChatError
from app.protocol.chat import Source, ToolCall
from app.tools.tool import FileChange, ToolOutcome, ToolResult
from quantizer.system.errors import StorageError


def test_a_chat_comes_back_as_it_was_made(store: ChatStore) -> None:
    settings = ChatSettings("Be brief.", {"temperature": 0.5, "top_k": 40, "stop": "\n"})
    made = store.chats.create(title="Soup", model="guide", settings=settings)
    assert store.chats.get(made.id) == made
    assert (made.title, made.model, made.settings, made.leaf_id) == ("Soup", "guide", settings, None)


def test_titles_that_sqlite_cannot_keep_are_kept_with_a_mark(store: ChatStore) -> None:
    made = store.chats.create(title="a\x00b\ud800c")
    assert made.title == "a\ufffdb\ufffdc"


def test_each_change_leaves_the_others_alone(store: ChatStore) -> None:
    chat_id = store.chats.create(title="old").id
    store.chats.rename(chat_id, "new")
    store.chats.pin(chat_id, True)
    store.chats.archive(chat_id, True)
    store.chats.use_model(chat_id, "qwen")
    store.chats.configure(chat_id, ChatSettings("system"))
    found = store.chats.get(chat_id)
    assert (found.title, found.is_pinned, found.is_archived, found.model) == ("new", True, True, "qwen")
    assert found.settings == ChatSettings("system")


def _all_pages(store: ChatStore, **options: bool) -> list[Chat]:
    chats: list[Chat] = []
    while page := store.chats.page(after=chats[-1] if chats else None, limit=3, **options):
        chats += page
    return chats


def test_pages_show_every_chat_once_pinned_ones_first(store: ChatStore) -> None:
    ids = [store.chats.create(title=str(number)).id for number in range(10)]
    store.chats.pin(ids[4], True)
    store.messages.add(ids[2], None, MessageContent(role="user", content="the latest news"))
    listed = [chat.id for chat in _all_pages(store)]
    assert sorted(listed) == ids
    assert listed[0] == ids[4]
    assert store.chats.latest() is not None
    assert [chat.updated_ms for chat in _all_pages(store)[1:]] == sorted(
        (chat.updated_ms for chat in _all_pages(store)[1:]), reverse=True
    )


def test_archived_chats_have_a_list_of_their_own(store: ChatStore) -> None:
    kept, archived = store.chats.create(title="kept"), store.chats.create(title="archived")
    store.chats.archive(archived.id, True)
    assert [chat.id for chat in store.chats.page()] == [kept.id]
    assert [chat.id for chat in store.chats.page(archived=True)] == [archived.id]


def test_a_page_is_bounded(store: ChatStore) -> None:
    for _ in range(PAGE_SIZE + 1):
        store.chats.create()
    assert len(store.chats.page()) == PAGE_SIZE


def test_pages_are_narrowed_by_model_and_moment_as_a_search_is(store: ChatStore) -> None:
    first, second = store.chats.create(model="guide"), store.chats.create(model="qwen")
    assert store.chats.page(chat_filter=ChatFilter(model="qwen")) == [second]
    assert store.chats.page(chat_filter=ChatFilter(since_ms=first.updated_ms)) == [second, first]
    assert store.chats.page(chat_filter=ChatFilter(until_ms=first.updated_ms)) == []
    assert store.chats.page(after=second, chat_filter=ChatFilter(model="guide")) == [first]


def test_models_are_those_of_chats_that_are_there(store: ChatStore) -> None:
    for model in ("qwen", "guide", "qwen", ""):
        store.chats.create(model=model)
    store.chats.delete(store.chats.create(model="gone").id)
    assert store.chats.models() == ["guide", "qwen"]


def test_a_deleted_chat_is_nowhere_until_it_is_restored(store: ChatStore) -> None:
    chat = store.chats.create(title="gone")
    store.messages.add(chat.id, None, MessageContent(role="user", content="aubergine"))
    store.chats.delete(chat.id)
    assert store.chats.page() == []
    assert store.chats.latest() is None
    assert store.search.find("aubergine") == []
    assert store.search.find("gone") == []
    with pytest.raises(UnknownChatError):
        store.chats.get(chat.id)
    assert store.chats.restore(chat.id).title == "gone"
    assert len(store.search.find("aubergine")) == 1


@pytest.mark.slow
def test_sweeping_forgets_what_was_deleted_long_ago_and_nothing_else(store: ChatStore) -> None:
    old, kept = store.chats.create(title="old"), store.chats.create(title="kept")
    parent_id = None
    for number in range(1_200):  # deeper than SQLite lets triggers go
        parent_id = store.messages.add(old.id, parent_id, MessageContent(role="user", content=f"turn {number}")).id
    store.chats.delete(old.id)
    assert store.purge_deleted() == 0
    assert store.chats.purge_deleted(2**62) == 1
    with pytest.raises(UnknownChatError):
        store.chats.restore(old.id)
    assert store.messages.of(old.id) == ()
    assert store.chats.get(kept.id) == kept


@pytest.mark.parametrize("verb", ["rename", "pin", "delete", "get", "restore", "read", "duplicate"])
def test_a_chat_that_is_not_there_is_named(store: ChatStore, verb: str) -> None:
    acts = {
        "rename": lambda: store.chats.rename(7, "x"),
        "pin": lambda: store.chats.pin(7, True),
        "delete": lambda: store.chats.delete(7),
        "get": lambda: store.chats.get(7),
        "restore": lambda: store.chats.restore(7),
        "read": lambda: store.transcripts.read(7),
        "duplicate": lambda: store.transcripts.duplicate(7),
    }
    with pytest.raises(UnknownChatError, match="no chat 7"):
        acts[verb]()


def test_a_duplicate_has_every_branch_and_shares_nothing(store: ChatStore) -> None:
    chat = store.chats.create(title="two ways")
    question = store.messages.add(chat.id, None, MessageContent(role="user", content="why?"))
    first = store.messages.add(chat.id, question.id, MessageContent(role="assistant", content="because"))
    store.messages.add(chat.id, question.id, MessageContent(role="assistant", content="therefore"))
    store.messages.show(chat.id, first.id)
    copy = store.transcripts.read(store.transcripts.duplicate(chat.id).id)
    store.messages.remove(chat.id, question.id)
    assert [message.content for message in copy.messages] == ["why?", "because", "therefore"]
    assert [message.content for message in copy.branch] == ["why?", "because"]
    assert store.transcripts.read(copy.chat.id) == copy


def test_the_chat_that_was_used_last_is_the_first_though_the_clock_was_put_back(
    store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 10**18
    monkeypatch.setattr("app.chat.store.database.time.time_ns", lambda: now_ns)
    first, second = store.chats.create(title="first"), store.chats.create(title="second")
    now_ns -= 3600 * 10**9
    third = store.chats.create(title="third")
    question = store.messages.add(first.id, None, MessageContent(role="user", content="now?"))
    assert [chat.title for chat in store.chats.page()] == ["first", "third", "second"]
    now_ns -= 3600 * 10**9
    copy = store.transcripts.duplicate(second.id)
    assert [chat.id for chat in store.chats.page()] == [copy.id, first.id, third.id, second.id]
    store.messages.finish(question.id, MessageContent(role="user", content="now!"))
    assert [chat.id for chat in store.chats.page()] == [first.id, copy.id, third.id, second.id]


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
            sources=(Source("/a.md", "salt"),),
        ),
        n_kept=4,
        sources=(Source("/soup.pdf", "broth", 7, 12, 3, "Methods > Broth"),),
    )
    chat_id = store.chats.create().id
    added = store.messages.add(chat_id, None, said)
    assert store.messages.of(chat_id) == (added,)
    assert all(getattr(added, name) == getattr(said, name) for name in MessageContent.__dataclass_fields__)


@pytest.mark.slow
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
