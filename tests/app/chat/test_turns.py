"""Calls of tools and their results, as the model is sent them."""

from __future__ import annotations

import pytest

from app.chat.conversation import Attachment, Message, MessageState
from app.chat.turns import CUT_OFF, NOT_RUN, turns_of
from app.protocol.chat import Message as Turn
from app.protocol.chat import ToolCall
from app.tools.tool import ToolOutcome, ToolResult

ONE, TWO = ToolCall("c1", "read_file", '{"path": "a"}'), ToolCall("c2", "read_file", '{"path": "b"}')


def _message(number: int, role: str, content: str = "", **fields: object) -> Message:
    return Message(id=number, parent_id=number - 1 or None, role=role, content=content, **fields)


def _result(number: int, call: ToolCall, content: str, outcome: ToolOutcome = ToolOutcome.DONE) -> Message:
    result = ToolResult(call_id=call.call_id, tool=call.name, outcome=outcome)
    return _message(number, "tool", content, result=result)


def _turns(*messages: Message) -> list[Turn]:
    return turns_of(messages, {})


ASKED = _message(1, "user", "What is in them?")
CALLED = _message(2, "assistant", "Let me see.", calls=(ONE, TWO), reasoning="Two files.")
ASKED_TURN = Turn("user", "What is in them?")
CALLED_TURN = Turn("assistant", "Let me see.", calls=(ONE, TWO), reasoning="Two files.")
FIRST, SECOND = (Turn("tool", text, call_id=call.call_id, name="read_file") for text, call in (("A", ONE), ("B", TWO)))


def test_calls_are_followed_by_their_results_and_the_next_answer():
    results = (_result(3, ONE, "A"), _result(4, TWO, "B"))
    turns = _turns(ASKED, CALLED, *results, _message(5, "assistant", "Letters."))
    assert turns == [ASKED_TURN, CALLED_TURN, FIRST, SECOND, Turn("assistant", "Letters.")]


def test_results_come_in_the_order_of_the_calls():
    assert _turns(ASKED, CALLED, _result(3, TWO, "B"), _result(4, ONE, "A")) == [ASKED_TURN, CALLED_TURN, FIRST, SECOND]


def test_each_call_without_a_result_is_answered_by_a_text_that_says_so():
    turns = _turns(ASKED, CALLED, _result(3, ONE, "", ToolOutcome.RUNNING), _message(4, "user", "Well?"))
    assert [(turn.role, turn.content) for turn in turns[2:]] == [
        ("tool", CUT_OFF),
        ("tool", NOT_RUN),
        ("user", "Well?"),
    ]


@pytest.mark.parametrize(
    "fields", [{"state": MessageState.PARTIAL}, {"stats": {"finish_reason": "length"}}], ids=["stopped", "cut"]
)
def test_calls_of_an_answer_that_is_not_whole_are_not_sent(fields: dict[str, object]):
    whole = _message(2, "assistant", "Let me see.", calls=(ONE,), **fields)
    assert _turns(ASKED, whole) == [ASKED_TURN, Turn("assistant", "Let me see.")]
    assert _turns(ASKED, _message(2, "assistant", calls=(ONE,), **fields)) == [ASKED_TURN]


def test_arguments_that_are_no_json_object_are_sent_as_an_empty_one():
    broken = ToolCall("c1", "read_file", '{"path": "a')
    turns = _turns(ASKED, _message(2, "assistant", calls=(broken,)), _result(3, broken, "not valid JSON"))
    assert turns[1].calls == (ToolCall("c1", "read_file", "{}"),)
    assert turns[2].content == "not valid JSON"


def test_reasoning_that_led_to_calls_is_sent_until_the_next_question():
    turns = _turns(ASKED, CALLED, _result(3, ONE, "A"), _result(4, TWO, "B"), _message(5, "user", "And now?"))
    assert [turn.reasoning for turn in turns if turn.calls] == [""]


def test_text_before_an_answer_with_calls_is_joined_with_it():
    turns = _turns(ASKED, _message(2, "assistant", "Hm."), _message(3, "assistant", "So.", calls=(ONE,)))
    assert turns[1] == Turn("assistant", "Hm.\n\nSo.", calls=(ONE,))


def test_a_result_of_no_call_is_text():
    orphan = _result(3, TWO, "B")
    turns = _turns(ASKED, _message(2, "assistant", calls=(ONE,)), orphan)
    assert [(turn.role, turn.content) for turn in turns[1:]] == [
        ("assistant", ""),
        ("tool", NOT_RUN),
        ("assistant", "B"),
    ]


def test_a_question_that_was_answered_with_nothing_stays_in_sight_of_the_model() -> None:
    """The person still sees it, with what was pasted into it."""
    turns = _turns(
        _message(1, "user", "A long paste."),
        _message(2, "assistant", ""),
        _message(3, "user", "Stopped before a word."),
        _message(4, "assistant", "", state=MessageState.PARTIAL),
        _message(5, "user", "What did I paste?"),
    )
    assert turns == [Turn("user", "A long paste.\n\nWhat did I paste?", part_ends=(15,))]


def test_a_question_begins_with_its_documents_so_that_another_one_about_them_begins_alike():
    report, minutes = Attachment("report.txt", "A fox."), Attachment("minutes.txt", "A wolf.")
    (one,) = _turns(_message(1, "user", "Who?", attachments=(report, minutes)))
    (other,) = _turns(_message(1, "user", "Where, and when?", attachments=(report, minutes)))
    first, second = one.part_ends
    assert one.content[:first] == "report.txt:\n```\nA fox.\n```\n\n"
    assert one.content[second:] == "Who?"
    assert other.part_ends == one.part_ends
    assert other.content[:second] == one.content[:second]


def test_a_question_without_documents_is_one_part():
    assert _turns(_message(1, "user", "Who?"))[0].part_ends == ()
