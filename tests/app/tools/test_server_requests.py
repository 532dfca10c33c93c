"""What servers may ask for during a call: forms with bounds, and a question before each request."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.chat import Message
from app.tools.approval import ApprovalQuestion, ApprovalRule, Decision
from app.tools.display import decision_text, question_lines, question_title
from app.tools.server_requests import (
    MAX_REQUESTS,
    MAX_SAMPLED_TOKENS,
    Form,
    FormField,
    FormValue,
    RequestRefusedError,
    SampledText,
    SamplingRequest,
    ServerRequests,
    read_form,
)
from quantizer.system.errors import UserError
from tests.app.malformed_schemas import JSON
from tests.app.tools.fake import ScriptedApprover

SCHEMA = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {
        "name": {"type": "string", "title": "Your\x1b[2J name", "minLength": 2},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "share": {"type": "number", "default": 0.5},
        "member": {"type": "boolean", "default": True},
        "color": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"], "default": "g"},
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
        "days": {"type": "array", "items": {"anyOf": [{"const": "mo", "title": "Monday"}]}, "maxItems": 1},
    },
}


class Helper:
    """A chat whose person fills in `values`, and whose model answers everything alike."""

    def __init__(self, values: Mapping[str, FormValue] | None = None) -> None:
        self.values = values
        self.forms: list[Form] = []
        self.sampled: list[SamplingRequest] = []

    async def fill(self, form: Form) -> Mapping[str, FormValue] | None:
        self.forms.append(form)
        return self.values

    async def sample(self, request: SamplingRequest) -> SampledText:
        self.sampled.append(request)
        return SampledText("an answer", "guide")


def requests(
    approver: ScriptedApprover, helper: Helper | None = None, rules: tuple[ApprovalRule, ...] = ()
) -> ServerRequests:
    return ServerRequests(approver, helper or Helper(), rules, nullcontext)


def fields() -> dict[str, FormField]:
    return {field.name: field for field in read_form("notes", "Who?", SCHEMA).fields}


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("name", " Ada ", "Ada"),
        ("age", "36", 36),
        ("share", "0.25", 0.25),
        ("share", "", None),
        ("member", "No", False),
        ("member", "y", True),
        ("color", "red", "r"),
        ("size", "l", "l"),
        ("days", "Monday", ["mo"]),
    ],
)
def test_a_field_takes_what_its_schema_says(name: str, typed: str, value: object) -> None:
    assert fields()[name].value_of(typed) == value


@pytest.mark.parametrize(
    ("name", "typed", "cause"),
    [
        ("name", "", "must be filled in"),
        ("name", "A", "at least 2 and at most 10000 characters"),
        ("age", "old", "a whole number"),
        ("age", "151", "must be at least 0 and at most 150"),
        ("share", "nan", "must be a number"),
        ("member", "perhaps", "yes or no"),
        ("color", "blue", "one of: Red, Green"),
        ("days", "Monday, Monday", "at most 1 choices"),
    ],
)
def test_a_field_says_what_it_does_not_take(name: str, typed: str, cause: str) -> None:
    with pytest.raises(UserError, match=cause):
        fields()[name].value_of(typed)


def test_defaults_and_texts_are_shown_as_a_person_types_them() -> None:
    found = fields()
    assert found["name"].title == "Your[2J name"
    assert [found[name].default for name in ("share", "member", "color")] == ["0.5", "yes", "Green"]
    assert found["days"].hint == "any of, separated by commas: Monday; may stay empty"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": []},
        {"properties": {"a": {"type": "object"}}},
        {"properties": {"a": {"type": "string", "enum": []}}},
        {"properties": {"a": {"type": "array", "items": {"type": "string"}}}},
        {"properties": {str(number): {"type": "string"} for number in range(21)}},
    ],
)
def test_a_form_that_nobody_can_fill_in_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(RequestRefusedError):
        read_form("notes", "Who?", schema)


@given(st.dictionaries(st.sampled_from(("properties", "required")), JSON), st.text(max_size=5))
def test_any_schema_is_a_form_or_refused(schema: dict[str, Any], typed: str) -> None:
    try:
        form = read_form("notes", "Who?", schema)
    except RequestRefusedError:
        return
    for field in form.fields:
        with suppress(UserError):
            field.value_of(typed)


async def test_a_form_is_filled_in_after_the_person_agreed() -> None:
    approver, helper = ScriptedApprover(Decision.ONCE, Decision.DENY), Helper({"name": "Ada"})
    asked = requests(approver, helper)
    assert await asked.fill("notes", "Who?\x1b[2J", SCHEMA) == {"name": "Ada"}
    assert await asked.fill("notes", "Who?", SCHEMA) is None
    assert len(helper.forms) == 1
    question = approver.questions[0]
    assert question_title(question) == "Allow notes to ask you?"
    lines = "\n".join(line.text for line in question_lines(question))
    assert "The server gets what you answer" in lines
    assert "\x1b" not in lines
    assert question.decisions == (Decision.ONCE, Decision.DENY, Decision.NEVER)


async def test_the_model_answers_what_the_person_saw_within_a_bound() -> None:
    approver, helper = ScriptedApprover(Decision.TOOL), Helper()
    asked = requests(approver, helper)
    request = SamplingRequest((Message("user", "Sum this up."),), "Be brief.", max_tokens=100_000)
    assert (await asked.sample("notes", request)).text == "an answer"
    (question,) = approver.questions
    assert question.preview.text == "system: Be brief.\n\nuser: Sum this up."
    assert decision_text(Decision.TOOL, question) == "always for notes in this chat"
    assert helper.sampled[0].max_tokens == MAX_SAMPLED_TOKENS
    await asked.sample("notes", request)  # allowed by then
    assert len(approver.questions) == 1
    later = requests(ScriptedApprover(), helper, tuple(asked.gained))
    assert (await later.sample("notes", request)).text == "an answer"


async def test_another_server_of_the_same_name_is_asked_about_again() -> None:
    request = SamplingRequest((Message("user", "a"),))
    first = requests(ScriptedApprover(Decision.TOOL))
    await first.sample("notes", request, "node notes.js")
    approver = ScriptedApprover(Decision.DENY)
    later = requests(approver, rules=tuple(first.gained))
    assert (await later.sample("notes", request, "node notes.js")).text == "an answer"
    with pytest.raises(RequestRefusedError):
        await later.sample("notes", request, "node evil.js")
    assert len(approver.questions) == 1


async def test_never_is_for_this_server_and_kind_of_request() -> None:
    asked = requests(ScriptedApprover(Decision.NEVER, Decision.ONCE))
    request = SamplingRequest((Message("user", "a"),))
    for _ in range(2):
        with pytest.raises(RequestRefusedError, match=r"did not allow"):
            await asked.sample("notes", request)
    assert (await asked.sample("other", request)).text == "an answer"


async def test_a_rule_about_the_tools_of_a_server_lets_it_ask_nothing() -> None:
    rule = ApprovalRule("server", "notes", fingerprint="of its tools")
    approver = ScriptedApprover(Decision.DENY)
    assert await requests(approver, rules=(rule,)).fill("notes", "Who?", SCHEMA) is None
    assert len(approver.questions) == 1


async def test_a_call_asks_so_often_and_so_much_at_most() -> None:
    approver = ScriptedApprover(*[Decision.ONCE] * 20)
    asked = requests(approver)
    for _ in range(MAX_REQUESTS):
        await asked.fill("notes", "Again?", {"properties": {}})
    with pytest.raises(RequestRefusedError, match=r"has asked 5 times already"):
        await asked.fill("notes", "Again?", {"properties": {}})
    with pytest.raises(RequestRefusedError, match=r"more than a person reads"):
        await requests(approver).sample("notes", SamplingRequest((Message("user", "x" * 50_000),)))
    assert len(approver.questions) == MAX_REQUESTS


async def test_an_address_is_shown_whole_and_must_be_one_of_the_web() -> None:
    approver = ScriptedApprover(Decision.ONCE)
    asked = requests(approver)
    assert await asked.agree_to_address("notes", "Pay here.", "https://pay.example/a?b=c")
    question: ApprovalQuestion = approver.questions[0]
    assert "https://pay.example/a?b=c" in question.preview.text
    assert "It is at pay.example." in question.preview.text
    for url in ("file:///etc/passwd", "javascript:alert(1)", "https://a\x1b[2J", "https://[", "http:"):
        with pytest.raises(RequestRefusedError, match=r"no web address"):
            await asked.agree_to_address("notes", "Pay here.", url)
