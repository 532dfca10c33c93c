from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from tests.app.one_file_service import serving
from tests.quantizer.gguf_files import tiny_llama

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
QWEN = "{% if tools %}{{ tools | tojson }}{% endif %}" + PLAIN + "{% if enable_thinking %}<think>{% endif %}"


@pytest.mark.parametrize(
    ("template", "takes_tools", "thinks"),
    [
        (PLAIN, False, False),
        ("{# tools and enable_thinking #}" + PLAIN, False, False),
        ("{{ 'tools' }}{{ message.tools }}" + PLAIN, False, False),
        (QWEN, True, True),
        (PLAIN + "<think>\n{{ content }}\n</think>", False, True),
        ("{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + PLAIN, True, False),
        ("", False, False),
    ],
)
async def test_the_status_says_what_the_template_of_a_model_can_take(
    tmp_path: Path, template: str, takes_tools: bool, thinks: bool
) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        if template:
            writer.add_chat_template(template)

    async with serving(tmp_path, tiny_llama(tmp_path / "m.gguf", edit)) as service:
        (status,) = (await service.http.get("/api/localllm/status")).json()["models"]
    assert (status["takes_tools"], status["thinks"]) == (takes_tools, thinks)


@pytest.mark.parametrize(
    ("template", "thinks_by_default"),
    [
        (PLAIN, None),
        (QWEN, False),
        (PLAIN + "<think>\n{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}", True),
    ],
)
async def test_the_status_of_a_loaded_model_says_whether_it_thinks_by_default(
    tmp_path: Path, template: str, thinks_by_default: bool | None
) -> None:
    model = tiny_llama(tmp_path / "m.gguf", lambda writer: writer.add_chat_template(template))
    async with serving(tmp_path, model) as service:
        answer = await service.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        assert answer.status_code == 200
        (status,) = (await service.http.get("/api/localllm/status")).json()["models"]
    assert status["thinks_by_default"] is thinks_by_default
