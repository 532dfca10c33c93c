"""Calls of tools and their results, as the model is sent them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.conversation import Attachment, MediaFile, Message, MessageState
from app.chat.turns import (
    CUT_OFF,
    MAX_RESULT_MEDIA,
    MAX_RESULT_MEDIA_BYTES,
    NO_LONGER_SENT,
    NOT_RUN,
    media_files_of,
    turns_of,
)
from app.protocol.chat import MediaPart, ToolCall
from app.protocol.chat import Message as Turn
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


def _picture(number: int, n_bytes: int = 10) -> Message:
    file = MediaFile(f"{number:064}", "image/png", n_bytes)
    call = ToolCall(f"c{number}", "look")
    seen = Attachment("picture 1", "", "image/png", media=(file,))
    return replace(_result(number, call, f"[picture of {number}]"), attachments=(seen,))


def _looks(n_pictures: int, n_bytes: int = 10) -> list[Message]:
    """Return a branch on which a tool returned pictures, one after the other."""
    branch = [ASKED]
    for number in range(3, 2 * n_pictures + 3, 2):
        branch += [
            _message(number - 1, "assistant", calls=(ToolCall(f"c{number}", "look"),)),
            _picture(number, n_bytes),
        ]
    return branch


def _shown(branch: list[Message]) -> list[int]:
    """Return the numbers of the messages whose pictures are sent, having checked that the others say so."""
    parts = {file.sha256: MediaPart("image/png", file.sha256) for file in media_files_of(branch)}
    turns = [turn for turn in turns_of(branch, parts) if turn.role == "tool"]
    assert all((NO_LONGER_SENT in turn.content) is not bool(turn.media) for turn in turns)
    shown = [int(turn.media[0].base64) for turn in turns if turn.media]
    assert shown == [int(sha256) for sha256 in parts], "what is read of the disk is what is sent"
    return shown


def test_pictures_of_results_are_sent_with_them():
    assert _shown(_looks(3)) == [3, 5, 7]


@given(st.integers(1, 150))
def test_of_many_pictures_of_results_the_latest_are_sent_and_the_prompt_seldom_changes_before_its_end(n_pictures: int):
    shown, after = _shown(_looks(n_pictures)), _shown(_looks(n_pictures + 1))
    assert shown[-1] == 2 * n_pictures + 1
    assert len(shown) <= MAX_RESULT_MEDIA
    assert after[:-1] in (shown, shown[len(shown) - len(after) + 1 :])
    assert len(after) > MAX_RESULT_MEDIA // 2 or n_pictures < MAX_RESULT_MEDIA


def test_pictures_of_results_have_no_more_bytes_than_a_prompt():
    assert len(_shown(_looks(4, MAX_RESULT_MEDIA_BYTES // 2))) == 2
    assert _shown(_looks(1, 2 * MAX_RESULT_MEDIA_BYTES)) == [3], "the last result is sent whole"
    small_then_large = [
        _picture(each.id, MAX_RESULT_MEDIA_BYTES) if each.role == "tool" and each.id > 12 else each
        for each in _looks(8)
    ]
    assert _shown(small_then_large) == [17], "however small those before it are"


def test_pictures_before_a_summary_are_not_sent():
    branch = _looks(2)
    summary = _message(branch[-1].id + 1, "summary", "They are red.")
    assert _shown([*branch, summary, _message(summary.id + 1, "user", "Are they?")]) == []
