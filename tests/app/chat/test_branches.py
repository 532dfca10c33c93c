"""The shown branch of a chat, and the turns sent to the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.chat.branches import ContextSize, Conversation, Ending
from app.chat.compaction import summary_turn
from app.chat.conversation import ChatSettings, Message, MessageState
from app.protocol.chat import ToolCall
from app.tools.tool import ToolResult
from quantizer.system.errors import EngineError


def _turns(chat: Conversation, leaf_id: int) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in chat.turns(leaf_id)]


def _message(number: int, role: str, content: str, parent_id: int | None = -1, **fields: object) -> Message:
    parent_id = (number - 1 or None) if parent_id == -1 else parent_id
    return Message(id=number, parent_id=parent_id, role=role, content=content, **fields)


def _chat(*messages: Message, system: str = "") -> Conversation:
    by_id = {message.id: message for message in messages}
    return Conversation(ChatSettings(system=system), by_id, messages[-1].id if messages else None)


FORK = (
    _message(1, "user", "a"),
    _message(2, "assistant", "A"),
    _message(3, "user", "b"),
    _message(4, "assistant", "B"),
    _message(5, "assistant", "B again", parent_id=3),
)


def test_questions_without_an_answer_are_omitted_and_partial_answers_are_sent():
    chat = _chat(
        _message(1, "user", "a"),
        _message(2, "assistant", "half", state=MessageState.PARTIAL),
        _message(3, "user", "b"),
        _message(4, "assistant", "", state=MessageState.PARTIAL),
        _message(5, "user", "c"),
        system="Be kind.",
    )
    assert _turns(chat, 5) == [("system", "Be kind."), ("user", "a"), ("assistant", "half"), ("user", "c")]


def test_the_output_of_a_tool_is_sent_with_the_answer_around_it():
    chat = _chat(
        _message(1, "user", "a"), _message(2, "assistant", "A"), _message(3, "tool", "1"), _message(4, "assistant", "B")
    )
    assert _turns(chat, 4) == [("user", "a"), ("assistant", "A\n\n1\n\nB")]


SUMMARISED = (
    _message(1, "user", "a"),
    _message(2, "assistant", "A"),
    _message(3, "user", "b"),
    _message(4, "assistant", "B", stats={"n_prompt_tokens": 900, "n_output_tokens": 50}),
    _message(5, "summary", "They said a.", n_kept=2, stats={"n_tokens_before": 950, "n_tokens_after": 120}),
    _message(6, "user", "c"),
    _message(7, "assistant", "C", stats={"n_prompt_tokens": 140, "n_output_tokens": 9}),
)


def test_a_summary_is_sent_in_place_of_what_it_replaces_before_the_messages_that_it_keeps():
    chat = _chat(*SUMMARISED, system="Be kind.")
    assert _turns(chat, 6) == [
        ("system", "Be kind."),
        ("user", f"{summary_turn('They said a.')}\n\nb"),
        ("assistant", "B"),
        ("user", "c"),
    ]
    assert _turns(chat, 4)[1:] == [("user", "a"), ("assistant", "A"), ("user", "b"), ("assistant", "B")]


def test_a_summary_without_kept_messages_is_a_turn_with_the_next_question():
    chat = _chat(*SUMMARISED[:4], replace(SUMMARISED[4], n_kept=0), *SUMMARISED[5:])
    assert _turns(chat, 6) == [("user", f"{summary_turn('They said a.')}\n\nc")]


def test_a_summary_that_was_cut_off_replaces_nothing():
    chat = _chat(*SUMMARISED[:4], replace(SUMMARISED[4], state=MessageState.PARTIAL), *SUMMARISED[5:])
    assert _turns(chat, 6)[0] == ("user", "a")
    assert chat.context_size(6).n_tokens > 950


def test_the_context_falls_with_a_summary_and_is_exact_again_after_the_next_answer():
    chat = _chat(*SUMMARISED)
    assert chat.context_size(4) == ContextSize(950)
    assert chat.context_size(5) == ContextSize(120, is_estimated=True)
    assert chat.context_size(7) == ContextSize(149)


def test_a_summary_of_a_file_without_figures_is_estimated():
    chat = _chat(*SUMMARISED[:4], replace(SUMMARISED[4], stats={}))
    size = chat.context_size(5)
    assert size.is_estimated
    assert 0 < size.n_tokens < 200


def test_a_system_message_within_a_chat_is_not_sent():
    chat = _chat(_message(1, "system", "x"), _message(2, "user", "a"))
    assert _turns(chat, 2) == [("user", "a")]


def test_last_answer_skips_messages_without_text():
    assert _chat(_message(1, "user", "a"), _message(2, "assistant", "A"), _message(3, "user", "b")).last_answer == "A"
    assert Conversation().last_answer == ""


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({}, Ending.COMPLETE),
        ({"stats": {"finish_reason": "length"}}, Ending.CUT),
        ({"state": MessageState.PARTIAL}, Ending.STOPPED),
    ],
)
def test_an_entry_shows_how_its_message_ended(fields, ending):
    chat = _chat(_message(1, "assistant", "A", **fields))
    assert chat.entries()[0].ending is ending
    chat.errors[1] = EngineError("died")
    assert chat.entries()[0].ending is Ending.FAILED


def test_versions_are_counted_and_stepped_through():
    chat = _chat(*FORK)
    assert [(entry.version, entry.n_versions) for entry in chat.entries()] == [(1, 1), (1, 1), (1, 1), (2, 2)]
    assert (chat.step_to_version(5, -1), chat.last_answer) == (4, "B")
    assert chat.step_to_version(4, -1) is None
    assert chat.last_answer == "B"


def test_removing_shows_another_version_and_what_was_removed_can_be_put_back():
    chat = _chat(*FORK)
    removed = chat.remove(5)
    assert [message.content for message in chat.branch] == ["a", "A", "b", "B"]
    chat.restore(removed)
    assert chat == _chat(*FORK)
    removed = chat.remove(2)
    assert [message.content for message in chat.branch] == ["a"]
    assert [message.id for message in removed.messages] == [2, 3, 4, 5]
    chat.restore(removed)
    assert chat == _chat(*FORK)


def test_a_message_of_another_branch_is_shown_with_its_branch():
    chat = _chat(*FORK)
    chat.show(4)
    assert chat.last_answer == "B"
    chat.show(1)
    assert chat.last_answer == "B"


def test_the_question_of_a_message_is_the_latest_one_up_to_it():
    chat = _chat(*FORK)
    questions = [chat.question_of(number) for number in (5, 3, 2)]
    assert [question.content if question else "" for question in questions] == ["b", "b", "a"]
    assert _chat(_message(1, "assistant", "How can I help?")).question_of(1) is None


def test_the_context_is_counted_by_the_last_finished_answer_and_estimated_after_it():
    counted = {"n_prompt_tokens": 40, "n_output_tokens": 12}
    chat = _chat(
        _message(1, "user", "a"), _message(2, "assistant", "A", stats=counted), _message(3, "user", "12345678")
    )
    assert chat.context_size(2) == ContextSize(52)
    assert chat.context_size(3) == ContextSize(54, is_estimated=True)
    assert _chat().context_size(None) == ContextSize()


CALL = ToolCall("c", "read_file", "{}")
# One question, answered by two models that each call a tool first.
CALLING = (
    _message(1, "user", "a"),
    _message(2, "assistant", "", calls=(CALL,)),
    _message(3, "tool", "text", result=ToolResult(call_id="c", tool="read_file")),
    _message(4, "assistant", "One says."),
    _message(5, "assistant", "", parent_id=1, calls=(CALL,)),
    _message(6, "tool", "text", result=ToolResult(call_id="c", tool="read_file")),
    _message(7, "assistant", "The other says."),
)


def _beside(chat: Conversation) -> list[tuple[str, str]]:
    return [(each.message.content, each.beside.message.content) for each in chat.entries() if each.beside]


def test_what_two_versions_say_after_their_calls_is_compared():
    chat = _chat(*CALLING)
    assert chat.compare_last(2)
    assert _beside(chat) == [("The other says.", "One says.")]
    chat.leaf_id = 6  # it is still calling
    assert _beside(chat) == [("", "One says.")]
    chat.leaf_id = 4
    assert _beside(chat) == [], "it is the shown one"


def test_a_later_question_belongs_to_neither_of_two_compared_versions():
    chat = _chat(*CALLING, _message(8, "user", "b", parent_id=4), _message(9, "assistant", "B"))
    chat.leaf_id = 7
    assert chat.compare_last(2)
    assert _beside(chat) == [("The other says.", "One says.")]


def test_versions_of_an_answer_that_called_tools_are_found_without_being_named():
    chat = _chat(*CALLING)
    assert chat.compare_last()
    assert chat.compared_id == 2
    assert chat.compare_last(), "it ends the comparison"
    assert _beside(chat) == []
    assert not _chat(*CALLING[:4]).compare_last()


def test_messages_of_another_window_replace_those_that_are_known() -> None:
    chat = _chat(*FORK)
    more = _message(4, "assistant", "B, and more")
    chat.merge([_message(6, "user", "c", parent_id=4), more])
    assert list(chat.messages) == [1, 2, 3, 4, 5, 6]
    assert chat.messages[4] == more
    assert chat.leaf_id == 5
