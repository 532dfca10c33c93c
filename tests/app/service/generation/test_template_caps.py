from __future__ import annotations

from typing import Any

import pytest

from app.engine.chat_template.render import render
from app.protocol.errors import RequestError
from app.service.generation.template_caps import MAX_REMEMBERED, NO_TEMPLATE_CAPS, TemplateProbe
from app.service.models.model_file import ModelFile

LOOP = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
CALLS = "{% for c in m.tool_calls %}<call>{{ c.function.name }}{% endfor %}"
TOOLS = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
# In the manner of the published templates of these families, reduced to what counts here.
TEMPLATES: dict[str, tuple[str, set[str]]] = {
    "a plain one": (LOOP, {"string_content", "system_role"}),
    "Gemma's without a system": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + LOOP,
        {"string_content"},
    ),
    "Hermes' with calls": (
        TOOLS + "{% for m in messages %}{{ m.content }}" + CALLS + "{% endfor %}",
        {"string_content", "system_role", "tools", "tool_calls", "parallel_tool_calls"},
    ),
    "Llama 3.2's with one call": (
        TOOLS
        + "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length != 1 %}{{ raise_exception('one') }}"
        + "{% endif %}{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}{% endfor %}",
        {"string_content", "system_role", "tools", "tool_calls"},
    ),
    "a vision model's with parts": (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
        {"string_content", "typed_content", "system_role"},
    ),
    "one with parts alone": (
        "{% for m in messages %}{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endfor %}",
        {"typed_content"},
    ),
    "DeepSeek V3.1's, which keeps the reasoning of turns with calls": (
        "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{{ m.reasoning_content }}{% endif %}{% endfor %}",
        {"string_content", "system_role", "preserve_reasoning"},
    ),
    "GPT-OSS's with levels": (
        "{{ reasoning_effort or 'medium' }}" + LOOP,
        {"string_content", "system_role", "reasoning_effort", "thinks_by_default"},
    ),
    "one that thinks unless it is told not to": (
        LOOP + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}",
        {"string_content", "system_role", "thinks_by_default"},
    ),
    "one that thinks if it is told to": (
        LOOP + "{% if enable_thinking %}<think>{% endif %}",
        {"string_content", "system_role"},
    ),
    "one that always thinks": (
        LOOP + "{% if add_generation_prompt %}<think>\n{% endif %}",
        {"string_content", "system_role", "thinks_by_default"},
    ),
    "one that refuses all": ("{{ raise_exception('no') }}", set()),
    "one that is broken": ("{% if %}", set()),
    "none": ("", set()),
}


class Renderer:
    """Renders in this process, and counts."""

    def __init__(self) -> None:
        self.n_rendered = 0

    async def render(
        self, template: str, messages: Any, *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        self.n_rendered += 1
        try:
            return render(template, {"messages": messages, "add_generation_prompt": add_generation_prompt, **variables})
        except Exception as error:
            raise RequestError(f"{error}", "") from error

    async def close(self) -> None:
        """Nothing is held."""


def _file(template: str) -> ModelFile:
    return ModelFile(chat_template=template, bos_token="", eos_token="", n_ctx_train=1, n_bytes=1)


@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_template_can_express_what_it_writes(name: str) -> None:
    template, expected = TEMPLATES[name]
    caps = await TemplateProbe().caps_of(_file(template), Renderer())
    assert {cap.removeprefix("supports_") for cap, has_it in caps.items() if has_it} == expected
    assert caps.keys() == NO_TEMPLATE_CAPS.keys()


async def test_a_template_is_probed_once_and_the_memory_is_bounded() -> None:
    probe, renderer = TemplateProbe(), Renderer()
    first = await probe.caps_of(_file(LOOP), renderer)
    n_rendered = renderer.n_rendered
    assert await probe.caps_of(_file(LOOP), renderer) == first
    assert renderer.n_rendered == n_rendered
    for number in range(MAX_REMEMBERED):
        await probe.caps_of(_file(f"{number}"), renderer)
    n_rendered = renderer.n_rendered
    await probe.caps_of(_file(LOOP), renderer)
    assert renderer.n_rendered > n_rendered


async def test_a_template_that_refuses_a_question_is_not_tried_any_further() -> None:
    renderer = Renderer()
    await TemplateProbe().caps_of(_file("{{ raise_exception('no') }}"), renderer)
    assert renderer.n_rendered == 2
