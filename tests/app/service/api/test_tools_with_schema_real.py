"""Tools together with a schema, by the engine that people have: whatever a model draws is a call or of the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.app.conftest import CHAT_TEMPLATE
from tests.app.running import RunningService
from tests.app.service.api.test_tools_with_schema import streamed_chat, whole_chat
from tests.quantizer.gguf_files import tiny_llama

pytestmark = pytest.mark.slow

TOOL = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}},
    "required": ["city"],
}
ANSWER = {
    "type": "object",
    "properties": {
        "at": {"type": "string", "pattern": r"^\d{2}:[0-5]\d$"},
        "degrees": {"type": "number", "minimum": -40.5, "exclusiveMaximum": 50},
    },
    "required": ["at", "degrees"],
}


def _thinking(writer: gguf.GGUFWriter) -> None:
    writer.add_chat_template(CHAT_TEMPLATE + "{# <think></think> #}")
    writer.kv_data[0]["llama.context_length"].value = 4096


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_model_of_random_weights_writes_calls_and_answers_of_the_schema(
    start_service: Callable[..., RunningService], tmp_path: Path, is_streamed: bool
) -> None:
    model = tiny_llama(tmp_path / "thinking.gguf", _thinking)
    service = start_service(engine="llama", model=str(model), cache_dir=str(tmp_path / "cache"), idle_tune="false")
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": TOOL}}],
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "weather", "schema": ANSWER}},
        "logit_bias": [[ord("<"), 4], [ord("{"), 4]],
        "max_tokens": 600,
        "stream": is_streamed,
    }
    kinds = set()
    for seed in range(24):
        response = service.http.post("/v1/chat/completions", json=body | {"seed": seed})
        assert response.status_code == 200, response.text
        if is_streamed:
            lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
            text, calls, _ = streamed_chat([json.loads(line) for line in lines])
            is_cut = '"finish_reason":"length"' in response.text
        else:
            is_cut = response.json()["choices"][0]["finish_reason"] == "length"
            text, calls = ("", []) if is_cut else whole_chat(response.json())
        if is_cut:  # in a thought, which random weights do not end
            continue
        for name, arguments in calls:
            assert name == "get_weather"
            assert arguments["city"].isalpha()
        if not calls:
            assert -40.5 <= json.loads(text)["degrees"] < 50
        kinds.add("call" if calls else "answer")
    assert kinds == {"call", "answer"}
