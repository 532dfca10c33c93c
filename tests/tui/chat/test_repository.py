"""What was said is there again: after quitting, after a stop, after a kill, in every branch."""

from __future__ import annotations

from pathlib import Path

from app.chat.conversation import Message, MessageContent, MessageState
from app.chat.store import ChatStore
from app.client.fake import ScriptedClient, ScriptedReply
from quantizer.errors import StorageError
from tui.chat import repository as kept_chat
from tui.chat.repository import AnswerTarget, SqliteChatRepository


def _kept(data_dir: Path) -> list[Message]:
    with ChatStore(data_dir) as store:
        chat = store.chats.latest()
        return list(store.messages.of(chat.id)) if chat else []


def _shown(data_dir: Path) -> list[tuple[str, str]]:
    with ChatStore(data_dir) as store:
        chat = store.chats.latest()
        assert chat is not None
        return [(message.role, message.content) for message in store.transcripts.read(chat.id).branch]


async def test_person_quits_and_finds_the_chat_there_again_and_goes_on(sitting, tmp_path):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.asks("Who are you?")
        await person.sees("Hello.", "48.0 tok/s")
    later = ScriptedClient(ScriptedReply(deltas=("Still me.",)))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(later, keeper=keeper) as person:
        await person.sees("Who are you?", "Hello.")
        await person.asks("And now?")
        await person.sees("Still me.")
    assert [message.content for message in later.requests[0]] == ["Who are you?", "Hello.", "And now?"]
    assert [content for _, content in _shown(tmp_path)] == ["Who are you?", "Hello.", "And now?", "Still me."]
    first_answer = _kept(tmp_path)[1]
    assert (first_answer.model, first_answer.stats["decode_tokens_per_s"]) == ("guide", 48.0)


async def test_a_stopped_answer_is_kept_as_partial(sitting, tmp_path):
    client = ScriptedClient(ScriptedReply(deltas=("Kept ", "half ", "never"), pause_after=2))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.asks("go")
        await person.sees("Kept half")
        await person.presses("escape")
        await person.sees("stopped")
    assert [(message.content, message.state) for message in _kept(tmp_path)][1:] == [
        ("Kept half ", MessageState.PARTIAL)
    ]


async def test_quitting_in_mid_answer_keeps_what_came_of_it(sitting, tmp_path):
    client = ScriptedClient(ScriptedReply(deltas=("Half.", "never"), pause_after=1))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.asks("go")
        await person.sees("Half.")
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("go", "Half.", "stopped")


async def test_an_answer_made_again_is_a_sibling_of_the_first(sitting, tmp_path):
    client = ScriptedClient(ScriptedReply(deltas=("First try.",)), ScriptedReply(deltas=("Second try.",)))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.asks("again?")
        await person.sees("First try.")
        await person.presses("ctrl+r")
        await person.sees("Second try.")
    question, first, second = _kept(tmp_path)
    assert first.parent_id == second.parent_id == question.id
    assert first.content == "First try."
    assert _shown(tmp_path) == [("user", "again?"), ("assistant", "Second try.")]


def _write_long_chat(data_dir: Path, n_questions: int) -> int:
    with ChatStore(data_dir) as store:
        chat, leaf_id = store.chats.create(), None
        for number in range(n_questions):
            for role in ("user", "assistant"):
                leaf_id = store.messages.add(
                    chat.id, leaf_id, MessageContent(role=role, content=f"{role} {number}.")
                ).id
    return chat.id


async def test_a_long_chat_is_there_from_its_end_to_its_beginning_and_the_model_is_told_all(sitting, tmp_path):
    _write_long_chat(tmp_path, 50)
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.sees("user 49.", "assistant 49.")
        assert len(person.app.screen.query("MessageView")) < 40
        for number in (44, 41, 38):
            await person.presses("pageup")
            await person.sees(f"user {number}.")
        await person.presses("ctrl+home")
        await person.sees("user 0.")
        await person.asks("on")
        await person.sees("on", "Hello.", "assistant 49.")
    assert len(client.requests[0]) == 101


async def test_a_chat_is_opened_at_any_of_its_messages(sitting, tmp_path):
    chat_id = _write_long_chat(tmp_path, 50)
    with ChatStore(tmp_path) as store:
        wanted = store.messages.of(chat_id)[31]
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("assistant 49.")
        await person.app.open_chat(chat_id, wanted.id)
        await person.sees("assistant 15.", "copy")
        assert "assistant 49." not in person.screen_text


async def test_a_new_chat_is_another_one_and_the_old_one_stays(sitting, tmp_path):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.asks("the first")
        await person.sees("Hello.")
        await person.presses("ctrl+n")
        await person.asks("the second")
        await person.sees("Hello.")
    with ChatStore(tmp_path) as store:
        assert sorted(chat.title for chat in store.chats.page()) == ["the first", "the second"]


async def test_the_system_prompt_comes_back_with_the_chat(sitting, tmp_path):
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.asks("/system Be kind.")
        await person.asks("hi")
        await person.sees("Hello.")
    async with SqliteChatRepository(tmp_path) as keeper:
        assert (await keeper.reopen()).settings.system == "Be kind."


async def test_a_store_that_cannot_be_used_is_told_of_and_no_question_is_lost_in_it(sitting, tmp_path):
    (tmp_path / "chats.db").write_bytes(b"my diary" * 1000)
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("The file is no database.", "Nothing was deleted")
        await person.asks("hi")
        await person.sees("hi", "No answer")


async def test_a_question_that_was_not_kept_is_kept_when_it_is_asked_again(sitting, tmp_path, monkeypatch):
    client = ScriptedClient()
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.asks("first")
        await person.sees("Hello.")
        with monkeypatch.context() as full:
            full.setattr(kept_chat, "_prepare", _fail)
            await person.asks("second")
            await person.sees("The disk is full.", "No answer")
        await person.presses("ctrl+r")
        await person.no_longer_sees("The disk is full.")
        await person.sees("ready")
    assert [content for _, content in _shown(tmp_path)] == ["first", "Hello.", "second", "Hello."]
    assert len(client.requests) == 2


def _fail(*_: object) -> None:
    raise StorageError("The disk is full.")


async def test_a_chat_taken_in_from_elsewhere_can_be_gone_on_with(tmp_path):
    with ChatStore(tmp_path) as store:
        chat = store.chats.create(title="imported")
        store.messages.add(chat.id, None, MessageContent(role="assistant", content="How can I help?"))
    async with SqliteChatRepository(tmp_path) as keeper:
        conversation = await keeper.reopen()
        assert conversation.last_answer == "How can I help?"
        question = await keeper.say(conversation.leaf_id, MessageContent(role="user", content="like this"))
        async with keeper.answering(AnswerTarget(question.id, "guide")) as recording:
            recording.write("Fine.")
    assert [content for _, content in _shown(tmp_path)] == ["How can I help?", "like this", "Fine."]


async def test_another_chat_is_opened_and_gone_on_with(sitting, tmp_path):
    client = ScriptedClient(ScriptedReply(deltas=("Of soup.",)), ScriptedReply(deltas=("Of bread.",)))
    async with SqliteChatRepository(tmp_path) as keeper, sitting(client, keeper=keeper) as person:
        await person.asks("About soup?")
        await person.sees("Of soup.", "48.0 tok/s")
        await person.presses("ctrl+n")
        await person.no_longer_sees("Of soup.")
        await person.asks("About bread?")
        await person.sees("Of bread.", "48.0 tok/s")
        with ChatStore(tmp_path) as store:
            soup = next(chat for chat in store.chats.page() if "soup" in chat.title)
        await person.app.open_chat(soup.id)
        await person.sees("Of soup.")
        assert "Of bread." not in person.screen_text
        await person.asks("More?")
        await person.sees("More?", "48.0 tok/s")
    assert [message.content for message in client.requests[-1]] == ["About soup?", "Of soup.", "More?"]


async def test_scrolling_up_faster_than_messages_come_stays_where_it_got_to(sitting, tmp_path):
    _write_long_chat(tmp_path, 50)
    async with SqliteChatRepository(tmp_path) as keeper, sitting(ScriptedClient(), keeper=keeper) as person:
        await person.sees("assistant 49.")
        transcript = person.app.screen.query_one("Transcript")
        transcript.scroll_to(y=0, animate=False, immediate=True)  # the first row of what is there by now
        await person.until(lambda: transcript.scroll_y > transcript.size.height, "nothing came above")
        assert "user 0." not in person.screen_text
