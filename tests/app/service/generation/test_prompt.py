"""Messages in the form that a template reads: content in parts or as text, reasoning under its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from app.library.local.model_files import ModelRef
from app.protocol.chat import Message, ToolCall
from app.service.api.openai.requests import ChatCompletionBody
from app.service.generation.chat import prompt_of
from app.service.generation.media import PromptMedia
from app.service.generation.prompt import TemplateWriter, in_parts
from app.service.generation.template_caps import TemplateProbe
from app.service.models.model_file import ModelFile, Senses
from app.service.models.served_model import ServedModel
from tests.app.service.api.picture_requests import URL
from tests.app.service.generation.test_chat import PLAIN, HereAndNow

# As SmolVLM's, LLaVA's and Gemma 3's are built.
SMOLVLM = (
    "{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}<image>{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
LLAVA = (
    "{% for message in messages %}{{ message['role'] }}: {% for content in message['content'] | "
    "selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}{% for content in message['content'] | "
    "selectattr('type', 'equalto', 'text') %}{{ content['text'] }}{% endfor %}{% endfor %}"
)
GEMMA = (
    "{% for message in messages %}<{{ message['role'] }}>{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for item in message['content'] %}{{ item['text'] }}{% endfor %}{% endif %}{% endfor %}"
)


class Counting(HereAndNow):
    """Counts what it renders."""

    def __init__(self) -> None:
        self.n_rendered = 0

    async def render(self, template: str, messages: Sequence[dict[str, Any]], **variables: Any) -> str:
        self.n_rendered += 1
        return await super().render(template, messages, **variables)


def _file(template: str) -> ModelFile:
    return ModelFile(chat_template=template, bos_token="", eos_token="", n_ctx_train=1, n_bytes=1)


@pytest.mark.parametrize(
    ("template", "is_only_parts"),
    [
        (SMOLVLM, True),
        (LLAVA, True),
        (GEMMA, False),
        (PLAIN, False),
        ("{{ raise_exception('never') }}", False),
        ("", False),
    ],
)
async def test_the_form_is_found_by_rendering(template: str, is_only_parts: bool) -> None:
    assert await TemplateProbe().takes_only_parts(_file(template), HereAndNow()) is is_only_parts


async def test_a_template_is_tried_once() -> None:
    probe, renderer = TemplateProbe(), Counting()
    for _ in range(3):
        assert await probe.takes_only_parts(_file(SMOLVLM), renderer)
    assert renderer.n_rendered == 2


def test_only_texts_become_parts() -> None:
    part = {"type": "text", "text": "x"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": content} for content in ("x", None, [part])]
    assert in_parts(messages) == [{"role": "user", "content": [part]}, *messages[1:]]


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (SMOLVLM, "System: Be brief.<end_of_utterance>\nUser: {}What is it?<end_of_utterance>\nAssistant:"),
        (LLAVA, "system: Be brief.user: {}What is it?"),
    ],
)
async def test_the_prompt_of_such_a_template_has_texts_and_pictures(template: str, prompt: str) -> None:
    media = PromptMedia(Senses(sees=True))
    content = [{"type": "image_url", "image_url": URL}, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    turn = ChatCompletionBody.model_validate({"messages": messages}).turn(media)
    no_engine = cast("Any", None)
    model = ServedModel(ModelRef("test", Path("test.gguf")), _file(template), no_engine, no_engine, HereAndNow())
    assert (await prompt_of(model, turn)).prompt == prompt.format(media.markers[0])


TURN, PLAIN_TURN = Message("assistant", "Yes.", reasoning="Hm."), Message("assistant", "Yes.")
PLAIN_FIELDS: dict[str, Any] = {"role": "assistant", "content": "Yes."}


def _fields(template: str, message: Message) -> dict[str, Any]:
    model = ServedModel(ModelRef("test", Path("test.gguf")), _file(template), *[cast("Any", None)] * 3)
    return TemplateWriter(model, takes_only_parts=False)._message(message)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% if message.reasoning_content is string %}",
            {**PLAIN_FIELDS, "reasoning_content": "Hm."},
        ),  # Qwen3, GLM 4.5
        (
            "{{ message.get('reasoning') or message.get('reasoning_content') }}",
            {**PLAIN_FIELDS, "reasoning_content": "Hm."},
        ),
        ("{% if message.thinking is defined %}", {**PLAIN_FIELDS, "thinking": "Hm."}),  # LFM2.5
        ("{{ message.reasoning }}", {**PLAIN_FIELDS, "reasoning": "Hm."}),  # Solar Open
        ("{{ message.content.split('</think>') }}", PLAIN_FIELDS),  # QwQ
        (
            "{% if block['type'] == 'thinking' %}",  # Ministral 3
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}],
            },
        ),
    ],
)
def test_reasoning_has_the_name_that_the_template_reads(template: str, message: dict[str, Any]) -> None:
    assert _fields(template, TURN) == message
    assert _fields(template, PLAIN_TURN) == PLAIN_FIELDS


def test_gpt_oss_gets_what_was_said_before_a_call_as_thought() -> None:
    """Its template refuses text beside reasoning and a call."""
    calling = Message("assistant", "Wait.", calls=(ToolCall("c", "f"),), reasoning="Hm.")
    fields = _fields("<|channel|>analysis<|message|>", calling)
    assert (fields["content"], fields["thinking"]) == (None, "Hm.\n\nWait.")


async def test_a_template_that_iterates_over_tools_gets_an_empty_list_where_there_are_none() -> None:
    template = "{% for t in tools %}{{ t }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    turn = ChatCompletionBody.model_validate({"messages": [{"role": "user", "content": "Hi"}]}).turn()
    model = ServedModel(ModelRef("test", Path("test.gguf")), _file(template), *[cast("Any", None)] * 2, HereAndNow())
    assert (await prompt_of(model, turn)).prompt == "<user>Hi"
