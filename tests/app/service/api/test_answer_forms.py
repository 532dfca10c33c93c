"""Each field that demands a form of the answer does, and a second one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.engine.grammar.answer_format import AnswerFormat, ChoiceFormat, PatternFormat
from app.engine.grammar.json_grammar import ANY_OBJECT, JsonFormat
from app.protocol.errors import RequestError
from app.service.api.llamacpp.routes import PromptBody
from app.service.api.openai.requests import ChatCompletionBody, CompletionBody

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
GBNF = 'root ::= "yes"'
FORMS: list[tuple[dict[str, Any], AnswerFormat | str]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, JsonFormat(SCHEMA)),
    ({"json_schema": SCHEMA}, JsonFormat(SCHEMA)),
    ({"json_schema": json.dumps(SCHEMA)}, JsonFormat(SCHEMA)),
    ({"structured_outputs": {"json": SCHEMA}}, JsonFormat(SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JsonFormat(SCHEMA)),
    ({"structured_outputs": {"json_object": True}}, ANY_OBJECT),
    ({"structured_outputs": {"regex": "a+"}}, PatternFormat("a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, ChoiceFormat(("a", "b"))),
    ({"structured_outputs": {"grammar": GBNF}}, GBNF),
    ({"guided_json": SCHEMA}, JsonFormat(SCHEMA)),
    ({"guided_regex": "a+"}, PatternFormat("a+")),
    ({"guided_choice": ["a"]}, ChoiceFormat(("a",))),
    ({"guided_grammar": GBNF}, GBNF),
    ({"regex": "a+"}, PatternFormat("a+")),
    ({"ebnf": GBNF}, GBNF),
    ({"grammar": GBNF}, GBNF),
]
NAMES = [
    "-".join([name, *(value if isinstance(value, dict) else ())]) for form, _ in FORMS for name, value in form.items()
]
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(("fields", "form"), FORMS, ids=NAMES)
def test_the_form_binds_a_chat_and_a_completion(fields: dict[str, Any], form: AnswerFormat | str) -> None:
    turn = ChatCompletionBody.model_validate({**MESSAGES, **fields}).turn()
    (request,) = CompletionBody.model_validate({"prompt": "hi", **fields}).completion_requests()
    if isinstance(form, str):
        assert (turn.answer_format, turn.request.sampling.grammar, request.sampling.grammar) == (None, form, form)
    else:
        assert (turn.answer_format, request.sampling.grammar) == (form, form.grammar)
    if "response_format" not in fields:
        (native,) = PromptBody.model_validate({"prompt": "hi", **fields}).requests("hi")
        assert native.sampling.grammar == request.sampling.grammar


@pytest.mark.parametrize("first", range(len(FORMS)), ids=NAMES)
def test_a_second_form_is_refused(first: int) -> None:
    other = {"guided_regex": "b"} if "guided_regex" not in FORMS[first][0] else {"guided_choice": ["b"]}
    with pytest.raises(RequestError, match=r"Both|excludes"):
        ChatCompletionBody.model_validate({**MESSAGES, **FORMS[first][0], **other}).turn()


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "a", "structural_tag": {}, "whitespace_pattern": " "}},
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        {"guided_json": SCHEMA, "guided_whitespace_pattern": "[ ]?"},
        {"structured_outputs": {"json": "{"}},
        {"guided_regex": "(?=a)a"},
    ],
)
def test_what_cannot_be_enforced_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        ChatCompletionBody.model_validate({**MESSAGES, **fields}).turn()
