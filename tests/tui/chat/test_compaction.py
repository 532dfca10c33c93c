"""Long chats: older messages become a summary that the person sees, edits and deletes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from app.chat.conversation import MessageState
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.protocol.errors import ContextOverflowError
from app.tools.tool import ToolOutput
from quantizer.system.errors import EngineError
from tests.app.chat.tool_chats import ask, backend_of, call, calling, opened_chat, roles, said
from tests.app.client.scripted_client import COMPLETED, READY, ScriptedClient, ScriptedReply
from tests.app.tools.fake import ScriptedCall

SUMMARY = "The cook wants **soup** with leeks."


def _reply(text: str, n_prompt: int = 40, n_output: int = 12, **how: object) -> ScriptedReply:
    ending = replace(COMPLETED, n_prompt_tokens=n_prompt, n_output_tokens=n_output, **how)
    return ScriptedReply(deltas=(text,), ending=ending)


LONG = (_reply("One. " + "leeks " * 700, 60, 1000), _reply("leeks " * 300 + "Two.", 1100, 450))
SHORT = _reply("Fresh.", 300, 20)


async def _fills(user, *questions: str) -> None:
    """Ask, and wait for the end of each answer."""
    session = user.app.app_context.session
    for question in questions:
        n_before = len(_branch(user))
        await user.asks(question)
        await user.until(lambda n=n_before: not session.chat.is_answering and len(_branch(user)) > n, "no answer")


def _branch(user):
    return user.app.app_context.session.conversation.branch


@pytest.mark.slow
async def test_a_chat_that_fills_the_context_is_compacted_before_the_next_question(open_app, tmp_path):
    client = ScriptedClient(*LONG, _reply(SUMMARY, 1450, 60), SHORT)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("Third question " + "word " * 80)
        await user.sees("2 earlier messages are summarised; they stay in the chat", "soup with leeks", "Fresh.")
        await user.sees("Compacted 2 messages: 1,550 → ", "320 of 2k")
        assert [message.role for message in _branch(user)] == ["user", "assistant"] * 2 + [
            "summary",
            "user",
            "assistant",
        ]
    asked, answered = client.requests[2:]
    assert [turn.content for turn in asked[:2]] == [turn.content for turn in client.requests[1][:2]]
    assert asked[-1].content.startswith("Summarise our conversation")
    assert (len(asked), client.options[2].think) == (3, "off")
    assert SUMMARY in answered[0].content
    assert answered[0].content.endswith("Second question")
    assert [turn.role for turn in answered] == ["user", "assistant", "user"]
    with ChatStore(tmp_path) as store:
        (summary,) = [message for message in store.messages.of(1) if message.role == "summary"]
        assert (summary.n_kept, summary.content, summary.state) == (2, SUMMARY, MessageState.FINISHED)


@pytest.mark.slow
async def test_a_context_that_can_grow_is_left_to_the_service(open_app):
    client = ScriptedClient(*LONG, SHORT, model=replace(READY, can_grow=True))
    async with open_app(client) as user:
        await _fills(user, "First question", "Second question", "Third question " + "word " * 80)
        assert "summary" not in {message.role for message in _branch(user)}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"auto_compact": False}, {"compact_at": 95}])
async def test_the_settings_say_whether_and_when(open_app, settings):
    client = ScriptedClient(*LONG, SHORT)
    async with open_app(client, settings=settings) as user:
        await _fills(user, "First question", "Second question", "Third question " + "word " * 80)
        assert "summary" not in {message.role for message in _branch(user)}


@pytest.mark.slow
async def test_a_prompt_that_does_not_fit_is_sent_again_after_compaction(open_app):
    too_long = ScriptedReply(ending=ContextOverflowError(2100, 2048))
    client = ScriptedClient(*LONG, too_long, SHORT, model=replace(READY, can_grow=True))
    async with open_app(client) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("Third question")
        await user.sees("Fresh.", "earlier messages are summarised", "ready")
        roles = [message.role for message in _branch(user)]
        assert roles == ["user", "assistant"] * 2 + ["user", "summary", "assistant"]
        assert not user.app.app_context.session.conversation.errors
        assert "Third question" in client.requests[-1][-1].content
        n_requests = len(client.requests)
        await user.presses("ctrl+r")
        await user.sees("2/2")
        await user.until(lambda: len(client.requests) == n_requests + 1, "it was not answered again")
        assert client.requests[-1] == client.requests[-2]


@pytest.mark.slow
async def test_where_the_model_writes_no_summary_older_messages_are_left_out_for_a_prompt_that_does_not_fit(open_app):
    too_long = ScriptedReply(ending=ContextOverflowError(2100, 2048))
    client = ScriptedClient(*LONG, too_long, ScriptedReply(deltas=("",)), SHORT, model=replace(READY, can_grow=True))
    async with open_app(client) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("Third question")
        await user.sees("Fresh.", "4 earlier messages are left out; they stay in the chat", "ready")
        assert "Third question" in client.requests[-1][-1].content


async def test_an_overflow_that_compaction_cannot_help_is_shown(open_app):
    client = ScriptedClient(ScriptedReply(ending=ContextOverflowError(3000, 2048)))
    async with open_app(client) as user:
        await user.asks("A very long question")
        await user.sees("No answer", "The prompt has 3000 tokens")
    assert len(client.requests) == 1


@pytest.mark.slow
async def test_compact_summarises_now_with_what_to_keep_in_mind(open_app):
    client = ScriptedClient(*LONG, _reply(SUMMARY, 1450, 60))
    async with open_app(client) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("/compact the recipe")
        await user.sees("soup with leeks", "Compacted 2 messages: 1,550 → ", "ready")
    assert client.requests[2][-1].content.endswith("Keep in mind above all: the recipe")


@pytest.mark.slow
async def test_there_is_nothing_to_compact_in_a_short_chat(open_app):
    client = ScriptedClient(_reply("Hello."))
    async with open_app(client) as user:
        await user.asks("/compact")
        await user.sees("There is nothing to compact yet.")
        await _fills(user, "Hi")
        await user.asks("/compact")
        await user.sees("There is nothing to compact: the older messages are few and short.")
    assert len(client.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (ScriptedReply(deltas=(" ",)), "The model wrote an empty summary"),
        (ScriptedReply(ending=EngineError("The engine died.")), "The engine died."),
    ],
    ids=["empty", "failed"],
)
async def test_a_summary_that_fails_changes_nothing(open_app, tmp_path, reply, said):
    client = ScriptedClient(*LONG, reply)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("/compact")
        await user.sees(said)
        await user.until(lambda: len(_branch(user)) == 4, "the summary stayed")
        await user.sees("1.6k of 2k")
    with ChatStore(tmp_path) as store:
        assert len(store.messages.of(1)) == 4
        assert store.chats.get(1).leaf_id == 4


@pytest.mark.slow
async def test_a_summary_that_reaches_its_limit_is_kept_up_to_its_last_sentence(open_app):
    client = ScriptedClient(*LONG, _reply(f"{SUMMARY} And it", 1450, 341, finish_reason="length"), SHORT)
    async with open_app(client) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("/compact")
        await user.sees("soup with leeks", "did not end within", "tokens and was cut", "ready")
        await user.sees("2 earlier messages are summarised; they stay in the chat")
        assert _branch(user)[-1].content == SUMMARY


@pytest.mark.slow
async def test_where_the_summary_before_a_question_fails_the_question_is_sent_as_it_is(open_app):
    client = ScriptedClient(*LONG, ScriptedReply(deltas=("",)), SHORT)
    async with open_app(client) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("Third question " + "word " * 80)
        await user.sees("The model wrote an empty summary", "Fresh.", "ready")
        assert len(_branch(user)) == 6
    assert len(client.requests) == 4


@pytest.mark.slow
async def test_escape_removes_the_summary_and_puts_the_question_back(open_app, tmp_path):
    slow = ScriptedReply(deltas=("The cook", " wants"), pause_after=1)
    client = ScriptedClient(*LONG, slow, SHORT)
    question = "Third question " + "word " * 80
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await _fills(user, "First question", "Second question")
        await user.asks(question)
        await user.sees("Summarising 2 earlier messages: Esc stops it", "The cook", "waiting: Third question")
        await user.sees("◐ summarising")
        with ChatStore(tmp_path) as store:  # of a process that is killed now nothing is left of the summary
            assert [message.role for message in store.messages.of(1)] == ["user", "assistant"] * 2
            assert store.chats.get(1).leaf_id == store.messages.of(1)[-1].id
        await user.presses("escape")
        await user.no_longer_sees("Summarising")
        await user.until(lambda: "Third question" in user.app.screen.prompt.text, "the question is lost")
        assert len(_branch(user)) == 4
    assert client.n_aborted == 1
    with ChatStore(tmp_path) as store:
        assert len(store.messages.of(1)) == 4


@pytest.mark.slow
async def test_the_question_can_be_taken_back_while_the_summary_is_written(open_app):
    client = ScriptedClient(*LONG, ScriptedReply(deltas=(SUMMARY, " And more."), pause_after=1), SHORT)
    async with open_app(client) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("Third question " + "word " * 80)
        await user.sees("waiting: Third question", "soup with leeks")
        await user.presses("up")
        await user.until(lambda: "Third question" in user.app.screen.prompt.text, "it was not taken back")
        client.resume()
        await user.sees("earlier messages are summarised", "ready")
        assert _branch(user)[-1].role == "summary"
    assert len(client.requests) == 3


@pytest.mark.slow
async def test_an_edited_summary_is_another_version_and_is_what_the_model_reads(open_app, tmp_path):
    client = ScriptedClient(*LONG, _reply(SUMMARY, 1450, 60), SHORT)
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("/compact")
        await user.sees("Compacted 2 messages", "ready")
        await user.asks("/edit")
        await user.until(lambda: user.app.screen.prompt.text == SUMMARY, "the summary is not in the prompt")
        assert user.app.screen.prompt.border_title.startswith("Editing the summary")
        await user.types(" And salt.")
        await user.presses("enter")
        await user.sees("2/2")
        await _fills(user, "Third question")
        assert f"{SUMMARY} And salt." in client.requests[-1][0].content
        with ChatStore(tmp_path) as store:
            versions = [each for each in store.messages.of(1) if each.role == "summary"]
            assert [(each.parent_id, each.n_kept) for each in versions] == [(4, 2)] * 2


@pytest.mark.slow
async def test_a_deleted_summary_gives_the_whole_context_back(open_app):
    client = ScriptedClient(*LONG, _reply(SUMMARY, 1450, 60), SHORT)
    async with open_app(client) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("/compact")
        await user.sees("Compacted 2 messages", "ready")
        await user.presses("ctrl+up")
        await user.sees("Text  E edit")
        await user.presses("delete")
        await user.no_longer_sees("are summarised")
        await user.sees("1.6k of 2k")
        await user.presses("alt+u")
        await user.sees("2 earlier messages are summarised")


@pytest.mark.slow
async def test_an_answer_before_the_summary_is_generated_again_with_all_that_was_before_it(open_app):
    client = ScriptedClient(*LONG, _reply(SUMMARY, 1450, 60), _reply("Two again.", 900, 30))
    async with open_app(client) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("/compact")
        await user.sees("Compacted 2 messages", "ready")
        await user.presses("ctrl+up", "ctrl+up", "r")
        await user.sees("Two again.", "2/2")
        assert [turn.content for turn in client.requests[-1]] == [turn.content for turn in client.requests[1]]
        await user.presses("escape", "ctrl+up", "left")
        await user.until(lambda: _branch(user)[-1].role == "summary", "the summary is gone")


@pytest.mark.slow
async def test_the_text_is_folded_when_the_chat_is_opened_again(open_app, tmp_path):
    client = ScriptedClient(*LONG, _reply(SUMMARY, 1450, 60))
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await _fills(user, "First question", "Second question")
        await user.asks("/compact")
        await user.sees("Compacted 2 messages", "ready")
    async with SqliteChatRepository(tmp_path) as repository, open_app(client, repository=repository) as user:
        await user.sees("▸ 2 earlier messages are summarised", "Two.", "ready")
        assert "soup" not in user.screen_text
        await user.presses("ctrl+up", "t")
        await user.sees("▾ 2 earlier messages", "soup with leeks")
        await user.presses("t")
        await user.no_longer_sees("soup with leeks")


@pytest.mark.slow
async def test_a_chat_longer_than_the_context_is_summarised_in_parts(open_app, tmp_path):
    model = replace(READY, n_ctx=1024)
    client = ScriptedClient(*(_reply(f"Answer {n}. " + "leeks " * 40, 200, 210) for n in range(4)), SHORT, model=model)
    async with (
        SqliteChatRepository(tmp_path) as repository,
        open_app(client, repository=repository, settings={"auto_compact": False}) as user,
    ):
        await _fills(user, "Q1", "Q2", "Q3", "Q4")
        await user.asks("/compact")
        await user.sees("Fresh.", "earlier messages are summarised", "ready")
    n_parts = len(client.requests) - 4
    assert n_parts >= 2
    for before, after in pairwise(client.requests[4:]):
        assert before[-1].content.startswith("Summarise") or "Summarise our" in before[-1].content
        assert "Fresh." in after[0].content


@pytest.mark.slow
async def test_a_model_that_only_continues_text_is_not_asked(open_app):
    client = ScriptedClient(*LONG)
    async with open_app(client) as user:
        await user.asks("/template completion")
        await _fills(user, "First question", "Second question")
        await user.asks("/compact")
        await user.sees("A chat that the model only continues cannot be summarised by it.")


async def test_between_rounds_of_calls_the_earlier_ones_become_a_summary_and_the_question_stays():
    prompts = (100, 700, 1200)
    calls = [calling(call(number, path=f"{number}.txt")) for number in range(1, 4)]
    rounds = [
        replace(each, ending=replace(COMPLETED, n_prompt_tokens=n, n_output_tokens=20))
        for each, n in zip(calls, prompts, strict=True)
    ]
    result = ScriptedCall(ToolOutput("abc " * 480))
    client = ScriptedClient(*rounds, _reply(SUMMARY, 1700, 60), said("Done."))
    async with opened_chat(client, backend_of(read=[result] * 3)) as chat:
        branch = await ask(chat, "Repair the tests.")
        assert roles(branch)[-2:] == ["summary", "assistant"]
        assert branch[-1].content == "Done."
        assert not chat.conversation.errors
    asked, answered = client.requests[-2:]
    assert asked[-1].content.endswith("Call no tool.")
    assert [tool.name for tool in client.options[-2].tools] == ["read", "write", "run"]
    assert "Repair the tests." in answered[0].content
    assert SUMMARY in answered[0].content
    assert [turn.role for turn in answered] == ["user", *["assistant", "tool"] * 2]
