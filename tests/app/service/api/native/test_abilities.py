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
