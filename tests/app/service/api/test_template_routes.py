"""Every route that makes a prompt of messages brings them into the order of the template; with tools a model that has a
template for them uses that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.app.running import RunningService
from tests.app.service.role_sequences import TOOLS, twin
from tests.quantizer.gguf_files import tiny_llama

STRICT = twin(("several_systems", "late_system", "users", "assistants", "assistant_first"), has_calls=False)
FOR_TOOLS = "For tools." + twin(("users",), has_calls=True)
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "A fox?"},
    {"role": "user", "content": "Or a wolf?"},
]


@pytest.fixture(scope="module")
def strict(start_service: Callable[..., RunningService], tmp_path_factory: pytest.TempPathFactory) -> RunningService:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template([{"name": "default", "template": STRICT}, {"name": "tool_use", "template": FOR_TOOLS}])

    path: Path = tiny_llama(tmp_path_factory.mktemp("strict") / "strict.gguf", edit)
    return start_service(model=str(path))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": SAID, "max_tokens": 2}),
        ("/api/v0/chat/completions", {"messages": SAID, "max_tokens": 2, "model": "strict"}),
        ("/v1/responses", {"input": SAID, "max_output_tokens": 2}),
        ("/v1/messages", {"messages": SAID, "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": SAID}),
        ("/v1/responses/input_tokens", {"input": SAID}),
        ("/api/chat", {"messages": SAID, "model": "strict", "stream": False, "options": {"num_predict": 2}}),
        ("/apply-template", {"messages": SAID}),
    ],
)
def test_no_route_refuses_what_the_template_would(strict: RunningService, path: str, body: dict[str, Any]) -> None:
    assert strict.http.post(path, json=body).status_code == 200


def test_messages_as_a_prompt_are_in_the_order_of_the_template(strict: RunningService) -> None:
    made = strict.http.post("/apply-template", json={"messages": SAID}).json()["prompt"]
    assert made == "<system>Be brief.\n\nBe kind.<user>A fox?\n\nOr a wolf?<assistant>"


def test_a_chat_with_tools_uses_the_template_for_them(strict: RunningService) -> None:
    asked = {"messages": SAID[2:3], "tools": TOOLS}
    made = strict.http.post("/apply-template", json=asked).json()["prompt"]
    assert made.startswith("For tools.<tools>")
    assert made.endswith("<user>A fox?<assistant>")
    without = strict.http.post("/apply-template", json={**asked, "tool_choice": "none"}).json()["prompt"]
    assert without == "<user>A fox?<assistant>"


@pytest.mark.slow
def test_the_facts_say_that_a_model_with_such_a_template_takes_tools(strict: RunningService) -> None:
    props = strict.http.get("/props").json()
    assert (props["chat_template"], props["chat_template_tool_use"]) == (STRICT, FOR_TOOLS)
    assert props["chat_template_caps"]["supports_tools"]
    assert props["chat_template_caps"]["supports_tool_calls"]
