"""What the model is told."""

from __future__ import annotations

from tui.conversation import Conversation, Ending, Exchange


def test_failed_questions_without_text_are_left_out_and_partial_answers_kept():
    conversation = Conversation(
        "Be kind.",
        [Exchange("a", "half", Ending.STOPPED), Exchange("b", "", Ending.FAILED), Exchange("c", "C", Ending.COMPLETE)],
    )
    assert conversation.turns("d") == [
        ("system", "Be kind."),
        ("user", "a"),
        ("assistant", "half"),
        ("user", "c"),
        ("assistant", "C"),
        ("user", "d"),
    ]


def test_last_answer_skips_exchanges_without_text():
    conversation = Conversation("", [Exchange("a", "A", Ending.COMPLETE), Exchange("b", "", Ending.FAILED)])
    assert conversation.last_answer == "A"
    assert Conversation().last_answer == ""


def test_taking_back_returns_the_question_until_none_is_left():
    conversation = Conversation("", [Exchange("a", "A", Ending.COMPLETE)])
    assert (conversation.take_back(), conversation.take_back()) == ("a", None)
