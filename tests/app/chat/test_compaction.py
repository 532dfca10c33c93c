from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.compaction import (
    CompactionPlan,
    ContextBudget,
    checked_summary,
    estimated_tokens,
    message_tokens,
    plan_compaction,
    sent_branch,
    summary_request,
    summary_turn,
    with_files,
)
from app.chat.conversation import Attachment, MediaFile, Message, MessageContent, MessageState
from app.protocol.chat import ToolCall
from app.protocol.errors import RequestError

_FULL = 2048


def _branch(*contents: MessageContent) -> tuple[Message, ...]:
    return tuple(
        Message(
            id=index + 1,
            parent_id=index or None,
            role=content.role,
            content=content.content,
            attachments=content.attachments,
            calls=content.calls,
            n_kept=content.n_kept,
            state=content.state,
        )
        for index, content in enumerate(contents)
    )


def _user(text: str) -> MessageContent:
    return MessageContent(role="user", content=text)


def _answer(text: str) -> MessageContent:
    return MessageContent(role="assistant", content=text)


def _calling(text: str = "", n_calls: int = 1) -> MessageContent:
    calls = tuple(ToolCall(f"c{number}", "read_file", '{"path": "a.txt"}') for number in range(n_calls))
    return MessageContent(role="assistant", content=text, calls=calls)


def _result(text: str) -> MessageContent:
    return MessageContent(role="tool", content=text)


def _summary(text: str = "They talked.", n_kept: int = 0) -> MessageContent:
    return MessageContent(role="summary", content=text, n_kept=n_kept)


def _words(n_tokens: int) -> str:
    return "abc " * n_tokens


_texts = st.integers(0, 900).map(_words)


@st.composite
def _turns(draw: st.DrawFn) -> list[MessageContent]:
    """A question, rounds of calls with their results, and the answer, or what of that was there when it was stopped."""
    turn = [_user(draw(_texts))]
    for _ in range(draw(st.integers(0, 3))):
        n_calls = draw(st.integers(1, 3))
        turn += [_calling(draw(_texts), n_calls), *(_result(draw(_texts)) for _ in range(n_calls))]
    if draw(st.booleans()):
        turn.append(_answer(draw(_texts)))
    return turn


@st.composite
def branches(draw: st.DrawFn) -> tuple[Message, ...]:
    contents: list[MessageContent] = []
    for turn in draw(st.lists(_turns(), min_size=1, max_size=8)):
        contents += turn
        if draw(st.integers(0, 4)) == 0:
            contents.append(_summary(draw(_texts), draw(st.integers(0, len(contents)))))
    return _branch(*contents)


_budgets = st.builds(ContextBudget, n_ctx=st.sampled_from((512, 2048, 8192)), n_pending=st.integers(0, 600))


def _summarised(branch: tuple[Message, ...], plan: CompactionPlan, text: str = "In short.") -> tuple[Message, ...]:
    """The branch with its summary, as the chat has it after the plan was carried out."""
    summary = Message(id=len(branch) + 1, parent_id=len(branch), role="summary", content=text, n_kept=plan.n_kept)
    return (*branch, summary)


@given(branches(), _budgets)
def test_what_is_summarised_and_what_is_kept_are_together_what_was_sent(
    branch: tuple[Message, ...], budget: ContextBudget
) -> None:
    plan = plan_compaction(branch, budget)
    if plan is not None:
        after = sent_branch(_summarised(branch, plan))
        assert plan.summarised
        assert (*plan.summarised, *after.messages) == sent_branch(branch).messages
        assert (*plan.replaced, *branch[len(branch) - plan.n_kept :]) == branch


@given(branches(), _budgets)
def test_a_call_and_its_results_are_never_parted(branch: tuple[Message, ...], budget: ContextBudget) -> None:
    plan = plan_compaction(branch, budget)
    if plan is not None:
        kept = sent_branch(_summarised(branch, plan)).messages
        assert not kept or kept[0].role != "tool"
        for part in plan.parts:
            spoken = [message for message in part if message.role != "summary"]
            assert not spoken or spoken[0].role != "tool"
            assert not spoken[-1].calls, "the results of the last call are missing"


@pytest.mark.slow
@given(branches(), _budgets)
def test_after_compaction_the_branch_fits_with_the_longest_summary(
    branch: tuple[Message, ...], budget: ContextBudget
) -> None:
    plan = plan_compaction(branch, budget)
    if plan is not None:
        n_after = plan.n_tokens_left + plan.n_summary_tokens + budget.n_pending
        assert n_after <= budget.n_ctx
        assert plan.n_tokens_left + plan.n_summary_tokens < plan.n_tokens_before


@given(branches(), _budgets)
def test_each_request_for_a_summary_fits_the_context(branch: tuple[Message, ...], budget: ContextBudget) -> None:
    plan = plan_compaction(branch, budget)
    if plan is not None and budget.n_ctx >= 2048:  # the words of the request are half of a smaller one
        for number, part in enumerate(plan.parts):
            n_before = plan.n_summary_tokens if number else 0
            n_prompt = message_tokens(part).total + n_before + len(summary_request(plan.n_summary_tokens)) // 4
            assert n_prompt + plan.n_summary_tokens <= budget.n_ctx


@given(branches(), _budgets)
def test_the_first_request_begins_as_the_chat_does(branch: tuple[Message, ...], budget: ContextBudget) -> None:
    """What the engine has in its cache is used again."""
    plan = plan_compaction(branch, budget)
    if plan is not None and len(plan.parts) == 1:
        before = sent_branch(branch)
        first = sent_branch(plan.parts[0])
        assert first.messages == before.messages[: len(first.messages)]
        assert first.question == before.question
        assert (first.summary is None) == (before.summary is None)


@given(branches(), _budgets)
def test_the_question_that_waits_for_its_answer_is_sent(branch: tuple[Message, ...], budget: ContextBudget) -> None:
    plan = plan_compaction(branch, budget)
    waits = branch[-1].role in ("user", "tool")
    if plan is not None and waits:
        last = [message for message in branch if message.role == "user"][-1]
        assert last in sent_branch(_summarised(branch, plan)).path


@given(branches(), _budgets)
def test_a_compacted_branch_can_be_compacted_again_once_it_is_long(
    branch: tuple[Message, ...], budget: ContextBudget
) -> None:
    plan = plan_compaction(branch, budget)
    if plan is not None and budget.n_ctx >= 2048:  # a turn of what follows is longer than a smaller one
        longer = _summarised(branch, plan, _words(plan.n_summary_tokens))
        contents = [*longer, *_branch(*(_user(_words(300)), _answer(_words(300))) * 10)]
        linked = tuple(replace(each, id=n + 1, parent_id=n or None) for n, each in enumerate(contents))
        assert plan_compaction(linked, replace(budget, n_pending=0)) is not None


@pytest.mark.parametrize(("n_question", "n_summary"), [(873, 341), (200, 1300)])
def test_a_long_question_or_summary_that_is_sent_again_leaves_a_chat_that_can_be_compacted(
    n_question: int, n_summary: int
) -> None:
    rounds = (_calling(), _result(_words(319)), _calling(), _result(""))
    turns = (_user(_words(300)), _answer(_words(300))) * 4
    branch = _branch(_user(_words(n_question)), *rounds, _summary(_words(n_summary), n_kept=2), *turns)
    sent = sent_branch(branch)
    assert sent.question is not None
    plan = plan_compaction(branch, ContextBudget(n_ctx=_FULL))
    assert plan is not None
    assert len(plan.parts) > 1
    read = "".join(message.content for part in plan.parts for message in part)
    assert read.count("abc") == n_question + n_summary + 300 * sum(not message.calls for message in plan.summarised[2:])


def test_the_latest_turns_stay_as_long_as_they_are_short() -> None:
    turns = [content for n in range(12) for content in (_user(f"Question {n} {_words(60)}"), _answer(_words(60)))]
    branch = _branch(*turns)
    plan = plan_compaction(branch, ContextBudget(n_ctx=_FULL))
    assert plan is not None
    assert plan.n_kept == 6  # 384 of 1,600 tokens
    assert branch[-plan.n_kept].content.startswith("Question 9")
    assert plan.n_tokens_before - plan.n_tokens_left > 1000
    assert len(plan.parts) == 1


def test_of_a_long_last_turn_the_last_calls_stay_and_the_question_is_sent_again() -> None:
    rounds = [content for _ in range(5) for content in (_calling(), _result(_words(300)))]
    branch = _branch(_user("Hello"), _answer("Hi"), _user("Repair the tests."), *rounds)
    plan = plan_compaction(branch, ContextBudget(n_ctx=_FULL))
    assert plan is not None
    sent = sent_branch(_summarised(branch, plan))
    assert sent.question is not None
    assert sent.question.content == "Repair the tests."
    assert sent.messages[0].calls
    assert sent.messages[-1] == branch[-1]


def test_a_last_answer_that_is_too_long_is_summarised_too_when_nothing_waits_for_it() -> None:
    plan = plan_compaction(_branch(_user("Write a book."), _answer(_words(1900))), ContextBudget(n_ctx=_FULL))
    assert plan is not None
    assert plan.n_kept == 0


@pytest.mark.parametrize(
    "branch",
    [
        (),
        _branch(_user("Hello")),
        _branch(_user("Hello"), _answer("Hi")),
        _branch(_user(_words(3000))),
        _branch(_user("Read it."), _calling(), _result(_words(3000))),
        _branch(_user(_words(900)), _answer(_words(900)), _summary("All of it.")),
    ],
    ids=["empty", "question", "short", "long question", "long result", "compacted"],
)
def test_what_cannot_become_shorter_is_left_alone(branch: tuple[Message, ...]) -> None:
    assert plan_compaction(branch, ContextBudget(n_ctx=_FULL)) is None


def test_a_question_that_never_fits_is_no_reason_to_compact() -> None:
    branch = _branch(_user(_words(500)), _answer(_words(500)), _user("And?"), _answer("No."))
    assert plan_compaction(branch, ContextBudget(n_ctx=_FULL, n_pending=2000)) is None


def test_a_chat_longer_than_the_context_is_summarised_in_parts_of_whole_turns() -> None:
    turns = [content for n in range(20) for content in (_user(f"Question {n}"), _answer(_words(200)))]
    plan = plan_compaction(_branch(*turns), ContextBudget(n_ctx=_FULL))
    assert plan is not None
    assert len(plan.parts) > 2
    assert tuple(message for part in plan.parts for message in part) == plan.summarised
    assert all(part[0].role == "user" for part in plan.parts)


def test_a_message_longer_than_the_context_is_read_in_pieces() -> None:
    text = "\n\n".join(f"Paragraph {n}: {_words(40)}" for n in range(100))
    branch = _branch(_user(text), _answer("Long."), _user("Thanks."), _answer("Welcome."))
    plan = plan_compaction(branch, ContextBudget(n_ctx=_FULL))
    assert plan is not None
    whole = "".join(message.content for part in plan.parts for message in part)
    assert all(f"Paragraph {n}:" in whole for n in range(100))
    assert len(plan.parts) > 3


def test_more_is_read_at_once_where_the_estimate_was_right_than_where_it_was_too_low() -> None:
    turns = [content for n in range(20) for content in (_user(f"Question {n}"), _answer(_words(200)))]
    plans = [plan_compaction(_branch(*turns), ContextBudget(n_ctx=_FULL, factor=factor)) for factor in (1.0, 2.0)]
    assert len(plans[0].parts) < len(plans[1].parts)  # type: ignore[union-attr]


def test_an_unfinished_summary_replaces_nothing() -> None:
    cut_off = replace(_summary("They"), state=MessageState.PARTIAL)
    branch = _branch(_user("One"), _answer("1"), cut_off, _user("Two"))
    assert [message.content for message in sent_branch(branch).path] == ["One", "1", "Two"]


def test_the_last_summary_counts_and_what_it_keeps_may_lie_before_an_earlier_one() -> None:
    branch = _branch(_user("1"), _answer("one"), _summary("First."), _user("2"), _answer("two"), _summary("Second.", 5))
    sent = sent_branch((*branch, *_branch(_user("3"))))
    assert sent.summary == branch[-1]
    assert [message.content for message in sent.messages] == ["1", "one", "2", "two", "3"]
    assert sent.n_kept == 4


def test_a_summary_that_would_keep_a_result_keeps_its_call_too() -> None:
    """An imported file may have any number."""
    branch = _branch(_user("1"), _calling(n_calls=2), _result("a"), _result("b"), _summary("S.", 1), _answer("end"))
    assert [message.role for message in sent_branch(branch).messages] == ["assistant", "tool", "tool", "assistant"]


@pytest.mark.parametrize("n_kept", [-3, 99])
def test_any_number_of_kept_messages_is_understood(n_kept: int) -> None:
    branch = _branch(_user("1"), _answer("one"), _summary("S.", n_kept))
    assert len(sent_branch(branch).messages) == (2 if n_kept > 0 else 0)


def test_a_request_says_how_long_the_summary_may_be_and_what_matters_to_the_person() -> None:
    assert "at most 100 words" in summary_request(200)
    assert "Keep in mind" not in summary_request(200)
    assert "Call no tool." in summary_request(200, has_tools=True)
    assert summary_request(200, "the recipe").endswith("Keep in mind above all: the recipe")


def test_a_summary_is_told_as_a_summary() -> None:
    assert "\n\nSoup with leeks.\n\n" in summary_turn("Soup with leeks.")


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_summary_is_an_error_with_a_way_out(text: str, is_cut: bool) -> None:
    with pytest.raises(RequestError, match="nothing was compacted") as raised:
        checked_summary(text, is_cut=is_cut)
    assert "/compact" in raised.value.remedy


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("A soup. It has 1.5 l of wat", "A soup."),
        ("A soup! (With leeks.) And the", "A soup! (With leeks.)"),
        ("- 3 leeks\n- salt\n- pep", "- 3 leeks\n- salt"),
        ("スープです。ネギが入", "スープです。"),
        ("soup with leeks and pot", "soup with leeks and"),
        ("A soup.", "A soup."),
        ("soup", "soup"),
        ("汤" * 5, "汤" * 5),
    ],
)
def test_a_summary_that_is_cut_ends_with_its_last_whole_sentence(text: str, kept: str) -> None:
    assert checked_summary(text, is_cut=True) == kept
    assert checked_summary(f" {text}\n", is_cut=False) == text


def test_a_summary_names_the_files_that_are_no_longer_sent() -> None:
    files = tuple(Attachment(name, "text", detail="2 pages") for name in ("a.pdf", "b\x1b[31m.pdf", "a.pdf"))
    said = replace(_branch(_user("Read."))[0], attachments=files)
    text = with_files("In short.", [said])
    assert text.startswith("In short.\n\n")
    assert text.count("a.pdf, 2 pages") == 1
    assert "\x1b" not in text
    assert with_files("In short.", []) == "In short."


def test_of_very_many_files_the_number_is_named() -> None:
    files = tuple(Attachment(f"{n}.txt", "text") for n in range(30))
    assert "and 10 more" in with_files("S.", [replace(_branch(_user("Read."))[0], attachments=files)])


def _counted_answer(text: str, n_prompt: int, n_output: int, **stats: int) -> Message:
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
        _counted_answer("Hi, how can I help you?", 20, 6),
        _question("What is this?", attachments=(picture,)),
        _counted_answer("A cat.", 1030, 3),
    )
    tokens = message_tokens(branch)
    assert tokens.of_messages[2] == 1030 - 20 - tokens.of_messages[1]
    assert tokens.total == 1030 + tokens.of_messages[3]


def test_thoughts_are_not_sent_again_and_count_nothing() -> None:
    assert message_tokens([_counted_answer("Yes.", 30, 400, n_thought_tokens=390)]).of_messages[0] < 20


def test_the_prompt_before_the_first_answer_has_tokens_beside_its_messages() -> None:
    """The definitions of tools, for example."""
    tokens = message_tokens([_question("Hello"), _counted_answer("Hi there, friend.", 1500, 4)], "Be brief.")
    assert 1400 < tokens.n_fixed < 1500


def test_messages_that_were_counted_with_others_before_them_say_nothing_about_the_rest() -> None:
    branch = (_question("Hello"), _counted_answer("Hi there, friend.", 1500, 4))
    assert message_tokens(branch, "Be brief.", n_recounted=2).n_fixed < 10


def test_a_language_of_which_the_model_takes_more_tokens_is_estimated_with_more() -> None:
    text = "Þetta er íslenska sem þarf fleiri tákn en enska. " * 4
    asked = _question(text)
    assert (
        message_tokens([asked, _counted_answer(text, 0, 100)]).of_messages[0]
        > message_tokens([asked]).of_messages[0] * 1.5
    )


def test_figures_of_an_imported_chat_that_cannot_be_are_ignored() -> None:
    branch = (_question("Hello"), _counted_answer("Hi", -5, True), _question("More?"), _counted_answer("No", 10**9, 0))
    assert all(0 < n < 20 for n in message_tokens(branch).of_messages)
