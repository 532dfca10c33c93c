from __future__ import annotations

from app.chat.compaction import estimated_tokens, message_tokens
from app.chat.conversation import Attachment, MediaFile, Message


def _answer(text: str, n_prompt: int, n_output: int, **stats: int) -> Message:
    figures = {"n_prompt_tokens": n_prompt, "n_output_tokens": n_output, **stats}
    return Message(id=2, parent_id=1, role="assistant", content=text, stats=figures)


def _question(text: str, **values: tuple[Attachment, ...]) -> Message:
    return Message(id=1, parent_id=None, role="user", content=text, **values)


def test_four_letters_or_one_ideograph_are_about_a_token() -> None:
    assert estimated_tokens("") == 0
    assert estimated_tokens("twelve chars") == 3
    assert estimated_tokens("量化模型") == 4
    assert estimated_tokens("量化 GGUF") == 4  # and five other characters


def test_what_lies_between_two_answers_is_as_the_engine_counted_it() -> None:
    picture = Attachment("a.png", "", "image/png", media=(MediaFile("0" * 64, "image/png", 9),))
    branch = (
        _question("Hello"),
        _answer("Hi, how can I help you?", 20, 6),
        _question("What is this?", attachments=(picture,)),
        _answer("A cat.", 1030, 3),
    )
    tokens = message_tokens(branch)
    assert tokens.of_messages[2] == 1030 - 20 - tokens.of_messages[1]
    assert tokens.total == 1030 + tokens.of_messages[3]


def test_thoughts_are_not_sent_again_and_count_nothing() -> None:
    assert message_tokens([_answer("Yes.", 30, 400, n_thought_tokens=390)]).of_messages[0] < 20


def test_the_prompt_before_the_first_answer_has_tokens_beside_its_messages() -> None:
    """The definitions of tools, for example."""
    tokens = message_tokens([_question("Hello"), _answer("Hi there, friend.", 1500, 4)], "Be brief.")
    assert 1400 < tokens.n_fixed < 1500


def test_messages_that_were_counted_with_others_before_them_say_nothing_about_the_rest() -> None:
    branch = (_question("Hello"), _answer("Hi there, friend.", 1500, 4))
    assert message_tokens(branch, "Be brief.", n_recounted=2).n_fixed < 10


def test_a_language_of_which_the_model_takes_more_tokens_is_estimated_with_more() -> None:
    text = "Þetta er íslenska sem þarf fleiri tákn en enska. " * 4
    asked = _question(text)
    assert message_tokens([asked, _answer(text, 0, 100)]).of_messages[0] > message_tokens([asked]).of_messages[0] * 1.5


def test_figures_of_an_imported_chat_that_cannot_be_are_ignored() -> None:
    branch = (_question("Hello"), _answer("Hi", -5, True), _question("More?"), _answer("No", 10**9, 0))
    assert all(0 < n < 20 for n in message_tokens(branch).of_messages)
