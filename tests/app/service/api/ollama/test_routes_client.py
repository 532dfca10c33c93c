"""The official Ollama client against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import ollama
import pytest

from tests.app.running import RunningService

MESSAGES = [{"role": "user", "content": "hello"}]
OPTIONS = {"num_predict": 5, "temperature": 0}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Åre"}}\n</tool_call>'


def get_weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: The city's name.
    """
    return f"<say>It snows in {city}.</say>"


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[ollama.Client]:
    with closing(ollama.Client(host=service.url, trust_env=False)) as client:
        yield client


def test_it_chats_and_streams(client: ollama.Client) -> None:
    whole = client.chat("tiny", MESSAGES, options=OPTIONS)
    parts = list(client.chat("tiny", MESSAGES, options=OPTIONS, stream=True))
    assert whole.message.content
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].done
    assert parts[-1].eval_count == 5


def test_a_whole_loop_with_a_tool_runs(client: ollama.Client) -> None:
    messages: list[Any] = [{"role": "user", "content": f"<say>{CALL}</say>"}]
    first = client.chat("tiny", messages, tools=[get_weather]).message
    assert first.tool_calls is not None
    (call,) = first.tool_calls
    assert call.function.name == "get_weather"
    messages += [
        first,
        {"role": "tool", "tool_name": call.function.name, "content": get_weather(**call.function.arguments)},
    ]
    assert client.chat("tiny", messages, tools=[get_weather]).message.content == "It snows in Åre."


def test_it_generates(client: ollama.Client) -> None:
    answer = client.generate("tiny", "hello", options=OPTIONS, keep_alive=-1)
    assert len(answer.response) == 5


def test_it_embeds(client: ollama.Client) -> None:
    assert len(client.embed("tiny", ["a", "b"]).embeddings) == 2
    assert len(client.embeddings("tiny", "a").embedding) == 8


def test_it_embeds_long_texts_and_refuses_them_on_request(client: ollama.Client) -> None:
    answer = client.embed("tiny", "x" * 300, options={"num_ctx": 8192})
    assert len(answer.embeddings[0]) == 8
    assert answer.total_duration is not None
    assert answer.prompt_eval_count == 256
    with pytest.raises(ollama.ResponseError, match="256"):
        client.embed("tiny", "x" * 300, truncate=False)


def test_a_model_that_it_unloads_is_loaded_by_the_next_request_and_stays(client: ollama.Client) -> None:
    client.generate("tiny", keep_alive=0)
    loaded = client.chat("tiny", MESSAGES, options=OPTIONS)
    again = client.chat("tiny", MESSAGES, options=OPTIONS)
    assert loaded.load_duration is not None
    assert again.load_duration, "Ollama's has the time to find the model, too"
    expires = client.ps().models[0].expires_at
    assert expires is not None
    assert again.created_at is not None
    answered = datetime.fromisoformat(again.created_at)
    assert expires - answered > timedelta(minutes=9), "ten minutes from its end on"


def test_it_describes_models(client: ollama.Client) -> None:
    assert "tiny" in {model.model for model in client.list().models}
    shown = client.show("tiny")
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 4096
    assert client.ps().models[0].model == "tiny"


def test_its_own_errors_are_raised(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as unknown:
        client.chat("nope", MESSAGES)
    assert unknown.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="context holds 4096"):
        list(client.generate("tiny", "x" * 5000, stream=True))
    with pytest.raises(ollama.ResponseError, match="does not publish") as absent:
        client.push("tiny")
    assert absent.value.status_code == 501
