"""What happens while a question is answered, as events: what every renderer of a chat draws."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from itertools import groupby

import pytest

from app.chat.backend import ConnectionState, LoadedModel
from app.chat.branches import UNSAVED_ID, Conversation
from app.chat.compaction import NO_SUMMARY
from app.chat.conversation import ChatSettings, MessageContent, MessageState
from app.chat.events import ApprovalNeeded, ChatEvent, Events, Failed, Note, Written
from app.chat.exchange import ask, ask_again, go_on
from app.chat.repository import InMemoryChatRepository, OpenedChat
from app.chat.state import ChatState
from app.protocol.errors import ContextOverflowError
from app.tools.approval import Decision, ToolSettings
from quantizer.system.errors import EngineError, StorageError
from tests.app.chat.tool_chats import TOOLS, backend_of, call, calling, roles, said, unbatched
from tests.app.client.scripted_client import COMPLETED, READY, ScriptedClient, ScriptedReply

__all__ = ["unbatched"]

QUESTION = MessageContent(role="user", content="Do it.")


def reply(text: str, n_prompt: int, n_output: int) -> ScriptedReply:
    return ScriptedReply(deltas=(text,), ending=replace(COMPLETED, n_prompt_tokens=n_prompt, n_output_tokens=n_output))


LONG = (reply("One. " + "leeks " * 700, 60, 1000), reply("leeks " * 300 + "Two.", 1100, 450))
THIRD = MessageContent(role="user", content="And now? " + "word " * 80)


def chat_of(client: ScriptedClient, tools: ToolSettings = TOOLS, n_ctx: int = 2048) -> ChatState:
    opened = OpenedChat(InMemoryChatRepository().new(), Conversation(ChatSettings(tools=tools)))
    model = LoadedModel(client, ConnectionState(phase="ready", model="guide", n_ctx=n_ctx))
    return ChatState(opened, model, tools=backend_of(), clock=lambda: 0.0)


async def drained(events: Events, chat: ChatState | None = None, *decisions: Decision) -> list[ChatEvent]:
    """Return all events; give `decisions` in order when the chat asks."""
    seen, left = [], list(decisions)
    async with aclosing(events):
        async for event in events:
            seen.append(event)
            if isinstance(event, ApprovalNeeded) and chat is not None:
                assert chat.approvals.answer(event.question, left.pop(0))
    return seen


async def filled(*replies: ScriptedReply) -> ChatState:
    """Return a chat whose context is nearly full after two questions; `replies` are the next ones."""
    chat = chat_of(ScriptedClient(*LONG, *replies), ToolSettings())
    for _ in LONG:
        await drained(ask(chat, QUESTION, chat.conversation.leaf_id))
    return chat


def names(events: list[ChatEvent]) -> str:
    """Return what happened, in order; what is reported several times in a row once."""
    return " ".join(name for name, _ in groupby(type(event).__name__ for event in events))


ANSWERED = "Reading Written Finished"
FAILED = "Added Reading Failed Summarizing"


@pytest.mark.parametrize(
    ("replies", "decisions", "seen"),
    [
        ([said("Done.")], (), f"Added {ANSWERED}"),
        (
            [calling(call(1)), said("Done.")],
            (),
            "Added Reading Written Finished Calling Result Reading Written Finished",
        ),
        (
            [calling(call(1, "run"), call(2)), said("Done.")],
            (Decision.DENY,),
            f"Added {ANSWERED} Calling ApprovalNeeded Result Calling Result {ANSWERED}",
        ),
        ([ScriptedReply(deltas=("Half",), ending=EngineError("It died."))], (), "Added Reading Written Failed"),
    ],
    ids=["answer", "call", "denied", "failed"],
)
async def test_an_exchange_yields_what_happens_in_order(replies, decisions, seen):
    chat = chat_of(ScriptedClient(*replies))
    assert names(await drained(ask(chat, QUESTION, None), chat, *decisions)) == seen
    assert chat.activity == ""


async def test_events_are_drawn_from_the_conversation_that_has_them_already():
    chat = chat_of(ScriptedClient(calling(call(1), text="Let me see.", thoughts=("Hm.",)), said("Done.")))
    async with aclosing(ask(chat, QUESTION, None)) as events:
        async for event in events:
            message = getattr(event, "message", None)
            if message is not None:
                assert chat.conversation.messages[message.id] == message
    assert roles(chat.conversation.branch) == ["user", "assistant", "tool", "assistant"]


async def test_closing_the_events_stops_the_answer_and_keeps_its_text():
    client = ScriptedClient(ScriptedReply(deltas=("Half ", "whole."), pause_after=1))
    chat = chat_of(client)
    async with aclosing(ask(chat, QUESTION, None)) as events:
        async for event in events:
            if isinstance(event, Written) and event.text:
                break
    answer = chat.conversation.branch[-1]
    assert (answer.content, answer.state, client.n_aborted) == ("Half ", MessageState.PARTIAL, 1)
    assert (chat.activity, chat.conversation.running_id) == ("", None)


async def test_closing_the_events_while_a_call_asks_stores_that_it_did_not_run():
    chat = chat_of(ScriptedClient(calling(call(1, "run"))))
    async with aclosing(ask(chat, QUESTION, None)) as events:
        async for event in events:
            if isinstance(event, ApprovalNeeded):
                break
    assert "did not run" in chat.conversation.branch[-1].content
    assert (chat.approvals.questions, chat.activity) == ((), "")


async def test_a_question_that_cannot_be_stored_is_not_sent():
    client = ScriptedClient()
    chat = chat_of(client)

    async def fail(*_: object) -> None:
        raise StorageError("The disk is full.", "Free some space.")

    chat.stored.add_message = fail  # type: ignore[method-assign]
    (event,) = await drained(ask(chat, QUESTION, None))
    assert isinstance(event, Failed)
    assert (chat.conversation.leaf_id, client.requests) == (UNSAVED_ID, [])


async def test_after_the_last_round_the_exchange_pauses_and_goes_on_when_told():
    endless = [calling(call(number, n=number)) for number in range(1, 3)]
    chat = chat_of(ScriptedClient(*endless, said("Done.")), replace(TOOLS, max_rounds=1))
    assert names(await drained(ask(chat, QUESTION, None))).endswith("Result Paused")
    assert names(await drained(go_on(chat, chat.conversation.branch[-1]))).endswith("Result Paused")
    assert names(await drained(go_on(chat, chat.conversation.branch[-1]))) == "Reading Written Finished"


async def test_a_context_that_is_nearly_full_is_summarised_before_the_next_answer():
    chat = await filled(said("Soup."), said("Fresh."))
    events = await drained(ask(chat, THIRD, chat.conversation.leaf_id))
    assert names(events) == f"Added Summarizing Written Added Note {ANSWERED}"
    assert roles(chat.conversation.branch)[-2:] == ["summary", "assistant"]


@pytest.mark.parametrize(
    ("then", "seen"),
    [
        (said("Soup."), f"{FAILED} Written Added Note {ANSWERED}"),
        (
            ScriptedReply(ending=ContextOverflowError(2100, 2048)),
            "Added Reading Failed Summarizing Added Note Reading Failed",
        ),
    ],
    ids=["summarised", "too long for a summary too"],
)
async def test_after_an_overflow_the_question_is_answered_again_if_a_summary_makes_room(then, seen):
    chat = await filled(ScriptedReply(ending=ContextOverflowError(2100, 2048)), then)
    assert names(await drained(ask(chat, QUESTION, chat.conversation.leaf_id))) == seen
    assert bool(chat.conversation.errors) == seen.endswith("Failed")


async def test_a_summary_that_fails_is_a_note_and_the_question_is_sent_as_it_is():
    chat = await filled(said(" "), said("Fresh."))
    events = await drained(ask(chat, THIRD, chat.conversation.leaf_id))
    (note,) = [event for event in events if isinstance(event, Note)]
    assert "empty summary" in note.text
    assert roles(chat.conversation.branch) == ["user", "assistant"] * 3
    assert not chat.may_compact


class EndlessModel(ScriptedClient):
    """Writes on until it meets a limit, as very small models do. A token is a word."""

    def chat(self, messages, model="", options=None):
        n_prompt = sum(4 + len(message.content.split()) for message in messages)
        if n_prompt >= self.model.n_ctx:
            reply = ScriptedReply(ending=ContextOverflowError(n_prompt, self.model.n_ctx))
        else:
            n_left = self.model.n_ctx - n_prompt
            n_words = min(n_left, options.max_tokens or n_left)
            text = " ".join(f"Fact {n}." for n in range(n_words // 2)) + " And"
            ending = replace(COMPLETED, n_prompt_tokens=n_prompt, n_output_tokens=n_words, finish_reason="length")
            reply = ScriptedReply(deltas=(text,), ending=ending)
        self._replies = (reply,)
        return super().chat(messages, model, options)


@pytest.mark.parametrize("n_ctx", [512, 640, 768, 1024, 2048])
@pytest.mark.parametrize("options", [{}, {"max_tokens": 100}], ids=["unlimited", "short answers"])
async def test_a_chat_with_a_model_that_never_ends_goes_on_in_a_small_context(n_ctx, options):
    """In the smallest ones there is no room to ask for a summary."""
    client = EndlessModel(model=replace(READY, n_ctx=n_ctx))
    chat = chat_of(client, ToolSettings(), n_ctx)
    chat.conversation.settings = replace(chat.conversation.settings, options=options)
    notes = []
    for _ in range(40):
        events = await drained(ask(chat, QUESTION, chat.conversation.leaf_id))
        notes += [event.text for event in events if isinstance(event, Note)]
        assert not chat.conversation.errors
    summaries = [message.content for message in chat.conversation.branch if message.role == "summary"]
    assert len(summaries) == len(notes) > 2
    assert all("They have no summary" in note or "did not end within" in note for note in notes)
    assert all(summary.endswith(".") for summary in summaries)
    assert (NO_SUMMARY in summaries) == (n_ctx < 768)


async def test_after_an_overflow_older_messages_are_left_out_where_the_model_writes_no_summary():
    chat = await filled(ScriptedReply(ending=ContextOverflowError(2100, 2048)), said(" "), said("Fresh."))
    events = await drained(ask(chat, QUESTION, chat.conversation.leaf_id))
    (note,) = [event.text for event in events if isinstance(event, Note)]
    assert note.startswith("Left out 4 messages: ")
    assert [message.content for message in chat.conversation.branch][-2:] == [NO_SUMMARY, "Fresh."]
    assert not chat.conversation.errors


async def test_asking_again_replaces_a_blank_answer_and_keeps_others_as_versions():
    chat = chat_of(ScriptedClient(ScriptedReply(), said("One."), said("Two.")), ToolSettings())
    await drained(ask(chat, QUESTION, None))
    question = chat.conversation.branch[0]
    for _ in range(2):
        await drained(ask_again(chat, question))
    answers = [message.content for message in chat.conversation.messages.values() if message.role == "assistant"]
    assert answers == ["One.", "Two."]
