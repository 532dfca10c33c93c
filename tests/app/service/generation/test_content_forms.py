"""Templates that print content only in parts, as those of several models that see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from app.library.local.model_files import ModelRef
from app.service.api.openai.requests import ChatCompletionBody
from app.service.generation.chat import prompt_of
from app.service.generation.content_forms import MAX_REMEMBERED, ContentForms, in_parts
from app.service.generation.media import PromptMedia
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
    assert await ContentForms().takes_only_parts(_file(template), HereAndNow()) is is_only_parts


async def test_a_template_is_tried_once_and_the_memory_is_bounded() -> None:
    forms, renderer = ContentForms(), Counting()
    for _ in range(3):
        assert await forms.takes_only_parts(_file(SMOLVLM), renderer)
    assert renderer.n_rendered == 2
    for number in range(MAX_REMEMBERED):
        await forms.takes_only_parts(_file(f"{PLAIN}{number}"), renderer)
    n_before = renderer.n_rendered
    await forms.takes_only_parts(_file(SMOLVLM), renderer)
    assert renderer.n_rendered == n_before + 2


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
    assert (await prompt_of(model, turn)).text == prompt.format(media.markers[0])
