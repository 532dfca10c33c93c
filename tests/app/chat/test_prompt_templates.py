"""Prompt templates: equal to the models' own, which are Jinja."""

from __future__ import annotations

import jinja2
import pytest

from app.chat.prompt_templates import COMPLETION, TEMPLATES, render_prompt, template_stops
from app.protocol.chat import Message

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
