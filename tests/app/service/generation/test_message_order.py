"""Whatever a client sends comes in an order that the template takes, with every text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.chat_template.render import render
from app.engine.request import Request
from app.protocol.chat import Message, ToolCall
from app.protocol.errors import RequestError
from app.service.generation.chat import ChatTurn, prompt_of
from app.service.generation.message_order import (
    STRICTEST,
    TAKES_ALL,
    TemplateOrder,
    in_order,
    is_plain,
    is_taken,
    measured_order,
    with_whole_calls,
)
from app.service.generation.prompt import template_message
from tests.app.service.role_sequences import served

S, U, A = Message("system", "Be brief."), Message("user", "Why?"), Message("assistant", "So.")
S2, U2, A2 = Message("system", "Be kind."), Message("user", "Well?"), Message("assistant", "Thus.")


def call(call_id: str, arguments: str = '{"city": "Åre"}') -> ToolCall:
    return ToolCall(call_id, "weather", arguments)


def asking(*calls: ToolCall, content: str = "", reasoning: str = "") -> Message:
    return Message("assistant", content, calls=calls, reasoning=reasoning)


def result(call_id: str, content: str = "snow") -> Message:
    return Message("tool", content, call_id=call_id)


def ordered(messages: Sequence[Message], **refused: bool) -> list[Message]:
    order = replace(TAKES_ALL, **refused)
    return in_order(with_whole_calls(messages, order), order)


@pytest.mark.parametrize(
    ("refused", "messages", "expected"),
    [
        ("takes_several_systems", [S, S2, U], [Message("system", "Be brief.\n\nBe kind."), U]),
        ("takes_late_system", [S, U, A, S2, U2], [S, U, A, Message("user", "Be kind."), U2]),
        ("takes_system", [S, S2, U, A], [Message("user", "Be brief.\n\nBe kind.\n\nWhy?"), A]),
        ("takes_system", [S, A, U], [Message("user", "Be brief."), A, U]),
        ("takes_no_user", [S, S2], [S, Message("user", "Be kind.")]),
        ("takes_no_user", [S, A], [Message("user", "Be brief."), A]),
        ("takes_users", [U, U2, A, U], [Message("user", "Why?\n\nWell?"), A, U]),
        ("takes_assistants", [U, A, A2], [U, Message("assistant", "So.\n\nThus.")]),
        ("takes_assistants", [U, A, asking(call("a"))], [U, asking(call("a"), content="So.")]),
        ("takes_assistant_first", [S, A, U], [S, Message("user", "Hello."), A, U]),
        (
            "takes_user_after_result",
            [U, asking(call("a")), result("a"), U2, A],
            [U, asking(call("a")), result("a", "snow\n\nWell?"), A],
        ),
        ("takes_result_without_call", [result("a"), U], [Message("user", "Result: snow"), U]),
        (
            "takes_call_without_result",
            [U, asking(call("a")), U2],
            [U, Message("assistant", 'Incomplete call of weather: {"city": "Åre"}'), U2],
        ),
        (
            "takes_call_without_result",
            [U, asking(call("a"))],
            [U, Message("assistant", 'Incomplete call of weather: {"city": "Åre"}')],
        ),
        (
            "takes_parallel_calls",
            [U, asking(call("a"), call("b"), content="Wait."), result("b", "2"), result("a", "1")],
            [U, asking(call("a"), content="Wait."), result("a", "1"), asking(call("b")), result("b", "2")],
        ),
        ("takes_no_user", [A], [Message("user", "Hello."), A]),
        (
            "takes_text_with_call",
            [U, asking(call("a"), content="Wait.", reasoning="Hm."), result("a")],
            [U, Message("assistant", "Wait.", reasoning="Hm."), asking(call("a")), result("a")],
        ),
    ],
)
def test_what_a_template_does_not_take_is_said_otherwise(
    refused: str, messages: list[Message], expected: list[Message]
) -> None:
    assert ordered(messages, **{refused: False}) == expected
    assert ordered(messages) == messages, "another template gets what was sent"


def test_a_text_before_a_call_is_an_answer_of_its_own_where_roles_have_to_alternate() -> None:
    """Mistral Nemo's and Small 3.2's templates leave that text out, and count no message with calls as a turn."""
    sent = [U, asking(call("a"), content="Wait."), result("a"), A2]
    made = ordered(sent, takes_text_with_call=False, takes_assistants=False)
    assert made == [U, Message("assistant", "Wait."), Message("user", "Go on."), asking(call("a")), result("a"), A2]


def test_an_answer_that_is_to_be_continued_has_a_question_before_it() -> None:
    assert ordered([]) == [Message("user", "Hello.")]


def test_a_call_that_was_cut_off_is_text_and_its_result_comes_after_those_of_whole_calls() -> None:
    cut = '{"city": "Å'
    messages = [U, asking(call("a", cut), call("b")), result("a", "not JSON"), result("b"), U2]
    assert ordered(messages) == [
        U,
        asking(call("b"), content=f"Incomplete call of weather: {cut}"),
        result("b"),
        Message("user", "Result of the call of weather: not JSON"),
        U2,
    ]
    assert [message.role for message in ordered(messages[:3])] == ["user", "assistant", "user"]


def test_reasoning_alone_is_an_answer_that_was_cut_before_it_began() -> None:
    thought = Message("assistant", reasoning="Hm.")
    assert ordered([U, thought, U2]) == [U, U2]
    assert ordered([U, thought]) == [U, thought]


def test_ids_of_calls_take_the_form_of_mistral_s_templates_and_stay_the_same() -> None:
    kept = [asking(call("abcDEF123")), result("abcDEF123")]
    foreign = [asking(call("call_1"), call("toolu_2")), result("toolu_2"), result("call_1")]
    nameless = [asking(call(""), call("")), result(""), result("")]
    assert ordered(kept, takes_any_call_id=False) == kept
    mapped = ordered([*foreign, *nameless], takes_any_call_id=False)
    ids = [call.call_id for message in mapped for call in message.calls]
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert len(set(ids)) == 4
    assert [message.call_id for message in mapped if message.role == "tool"] == [ids[1], ids[0], ids[2], ids[3]]
    assert mapped[:3] == ordered(foreign, takes_any_call_id=False), "a longer conversation begins with the same prompt"


def test_calls_without_ids_get_some_where_a_template_needs_them() -> None:
    """Ollama's clients name tools and give no ids."""
    messages = ordered([asking(call("")), result(""), asking(call("call_1")), result("call_1")], takes_no_call_id=False)
    assert messages[0].calls[0].call_id == messages[1].call_id != ""
    assert [messages[2].calls[0].call_id, messages[3].call_id] == ["call_1", "call_1"]


CALLING = asking(call("a"))
sequences = st.lists(
    st.one_of(
        st.builds(Message, st.sampled_from(["system", "user", "assistant", "tool"]), st.sampled_from("abc")),
        st.just(CALLING),
    ),
    min_size=1,
    max_size=8,
)


@given(sequences)
def test_roles_alternate_for_the_strictest_template_and_nothing_is_lost(messages: list[Message]) -> None:
    made = in_order(with_whole_calls(messages, STRICTEST), STRICTEST)
    assert all(message.role != "system" for message in made)
    assert made[0].role == "user"
    for one, other in pairwise(made):
        assert one.role != other.role or one.role == "tool" or one.calls
    text = "".join(message.content for message in made)
    assert all(text.count(word) >= sum(word in message.content for message in messages) for word in "abc")


@given(sequences)
def test_what_a_template_takes_is_left_as_it_is(messages: list[Message]) -> None:
    assert in_order(with_whole_calls(messages, TAKES_ALL), TAKES_ALL) == messages


def test_a_result_has_the_name_of_its_tool_where_a_template_wants_one() -> None:
    """Most clients name it only in the call."""
    sent = [asking(call("a")), asking(call("b")), result("a"), result("c"), replace(result("b"), name="other")]
    names = [message.name for message in ordered(sent, takes_no_tool_name=False) if message.role == "tool"]
    assert names == ["weather", "unknown", "other"]


def test_messages_are_not_changed_in_place() -> None:
    messages = [S, asking(call("a"), call("b")), U, U2]
    before = list(messages)
    in_order(with_whole_calls(messages, STRICTEST), STRICTEST)
    assert messages == before


# In the manner of published templates, reduced to how they treat the order of messages.
PRINTED = "{{ '<' + m.role + '>' + (m.content or '') }}"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.arguments }}{% endfor %}"
ALTERNATING = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{% set ns = namespace(i=0) %}{% for m in rest %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.i = ns.i + 1 %}{% endif %}{% endfor %}"
)
STRICT_ID = "{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
TEMPLATES: dict[str, tuple[str, set[str]]] = {
    "ChatML": ("{% for m in messages %}" + PRINTED + CALLS + "{% endfor %}", set()),
    "Mistral's": (
        ALTERNATING + "{% for m in rest %}{% if m.role == 'system' %}{{ raise_exception('only first') }}{% endif %}"
        "{% if m.tool_calls %}" + CALLS + "{% else %}" + STRICT_ID + PRINTED + "{% endif %}{% endfor %}",
        {
            "takes_several_systems",
            "takes_late_system",
            "takes_users",
            "takes_assistants",
            "takes_assistant_first",
            "takes_user_after_result",
            "takes_result_without_call",
            "takes_call_without_result",
            "takes_text_with_call",
            "takes_any_call_id",
            "takes_no_call_id",
        },
    ),
    "Gemma 2's": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        + ALTERNATING
        + "{% for m in rest %}"
        + PRINTED
        + CALLS
        + "{% endfor %}",
        {
            "takes_system",
            "takes_several_systems",
            "takes_late_system",
            "takes_no_user",
            "takes_users",
            "takes_assistants",
            "takes_assistant_first",
            "takes_user_after_result",
            "takes_result_without_call",
            "takes_call_without_result",
        },
    ),
    "SmolLM3's, which leaves out the second system message": (
        "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
        + PRINTED
        + CALLS
        + "{% endif %}{% endfor %}",
        {"takes_several_systems", "takes_late_system"},
    ),
    "R1's distills', which leave out the first": (
        "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}"
        "{% endif %}{% endfor %}{{ ns.s }}{% for m in messages %}{% if m.role != 'system' %}"
        + PRINTED
        + CALLS
        + "{% endif %}{% endfor %}",
        {"takes_several_systems", "takes_late_system"},
    ),
    "Qwen3.5's, which wants a question": (
        "{% if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('none') }}{% endif %}"
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
        + PRINTED
        + CALLS
        + "{% endfor %}",
        {"takes_several_systems", "takes_late_system", "takes_no_user"},
    ),
    "Llama 3.1's, with one call": (
        "{% for m in messages %}{% if m.tool_calls and m.tool_calls[1:] %}{{ raise_exception('') }}{% endif %}"
        + PRINTED
        + CALLS
        + "{% endfor %}",
        {"takes_parallel_calls"},
    ),
    "Granite 3.0's, without results": (
        "{% for m in messages %}{% if m.role != 'tool' %}" + PRINTED + CALLS + "{% endif %}{% endfor %}",
        {"takes_calls"},
    ),
}


def rendered(template: str, messages: Sequence[Message]) -> str:
    try:
        return render(template, {"messages": [template_message(message) for message in messages]})
    except Exception as error:
        raise RequestError(str(error)) from error


async def measured(template: str) -> TemplateOrder:
    async def render_here(messages: Sequence[Message]) -> str:
        return rendered(template, messages)

    return await measured_order(render_here, has_calls=True, has_tools=True)


@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_short_text_that_others_have_too_is_not_taken_for_one_that_was_left_out(name: str) -> None:
    async def render_here(messages: Sequence[Message]) -> str:
        return rendered(TEMPLATES[name][0], messages)

    refused = TEMPLATES[name][1]
    for fields, sent in {
        "takes_several_systems": [Message("system", "a"), Message("system", "a"), Message("user", "aaa")],
        "takes_users": [Message("user", "a"), Message("user", "a"), Message("assistant", "aa"), Message("user", "a")],
    }.items():
        assert await is_taken(sent, render_here) == (fields not in refused)


@pytest.mark.parametrize("name", TEMPLATES)
async def test_what_a_template_takes_is_found_by_rendering(name: str) -> None:
    template, refused = TEMPLATES[name]
    order = await measured(template)
    assert {name for name in TemplateOrder.__slots__ if not getattr(order, name)} == refused


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([S, U, A, U2], True),
        ([U], True),
        ([U, A], True),
        ([S], False),
        ([S, S2, U], False),
        ([U, U2], False),
        ([A, U], False),
        ([U, A, S2, U], False),
        ([U, CALLING], False),
        ([U, CALLING, result("a")], False),
    ],
)
def test_questions_and_answers_in_turn_need_no_probe_but_for_the_system(
    messages: list[Message], expected: bool
) -> None:
    assert is_plain(messages) is expected


SENT: dict[str, list[Message]] = {
    "two system messages": [S, S2, U],
    "a late system message": [S, U, A, S2, U2],
    "one that comes last": [U, S],
    "two questions": [S, U, U2, A, U, U2],
    "two answers": [U, A, A2, U2],
    "an answer first": [S, A, U],
    "no question": [S],
    "a word after a result": [S, U, asking(call("call_1")), result("call_1"), U2, A, U],
    "results of two calls, then a rule": [U, asking(call("a"), call("b")), result("a"), result("b", "rain"), S],
    "a call without result": [U, asking(call("a")), U2],
    "calls without ids": [U, asking(call("")), result(""), A, U2],
    "a call that was cut off": [U, asking(call("a", '{"city"')), result("a", "not JSON"), U2],
    "a result without call": [result("a"), U],
}


@pytest.mark.parametrize("sent", SENT)
@pytest.mark.parametrize("name", TEMPLATES)
async def test_every_text_is_in_the_prompt_and_in_order(name: str, sent: str) -> None:
    template = TEMPLATES[name][0]
    order = await measured(template)
    if not order.takes_calls and any(message.calls or message.role == "tool" for message in SENT[sent]):
        return  # calls are text before messages are ordered: see test_prompt
    prompt, end = rendered(template, in_order(with_whole_calls(SENT[sent], order), order)), 0
    texts: list[Any] = [message.content for message in SENT[sent] if message.content]
    for text in texts:
        end = prompt.index(text, end) + len(text)


LATE_SYSTEM = (
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{% for m in rest %}"
    "{% if loop.last and m.role == 'user' and messages[0].role == 'system' %}[{{ messages[0].content }}]{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)


async def test_a_system_message_that_a_template_prints_late_stays_there_in_a_plain_chat() -> None:
    """Mistral Nemo's prints it before the last question, and leaves it out where the last message is a result."""
    turn = ChatTurn(messages=[S, U, A, U2], request=Request(request_id="a", prompt=""))
    prompt = (await prompt_of(served(LATE_SYSTEM), turn)).prompt
    assert prompt == "user: Why?\nassistant: So.\n[Be brief.]user: Well?\n"
    unfinished = ChatTurn(messages=[S, U, asking(call("a")), result("a")], request=Request(request_id="b", prompt=""))
    assert (await prompt_of(served(LATE_SYSTEM), unfinished)).prompt.startswith("user: Be brief.\n\nWhy?")
