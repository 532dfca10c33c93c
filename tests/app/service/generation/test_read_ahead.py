"""What is read before a question is a beginning of the question's own prompt, in the template of each family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.request import Request
from app.protocol.chat import Message, Tool, ToolCall
from app.protocol.errors import RequestError
from app.service.generation.chat import ChatTurn, prompt_of
from app.service.generation.read_ahead import read_ahead_request
from app.service.generation.thinking import Thinking
from app.service.tools.parser import NO_TOOLS, ToolOptions
from tests.app.service.generation.test_chat import HERMES, PLAIN, served

FAMILIES = Path(__file__).parents[1] / "tools" / "family_templates"
OTHERS = {
    "plain": PLAIN,
    "hermes": HERMES,
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama 3": "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
    "{{ m.content }}</s>{% endif %}{% endfor %}",
}
TEMPLATES = {path.stem: path.read_text("utf-8") for path in sorted(FAMILIES.glob("*.jinja"))} | OTHERS
TOOLS = ToolOptions(tools=(Tool("add", "Adds <|im_end|>.", {"type": "object", "properties": {}}),))
FILE = "notes.txt:\n```\nThe first line.\n  The second, with <|im_end|> and </s>.\n```\n\n"
HISTORY = [
    Message("user", "Hello."),
    Message("assistant", "Hi."),
    Message("user", "More?"),
    Message("assistant", "No."),
]
CALLED = [
    Message("user", "1 + 2?"),
    Message("assistant", "", calls=(ToolCall("call00001", "add", "{}"),)),
    Message("tool", "3 <|im_end|>", call_id="call00001", name="add"),
    Message("assistant", "It is 3."),
]
BEGINNINGS = ("", FILE, "Summarise this", f"{FILE}What does\n")
ENDINGS = ("Why?", " in three sentences, please.", "\nAnd more.", "A", "B", "`", "<end>")


def turn(messages: list[Message], tools: ToolOptions = NO_TOOLS, think: str = "") -> ChatTurn:
    thinking = Thinking(effort=think) if think else Thinking()
    return ChatTurn(messages=messages, request=Request(request_id="1", prompt=""), tools=tools, thinking=thinking)


@pytest.mark.parametrize("tools", [NO_TOOLS, TOOLS], ids=["without tools", "with tools"])
@pytest.mark.parametrize("family", TEMPLATES)
async def test_a_question_begins_with_what_was_read_of_it(family: str, tools: ToolOptions) -> None:
    model = served(TEMPLATES[family])
    for before in ([], HISTORY, [Message("system", "Be brief."), *HISTORY], CALLED if tools is TOOLS else HISTORY):
        for begun in BEGINNINGS:
            reading = await read_ahead_request(model, turn([*before, Message("user", begun)], tools))
            assert reading is not None
            assert reading.reads_ahead
            for ending in ENDINGS:
                asked = (await prompt_of(model, turn([*before, Message("user", begun + ending)], tools))).requests[0]
                assert isinstance(asked.prompt, str)
                assert isinstance(reading.prompt, str)
                assert asked.prompt.startswith(reading.prompt), (family, begun, ending)
                assert begun.strip() in reading.prompt, "all of it that is known is read"
                assert asked.add_special == reading.add_special
                shown = [span for span in asked.quoted if span[0] < len(reading.prompt)]
                assert [(begin, min(end, len(reading.prompt))) for begin, end in shown] == list(reading.quoted)


@pytest.mark.slow
@given(st.text(max_size=30), st.text(min_size=1, max_size=10))
@settings(max_examples=60, deadline=None)
async def test_any_beginning_is_one_of_what_is_sent(begun: str, ending: str) -> None:
    model = served(OTHERS["chatml"])
    reading = await read_ahead_request(model, turn([*HISTORY, Message("user", begun)]))
    asked = (await prompt_of(model, turn([*HISTORY, Message("user", begun + ending)]))).prompt
    assert reading is not None
    assert asked.startswith(str(reading.prompt))


async def test_the_request_outputs_nothing_and_belongs_to_the_chat() -> None:
    asked = turn([Message("user", "Why")])
    asked = replace(asked, request=replace(asked.request, conversation="abc", max_tokens=50, n_logprobs=3))
    reading = await read_ahead_request(served(PLAIN), asked)
    assert reading is not None
    assert (reading.prompt, reading.max_tokens, reading.priority) == ("<user>Why", 0, -1)
    assert (reading.conversation, reading.n_logprobs) == ("abc", None)
    assert reading.request_id != "1"


async def test_only_a_question_can_be_unfinished() -> None:
    with pytest.raises(RequestError, match="not the user's"):
        await read_ahead_request(served(PLAIN), turn([Message("assistant", "Hi")]))


async def test_a_template_that_puts_everything_behind_the_question_has_nothing_to_read() -> None:
    assert await read_ahead_request(served("{{ messages[-1].content }}"), turn([Message("user", "")])) is None
