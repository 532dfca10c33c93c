"""Which options a chat may have."""

from __future__ import annotations

import json
from dataclasses import fields

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat.sampling_options import (
    CHAT_OPTIONS,
    COMPLETION,
    TEMPLATES,
    NumberOption,
    change_options,
    generation_options,
    parse_options,
    render_prompt,
    schema_of,
    split_changes,
    template_stops,
    unusual_text,
    valid_options,
    validate_options,
)
from app.client.connection import chat_body, completion_body
from app.engine.request import SamplingParams
from app.protocol.chat import GenerationOptions, Message
from app.protocol.sampling import NUMBER_RANGES, USUAL_RANGES, SamplingOptions
from app.service.api.openai.requests import ChatCompletionBody
from quantizer.system.errors import UsageError

NUMBERS = [option for option in CHAT_OPTIONS if isinstance(option, NumberOption) and option.name != "max_tokens"]


def _changed(options, text):
    return change_options(options, split_changes(text))


def test_what_is_typed_becomes_numbers_and_what_is_blank_is_left_to_the_model():
    assert parse_options({"temperature": " 0.7 ", "top_k": "40", "seed": "", "min_p": "  "}) == {
        "temperature": 0.7,
        "top_k": 40,
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temperature", "warm"),
        ("temperature", "-0.1"),
        ("temperature", "nan"),
        ("top_p", "1.01"),
        ("min_p", "inf"),
        ("top_k", "1.5"),
        ("top_k", "9" * 5000),
        ("seed", "-1"),
        ("max_tokens", "0"),
    ],
)
def test_what_will_not_do_is_refused_with_what_would(name, text):
    with pytest.raises(UsageError, match=rf"{name} is .*from \d") as refused:
        parse_options({name: text})
    assert "number from" in str(refused.value)


def test_words_change_some_options_and_leave_the_others():
    options = {"temperature": 0.7, "top_k": 40}
    assert _changed(options, "temperature=0 seed=7") == {"temperature": 0.0, "top_k": 40, "seed": 7}
    assert _changed(options, "top_k=") == {"temperature": 0.7}
    assert _changed(options, "top_k= temperature=1") == {"temperature": 1.0}


@pytest.mark.parametrize(
    "text", ["temperature", "0.5", "warmth=1", "temperature=hot", "temperature=-1", "stop=[1]", 'stop=["a"', "stop=[]"]
)
def test_words_that_change_nothing_are_refused(text):
    with pytest.raises(UsageError):
        _changed({}, text)


def test_stop_strings_are_one_text_or_a_list_with_spaces_and_escapes():
    assert _changed({}, "stop=END") == {"stop": '["END"]'}
    changed = _changed({}, 'stop=["User: ", "\\n"] seed=1')
    assert generation_options(changed) == GenerationOptions(stop=("User: ", "\n"), seed=1)
    assert _changed({}, 'stop="the end" seed=1') == {"stop": '["the end"]', "seed": 1}


def test_a_schema_that_is_no_json_is_refused_with_the_place():
    with pytest.raises(UsageError, match=r"json_schema is not JSON: .*line 1 column 2"):
        parse_options({"json_schema": "{type: object}"})
    with pytest.raises(UsageError, match="Give a JSON object"):
        parse_options({"json_schema": "[1]"})
    with pytest.raises(UsageError, match="json_schema is not JSON"):
        parse_options({"json_schema": "[" * 100_000})


def test_a_schema_becomes_the_form_of_the_answer():
    options = _changed({}, 'json_schema={"type": "object"} temperature=0')
    assert schema_of(options) == {"type": "object"}
    body = chat_body([], "m", generation_options(options))
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"type": "object"}},
    }
    assert "json_schema" not in body


def test_how_much_to_think_is_a_level_or_a_number_of_tokens():
    bodies = {
        text: chat_body([], "m", generation_options(_changed({}, f"think={text}"))) for text in ("off", "high", "9")
    }
    assert bodies["off"]["reasoning_effort"] == "none"
    assert bodies["high"]["reasoning_effort"] == "high"
    assert (bodies["9"]["reasoning_budget_tokens"], "reasoning_effort" in bodies["9"]) == (9, False)
    assert not any("think" in body for body in bodies.values())
    assert "reasoning_effort" not in completion_body("a", "m", GenerationOptions(think="off"))
    for text in ("hard", "-1", "1.5", "1" * 10, "²"):
        with pytest.raises(UsageError, match="think is"):
            _changed({}, f"think={text}")


def test_an_answer_is_deterministic_where_a_chat_says_so():
    chosen = _changed({}, "deterministic=on")
    assert (chosen, _changed(chosen, "deterministic=off")) == ({"deterministic": "on"}, {"deterministic": "off"})
    for text, sent in (("on", True), ("off", False)):
        body = chat_body([], "m", generation_options({"deterministic": text}))
        assert body["deterministic"] is sent
    assert "deterministic" not in chat_body([], "m", generation_options({"deterministic": "yes"}))


def test_what_is_not_given_is_left_out_and_what_is_given_is_checked():
    assert validate_options({"temperature": 0.5, "seed": None}) == {"temperature": 0.5}
    with pytest.raises(UsageError, match="temperature is -1"):
        validate_options({"temperature": -1.0})


def test_only_what_is_allowed_passes_of_what_was_kept():
    kept = {"temperature": 1, "top_p": "0.5", "top_k": True, "min_p": 10**400, "seed": 7, "context": 9, "max_tokens": 0}
    assert valid_options(kept) == {"temperature": 1.0, "seed": 7}
    assert (
        valid_options({"typical_p": float("nan"), "stop": 5, "json_schema": "{", "template": "none", "grammar": ""})
        == {}
    )


def test_every_option_of_the_engine_is_offered_with_its_meaning():
    offered = {option.name: option.meaning for option in CHAT_OPTIONS}
    assert {item.name for item in fields(SamplingOptions)} <= offered.keys()
    assert all(offered.values())


def test_every_sampler_reaches_the_engine_under_its_own_name():
    given = {option.name: option.kind(option.highest) for option in NUMBERS} | {
        "dry_sequence_breakers": '["!"]',
        "grammar": 'root ::= "a"',
    }
    body = json.loads(json.dumps(chat_body([], "m", generation_options(given))))
    body["messages"] = [{"role": "user", "content": "hello"}]
    sampling = ChatCompletionBody.model_validate(body).request().sampling
    expected = given | {"dry_sequence_breakers": ("!",)}
    assert {name: getattr(sampling, name) for name in expected} == expected


@given(st.sampled_from(NUMBERS), st.data())
def test_the_engine_takes_what_is_allowed(option, data):
    numbers = st.integers if option.kind is int else st.floats
    value = data.draw(numbers(option.lowest, option.highest))
    assert valid_options({option.name: value}) == {option.name: value}
    SamplingParams(**{option.name: value})


TURNS = [
    Message("system", "Be brief."),
    Message("user", "Hello."),
    Message("assistant", "Hi!"),
    Message("user", "And?"),
]
# The templates that models of these families carry, without their first token, which the engine adds.
JINJA = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n",
    "llama3": "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
    "{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}"
    "<end_of_turn>\n{% endfor %}<start_of_turn>model\n",
    "mistral": "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
    "{{ m.content }}</s>{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("name", JINJA)
def test_a_prompt_equals_that_of_the_models_own_template(name: str) -> None:
    messages = TURNS
    if TEMPLATES[name].system is None:
        messages = [Message("user", "Be brief.\n\nHello."), *TURNS[2:]]
    assert render_prompt(name, TURNS) == jinja2.Template(JINJA[name], keep_trailing_newline=True).render(
        messages=messages
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_that_is_continued_stays_open(name: str) -> None:
    asked = render_prompt(name, TURNS[:2])
    assert render_prompt(name, TURNS[:3]) == f"{asked}Hi!"
    assert all(stop not in asked[-1:] for stop in template_stops(name))


def test_alpaca_is_plain_text_with_headings() -> None:
    assert render_prompt("alpaca", TURNS[:2]) == "Be brief.\n\n### Instruction:\nHello.\n\n### Response:\n"


def test_completion_continues_the_text_itself() -> None:
    turns = [Message("user", "Once upon"), Message("assistant", " a time."), Message("user", "The dragon")]
    assert render_prompt(COMPLETION, turns) == "Once upon a time.\nThe dragon"
    assert render_prompt(COMPLETION, turns[:2]) == "Once upon a time."
    assert template_stops(COMPLETION) == ()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": 0.9, "top_p": 0.95}, ""),
        ({"temperature": 2.0}, ""),
        ({"temperature": 9.0}, "Note: temperature 9 is unusual, 0 to 2 is common."),
        (
            {"repeat_penalty": 11.0, "top_k": 5000, "stop": '["END"]'},
            "Note: top_k 5000 is unusual, 0 to 1000 is common; repeat_penalty 11 is unusual, 0.8 to 2 is common.",
        ),
        ({"temperature": 900.0}, ""),  # not valid: refused, or ignored in a stored chat
    ],
)
def test_a_number_that_nobody_uses_is_valid_and_noted(options: dict[str, object], text: str) -> None:
    assert unusual_text(options) == text


def test_what_is_usual_is_allowed_and_what_nobody_sets_is_usual() -> None:
    unsaid = SamplingOptions()
    for name, usual in USUAL_RANGES.items():
        lowest, highest = NUMBER_RANGES[name]
        assert lowest <= usual.least <= getattr(unsaid, name) <= usual.most <= highest, name
